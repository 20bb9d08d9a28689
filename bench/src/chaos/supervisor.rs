//! Keeps a broker or a host running, as a service manager would: restarts it on the same data after a kill or an exit.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    process::Command,
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

use super::rng::Rng;

/// Downtime before a restart.
const DOWN_MS: (u64, u64) = (0, 300);

/// A request to kill a process; the reply says whether it was running.
pub type KillRequest = oneshot::Sender<bool>;

/// Kills a process that another task owns.
#[derive(Clone)]
pub struct KillHandle(mpsc::Sender<KillRequest>);

impl KillHandle {
    pub fn new() -> (Self, mpsc::Receiver<KillRequest>) {
        let (sender, receiver) = mpsc::channel(1);
        (Self(sender), receiver)
    }

    pub async fn kill(&self) -> bool {
        let (sender, killed) = oneshot::channel();
        self.0.send(sender).await.is_ok() && killed.await.unwrap_or(false)
    }
}

pub struct Supervisor {
    pub kill_handle: KillHandle,
    /// Returns the failures of the process: those to start, and unexpected exits.
    pub task: JoinHandle<Vec<String>>,
}

pub type MakeCommand = Arc<dyn Fn() -> anyhow::Result<Command> + Send + Sync>;

impl Supervisor {
    pub fn start(name: &'static str, make: MakeCommand, log: PathBuf, rng: Rng, stop: watch::Receiver<bool>) -> Self {
        let (kill_handle, kills) = KillHandle::new();
        Self { kill_handle, task: tokio::spawn(supervise(name, make, log, rng, kills, stop)) }
    }
}

async fn supervise(
    name: &'static str,
    make: MakeCommand,
    log: PathBuf,
    mut rng: Rng,
    mut kills: mpsc::Receiver<KillRequest>,
    mut stop: watch::Receiver<bool>,
) -> Vec<String> {
    let mut problems = Vec::new();
    while !*stop.borrow() {
        let mut child = match make().and_then(|mut command| Ok(command.spawn()?)) {
            Ok(child) => child,
            Err(error) => {
                problems.push(format!("cannot start the {name}: {error:#}"));
                return problems;
            }
        };
        tokio::select! {
            status = child.wait() => {
                let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                problems.push(format!("the {name} exited by itself ({status}): {}", last_line(&log)));
            }
            Some(killed) = kills.recv() => {
                // `kill` also waits for the exit, so that the next process doesn't overlap with this one.
                child.kill().await.ok();
                killed.send(true).ok();
            }
            _ = stop.changed() => {
                child.kill().await.ok();
            }
        }
        stay_down(rng.millis(DOWN_MS.0, DOWN_MS.1), &mut kills).await;
    }
    problems
}

/// Waits while the process is down; kill requests meanwhile get the reply `false`.
pub async fn stay_down(time: Duration, kills: &mut mpsc::Receiver<KillRequest>) {
    let until = tokio::time::Instant::now() + time;
    while let Ok(Some(killed)) = tokio::time::timeout_at(until, kills.recv()).await {
        killed.send(false).ok();
    }
}

fn last_line(log: &PathBuf) -> String {
    let log = std::fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&log).lines().last().unwrap_or_default().to_owned()
}
