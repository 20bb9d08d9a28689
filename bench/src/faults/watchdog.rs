//! Kills the processes that a run leaves behind; all of them have the run's folder in their command line. A watchdog
//! process does the same if the run itself is killed.

use std::{
    fs,
    io::Read,
    path::Path,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

/// The command of this program that runs the watchdog.
const COMMAND: &str = "fault-watchdog";
/// How long processes may take to exit after the end of a run.
const EXIT_LIMIT: Duration = Duration::from_secs(8);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Starts the watchdog process.
pub fn spawn(bench: &Path, folder: &Path) -> anyhow::Result<Child> {
    let mut command = Command::new(bench);
    command.arg(COMMAND).arg(folder).stdin(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true);
    command.spawn().context("start the watchdog")
}

/// The watchdog process: its stdin closes when the run ends.
pub fn watch(folder: &Path) {
    std::io::stdin().read_to_end(&mut Vec::new()).ok();
    kill_all(folder);
}

/// Waits until all processes of the folder have exited. Kills the remaining ones and returns their command lines.
pub fn sweep(folder: &Path) -> Vec<String> {
    let until = Instant::now() + EXIT_LIMIT;
    while Instant::now() < until {
        if processes_of(folder).is_empty() {
            return Vec::new();
        }
        thread::sleep(POLL_INTERVAL);
    }
    let left = processes_of(folder).into_iter().map(|(_, command)| command).collect();
    kill_all(folder);
    left
}

/// Kills every process of the folder until there is none.
pub fn kill_all(folder: &Path) {
    for _ in 0..100 {
        let left = processes_of(folder);
        if left.is_empty() {
            return;
        }
        left.iter().for_each(|(pid, _)| kill_process(*pid, Signal::KILL).unwrap_or_default());
        thread::sleep(POLL_INTERVAL);
    }
}

fn processes_of(folder: &Path) -> Vec<(Pid, String)> {
    let folder = folder.to_string_lossy();
    let me = std::process::id();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| pid.unsigned_abs() != me)
        .filter_map(|pid| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            let ours = command.contains(&*folder) && !command.contains(COMMAND);
            Some((Pid::from_raw(pid)?, command)).filter(|_| ours)
        })
        .collect()
}
