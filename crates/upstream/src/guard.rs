//! The process between a host and a stdio server. It starts the server in a process group of its own, adopts the
//! server's orphans, and terminates all of them when the host is gone, even after a SIGKILL.
//!
//! It detects the end of the host by a pipe, the *lifeline*: only the host has the writing end, so end of file means
//! that the host is gone. The server's own pipes don't pass through the guard.

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// Orphans of a server that exited on its own get less time, because no caller waits for their work.
const LEFTOVER_GRACE: Duration = Duration::from_millis(300);
/// How long to wait for the kernel after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// How often SIGKILL is repeated, for processes that were started meanwhile.
const KILL_INTERVAL: Duration = Duration::from_millis(50);
/// The exit code of shells for a command that was not found.
const NOT_FOUND: u8 = 127;

enum Event {
    HostGone,
    Ended(Pid, WaitStatus),
    /// No child is left, and no descendant either: this process adopts all orphans.
    AllEnded,
}

/// Runs the command until it exits or the host is gone. Exits with the command's exit code or signal.
pub fn guard_main(lifeline: &Path, command: &[OsString]) -> ExitCode {
    match guard(lifeline, command) {
        Ok(status) => exit_like(status),
        Err(error) => {
            eprintln!("toolbus guard: {error}");
            ExitCode::from(NOT_FOUND)
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum GuardError {
    #[error("no command")]
    NoCommand,
    #[error("the host is gone, or its lifeline can't be opened: {0}")]
    NoHost(std::io::Error),
    #[error("{0:?} can't be run: {1}")]
    Run(OsString, std::io::Error),
    #[error("the process can't be set up: {0}")]
    Setup(#[from] rustix::io::Errno),
    #[error("the process can't be set up: {0}")]
    Null(std::io::Error),
}

fn guard(lifeline: &Path, command: &[OsString]) -> Result<Option<WaitStatus>, GuardError> {
    let (program, args) = command.split_first().ok_or(GuardError::NoCommand)?;
    let lifeline = File::open(lifeline).map_err(GuardError::NoHost)?;
    adopt_orphans()?;
    let child = Command::new(program)
        .args(args)
        .process_group(0)
        .spawn()
        .map_err(|error| GuardError::Run(program.clone(), error))?;
    let server = Pid::from_child(&child);
    release_stdio()?;

    // A few events at most are pending: the end of the host, and exited children until the main thread reads them.
    let (sender, events) = mpsc::sync_channel(16);
    let watcher = sender.clone();
    std::thread::spawn(move || {
        wait_for_end_of_file(lifeline);
        let _ = watcher.send(Event::HostGone);
    });
    std::thread::spawn(move || reap(&sender));
    Ok(watch(server, &events))
}

/// Waits for children until none is left.
fn reap(events: &mpsc::SyncSender<Event>) {
    loop {
        let event = match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) => Event::Ended(pid, status),
            Ok(None) | Err(rustix::io::Errno::INTR) => continue,
            Err(_) => Event::AllEnded,
        };
        let is_last = matches!(event, Event::AllEnded);
        if events.send(event).is_err() || is_last {
            return;
        }
    }
}

/// Returns when all processes of the server are gone, with the exit status of the server itself.
fn watch(server: Pid, events: &mpsc::Receiver<Event>) -> Option<WaitStatus> {
    loop {
        match events.recv() {
            Ok(Event::Ended(pid, status)) if pid == server => {
                terminate_all(server, LEFTOVER_GRACE, events);
                return Some(status);
            }
            Ok(Event::Ended(..)) => {}
            Ok(Event::HostGone) => return terminate_all(server, GRACE, events),
            Ok(Event::AllEnded) | Err(_) => return None,
        }
    }
}

/// Sends SIGTERM, then SIGKILL, to the process group and all descendants, until none is left.
fn terminate_all(server: Pid, grace: Duration, events: &mpsc::Receiver<Event>) -> Option<WaitStatus> {
    let mut status = None;
    for (signal, timeout) in [(Signal::TERM, grace), (Signal::KILL, KILL_TIMEOUT)] {
        let until = Instant::now() + timeout;
        signal_all(server, signal);
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                break;
            }
            let pause = if signal == Signal::KILL { rest.min(KILL_INTERVAL) } else { rest };
            match events.recv_timeout(pause) {
                Ok(Event::Ended(pid, ended)) if pid == server => status = Some(ended),
                Ok(Event::Ended(..) | Event::HostGone) => {}
                Err(mpsc::RecvTimeoutError::Timeout) if signal == Signal::KILL => signal_all(server, signal),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Ok(Event::AllEnded) | Err(mpsc::RecvTimeoutError::Disconnected) => return status,
            }
        }
    }
    status
}

fn signal_all(server: Pid, signal: Signal) {
    let _ = rustix::process::kill_process_group(server, signal);
    for pid in descendants() {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// All descendants of this process. Processes that left the group or lost their parent are included, because this
/// process is the subreaper.
#[cfg(target_os = "linux")]
fn descendants() -> Vec<Pid> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    // Not every kernel has the lists of children. Without them the parents of all processes on the machine are read, which
    // takes long beside thousands of processes.
    let has_lists = Path::new(&format!("/proc/{own}/task/{own}/children")).exists();
    let all = if has_lists { Vec::new() } else { all_parents() };
    let mut found = vec![own];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        match has_lists {
            true => found.extend(listed_children(parent)),
            false => found.extend(all.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid)),
        }
        at += 1;
    }
    found.into_iter().skip(1).filter_map(Pid::from_raw).collect()
}

/// The kernel's lists of the children of each thread of a process.
#[cfg(target_os = "linux")]
fn listed_children(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// All processes with their parents.
#[cfg(target_os = "linux")]
fn all_parents() -> Vec<(i32, i32)> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, parent_of(pid)?))).collect()
}

#[cfg(target_os = "linux")]
fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name in parentheses may itself contain parentheses.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// On other systems only the process group can be signalled.
#[cfg(not(target_os = "linux"))]
fn descendants() -> Vec<Pid> {
    Vec::new()
}

#[cfg(target_os = "linux")]
fn adopt_orphans() -> Result<(), rustix::io::Errno> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
}

#[cfg(not(target_os = "linux"))]
fn adopt_orphans() -> Result<(), rustix::io::Errno> {
    Ok(())
}

/// Releases the server's pipes. Otherwise the host would not see end of file when the server exits.
fn release_stdio() -> Result<(), GuardError> {
    let null = File::options().read(true).write(true).open("/dev/null").map_err(GuardError::Null)?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

fn wait_for_end_of_file(mut lifeline: File) {
    let mut buffer = [0; 16];
    loop {
        match lifeline.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Exits with the server's exit code or signal, so that the host sees how the server exited.
fn exit_like(status: Option<WaitStatus>) -> ExitCode {
    let Some(status) = status else { return ExitCode::from(128 + 15) };
    if let Some(signal) = status.terminating_signal().and_then(Signal::from_named_raw) {
        let no_core = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
        let _ = rustix::process::setrlimit(rustix::process::Resource::Core, no_core);
        // The Rust runtime handles some signals once and then restores the default action, so the second one kills.
        for _ in 0..2 {
            let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
        }
    }
    ExitCode::from(status.exit_status().and_then(|code| u8::try_from(code).ok()).unwrap_or(NOT_FOUND))
}
