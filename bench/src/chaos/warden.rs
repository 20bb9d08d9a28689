//! No process of a run outlives it. All of them have the run's folder in their command line; whoever has it after the end
//! is ended. A process of its own does the same when the run itself is killed.

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

/// How long processes that were told to go have for it.
const LEAVE_LIMIT: Duration = Duration::from_secs(8);
const LOOK: Duration = Duration::from_millis(20);

/// Starts the process that watches over ours.
pub fn post(bench: &Path, folder: &Path) -> anyhow::Result<Child> {
    let mut command = Command::new(bench);
    command.arg("chaos-warden").arg(folder).stdin(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true);
    command.spawn().context("start the warden")
}

/// The warden itself: our stdin ends with the run.
pub fn watch(folder: &Path) {
    std::io::stdin().read_to_end(&mut Vec::new()).ok();
    end_all(folder);
}

/// Waits until every process of the folder is gone. Those that don't go by themselves are killed, and named.
pub fn sweep(folder: &Path) -> Vec<String> {
    let until = Instant::now() + LEAVE_LIMIT;
    while Instant::now() < until {
        if processes_of(folder).is_empty() {
            return Vec::new();
        }
        thread::sleep(LOOK);
    }
    let left = processes_of(folder).into_iter().map(|(_, command)| command).collect();
    end_all(folder);
    left
}

/// Kills every process of the folder until there is none.
pub fn end_all(folder: &Path) {
    for _ in 0..100 {
        let left = processes_of(folder);
        if left.is_empty() {
            return;
        }
        left.iter().for_each(|(pid, _)| kill_process(*pid, Signal::KILL).unwrap_or_default());
        thread::sleep(LOOK);
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
            let ours = command.contains(&*folder) && !command.contains("chaos-warden");
            Some((Pid::from_raw(pid)?, command)).filter(|_| ours)
        })
        .collect()
}
