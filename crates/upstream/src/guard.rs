//! The process between a host and a stdio server. It starts the server in a process group of its own, adopts whatever
//! the server leaves behind, and ends all of it when the host is gone, however the host went.
//!
//! It notices the host's end by a pipe, the *lifeline*: only the host has the writing end, so the end of file is the
//! end of the host. It reads and writes nothing of the server's own traffic, which flows past it.

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// What a server leaves behind when it ends by itself gets less time: nobody waits for its work.
const LEFTOVER_GRACE: Duration = Duration::from_millis(300);
/// After SIGKILL only the kernel is waited for.
const LAST_WAIT: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(10);
/// As shells say it.
const NOT_FOUND: u8 = 127;

enum Event {
    HostGone,
    Ended(Pid, WaitStatus),
}

/// Runs the command until it ends or the host does; returns (or dies by) what the command ended with.
pub fn guard_main(lifeline: &Path, command: &[OsString]) -> ExitCode {
    match guard(lifeline, command) {
        Ok(status) => end_like(status),
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
    let_go_of_the_pipes()?;

    // One place for each thread's last word; neither ever has more than a few to say before it is heard.
    let (sender, events) = mpsc::sync_channel(16);
    let watcher = sender.clone();
    std::thread::spawn(move || {
        wait_for_end_of_file(lifeline);
        let _ = watcher.send(Event::HostGone);
    });
    std::thread::spawn(move || {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::empty()) {
            if sender.send(Event::Ended(pid, status)).is_err() {
                break;
            }
        }
    });
    Ok(watch(server, &events))
}

/// Until everything that the server was is gone. Returns what the server itself ended with.
fn watch(server: Pid, events: &mpsc::Receiver<Event>) -> Option<WaitStatus> {
    loop {
        match events.recv() {
            Ok(Event::Ended(pid, status)) if pid == server => {
                end_all(server, LEFTOVER_GRACE, events);
                return Some(status);
            }
            Ok(Event::Ended(..)) => {}
            Ok(Event::HostGone) => return end_all(server, GRACE, events),
            // Both threads ended: there is no child left.
            Err(_) => return None,
        }
    }
}

/// SIGTERM to the group and to every descendant, then SIGKILL, until there is none.
fn end_all(server: Pid, grace: Duration, events: &mpsc::Receiver<Event>) -> Option<WaitStatus> {
    let mut status = None;
    for (signal, patience) in [(Signal::TERM, grace), (Signal::KILL, LAST_WAIT)] {
        let until = Instant::now() + patience;
        send_to_all(server, signal);
        while Instant::now() < until {
            if descendants().is_empty() {
                return status;
            }
            match events.recv_timeout(TICK) {
                Ok(Event::Ended(pid, ended)) if pid == server => status = Some(ended),
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Timeout) if signal == Signal::KILL => send_to_all(server, signal),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return status,
            }
        }
    }
    status
}

fn send_to_all(server: Pid, signal: Signal) {
    let _ = rustix::process::kill_process_group(server, signal);
    for pid in descendants() {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Every living process below this one. Those that left the group, or whose parent died, are among them, because this
/// process adopts orphans. Zombies are not: they only wait to be reaped.
#[cfg(target_os = "linux")]
fn descendants() -> Vec<Pid> {
    let processes: Vec<(i32, i32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| Some((pid, parent_of(pid)?)))
        .collect();
    let mut found = vec![rustix::process::getpid().as_raw_nonzero().get()];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        found.extend(processes.iter().filter(|(_, its_parent)| *its_parent == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    found.into_iter().skip(1).filter_map(Pid::from_raw).collect()
}

/// The parent of a process that is not a zombie.
#[cfg(target_os = "linux")]
fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, parentheses included.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if state == "Z" { None } else { fields.next()?.parse().ok() }
}

/// Elsewhere the group is all that can be reached.
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

/// The server's pipes must have no other holder, or the host would not see them close.
fn let_go_of_the_pipes() -> Result<(), GuardError> {
    let null = File::options().read(true).write(true).open("/dev/null").map_err(GuardError::Null)?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

fn wait_for_end_of_file(mut lifeline: File) {
    let mut nothing = [0; 16];
    loop {
        match lifeline.read(&mut nothing) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Ends as the server did, so that the host sees the server's own end.
fn end_like(status: Option<WaitStatus>) -> ExitCode {
    let Some(status) = status else { return ExitCode::from(128 + 15) };
    if let Some(signal) = status.terminating_signal().and_then(Signal::from_named_raw) {
        let no_core = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
        let _ = rustix::process::setrlimit(rustix::process::Resource::Core, no_core);
        // The runtime's own handler of some signals takes the first one and lets the second one through.
        for _ in 0..2 {
            let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
        }
    }
    ExitCode::from(status.exit_status().and_then(|code| u8::try_from(code).ok()).unwrap_or(NOT_FOUND))
}
