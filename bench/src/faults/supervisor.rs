//! Keeps a process running, as a service manager would: restarts it on the same data after a kill or an exit.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

use super::rng::Rng;

/// What is done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// SIGKILL.
    Kill,
    /// SIGTERM.
    Stop,
    /// SIGSTOP, and SIGCONT after this time.
    Pause(Duration),
}

/// A blow to a process; the reply says whether it was running.
pub struct KillRequest {
    pub blow: Blow,
    pub hit: oneshot::Sender<bool>,
}

/// How long a process may take to end after SIGTERM; a host may drain for 10 s and close its servers for 10 s.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Sends a signal to a process that is not waited for yet.
pub fn signal(child: &Child, signal: Signal) -> bool {
    let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
    pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
}

/// Hits a process that another task owns.
#[derive(Clone)]
pub struct KillHandle(mpsc::Sender<KillRequest>);

impl KillHandle {
    pub fn new() -> (Self, mpsc::Receiver<KillRequest>) {
        let (sender, receiver) = mpsc::channel(1);
        (Self(sender), receiver)
    }

    pub async fn hit(&self, blow: Blow) -> bool {
        let (hit, was_running) = oneshot::channel();
        self.0.send(KillRequest { blow, hit }).await.is_ok() && was_running.await.unwrap_or(false)
    }
}

/// A process to keep running.
pub struct Service {
    pub name: String,
    pub make: MakeCommand,
    pub log: PathBuf,
    /// Milliseconds before a restart.
    pub down: (u64, u64),
}

pub struct Supervisor {
    pub kill_handle: KillHandle,
    /// The id of the running process.
    pub process: watch::Receiver<Option<u32>>,
    /// Returns the failures of the process: those to start, and unexpected exits.
    pub task: JoinHandle<Vec<String>>,
}

pub type MakeCommand = Arc<dyn Fn() -> anyhow::Result<Command> + Send + Sync>;

impl Supervisor {
    pub fn start(service: Service, rng: Rng, stop: watch::Receiver<bool>) -> Self {
        let (kill_handle, kills) = KillHandle::new();
        let (running, process) = watch::channel(None);
        Self { kill_handle, process, task: tokio::spawn(supervise(service, rng, kills, stop, running)) }
    }
}

async fn supervise(
    service: Service,
    mut rng: Rng,
    mut kills: mpsc::Receiver<KillRequest>,
    mut stop: watch::Receiver<bool>,
    running: watch::Sender<Option<u32>>,
) -> Vec<String> {
    let Service { name, make, log, down } = service;
    let mut problems = Vec::new();
    while !*stop.borrow() {
        let mut child = match make().and_then(|mut command| Ok(command.spawn()?)) {
            Ok(child) => child,
            Err(error) => {
                problems.push(format!("cannot start the {name}: {error:#}"));
                return problems;
            }
        };
        running.send_replace(child.id());
        loop {
            tokio::select! {
                status = child.wait() => {
                    let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                    problems.push(format!("the {name} exited by itself ({status}): {}", last_line(&log)));
                }
                Some(KillRequest { blow, hit }) = kills.recv() => {
                    hit.send(true).ok();
                    match blow {
                        Blow::Pause(time) => {
                            signal(&child, Signal::STOP);
                            tokio::time::sleep(time).await;
                            signal(&child, Signal::CONT);
                            continue;
                        }
                        Blow::Stop => {
                            signal(&child, Signal::TERM);
                            if tokio::time::timeout(STOP_LIMIT, child.wait()).await.is_err() {
                                problems.push(format!("the {name} did not end within {STOP_LIMIT:?} after SIGTERM"));
                            }
                        }
                        Blow::Kill => {}
                    }
                    // `kill` also waits for the exit, so that the next process doesn't overlap with this one.
                    child.kill().await.ok();
                }
                _ = stop.changed() => {
                    child.kill().await.ok();
                }
            }
            break;
        }
        running.send_replace(None);
        stay_down(rng.millis(down.0, down.1), &mut kills).await;
    }
    problems
}

/// Waits while the process is down; kill requests meanwhile get the reply `false`.
pub async fn stay_down(time: Duration, kills: &mut mpsc::Receiver<KillRequest>) {
    let until = tokio::time::Instant::now() + time;
    while let Ok(Some(request)) = tokio::time::timeout_at(until, kills.recv()).await {
        request.hit.send(false).ok();
    }
}

/// The last line of a log, or nothing if there is none.
pub fn last_line(log: &Path) -> String {
    let log = std::fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&log).lines().last().unwrap_or_default().to_owned()
}
