//! Keeps a broker or a host running, as a service manager would: whoever ends, by a kill or by itself, is started again
//! on the same data.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    process::Command,
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

use super::dice::Dice;

/// How long something stays down.
const DOWN_MS: (u64, u64) = (0, 300);

/// A wish to kill; the answer says whether there was something to kill.
pub type Kill = oneshot::Sender<bool>;

/// The way to kill what somebody else keeps.
#[derive(Clone)]
pub struct Trigger(mpsc::Sender<Kill>);

impl Trigger {
    pub fn new() -> (Self, mpsc::Receiver<Kill>) {
        let (sender, receiver) = mpsc::channel(1);
        (Self(sender), receiver)
    }

    pub async fn kill(&self) -> bool {
        let (sender, killed) = oneshot::channel();
        self.0.send(sender).await.is_ok() && killed.await.unwrap_or(false)
    }
}

pub struct Keeper {
    pub trigger: Trigger,
    /// Ends with what the process did on its own.
    pub keeping: JoinHandle<Vec<String>>,
}

pub type Make = Arc<dyn Fn() -> anyhow::Result<Command> + Send + Sync>;

impl Keeper {
    pub fn start(name: &'static str, make: Make, log: PathBuf, dice: Dice, stop: watch::Receiver<bool>) -> Self {
        let (trigger, kills) = Trigger::new();
        Self { trigger, keeping: tokio::spawn(keep(name, make, log, dice, kills, stop)) }
    }
}

async fn keep(
    name: &'static str,
    make: Make,
    log: PathBuf,
    mut dice: Dice,
    mut kills: mpsc::Receiver<Kill>,
    mut stop: watch::Receiver<bool>,
) -> Vec<String> {
    let mut complaints = Vec::new();
    while !*stop.borrow() {
        let mut child = match make().and_then(|mut command| Ok(command.spawn()?)) {
            Ok(child) => child,
            Err(error) => {
                complaints.push(format!("the {name} can't be started: {error:#}"));
                return complaints;
            }
        };
        tokio::select! {
            status = child.wait() => {
                let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                complaints.push(format!("the {name} ended by itself ({status}): {}", last_line(&log)));
            }
            Some(killed) = kills.recv() => {
                // It waits as well, so nothing of it is left when the next one starts.
                child.kill().await.ok();
                killed.send(true).ok();
            }
            _ = stop.changed() => {
                child.kill().await.ok();
            }
        }
        down(dice.millis(DOWN_MS.0, DOWN_MS.1), &mut kills).await;
    }
    complaints
}

/// Stays down for that time; who is down can't be killed.
pub async fn down(time: Duration, kills: &mut mpsc::Receiver<Kill>) {
    let until = tokio::time::Instant::now() + time;
    while let Ok(Some(killed)) = tokio::time::timeout_at(until, kills.recv()).await {
        killed.send(false).ok();
    }
}

fn last_line(log: &PathBuf) -> String {
    let log = std::fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&log).lines().last().unwrap_or_default().to_owned()
}
