//! The process of the hostile agents. It misbehaves in one way for some time, prints what it sent and got, and keeps its
//! connections open until it is killed.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{pacer::Pacer, tally::Tally, usage, ways::Way};

/// Pause of a hostile agent after a lost or refused connection.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

#[derive(Args)]
pub struct HostileOptions {
    #[arg(long)]
    pub way: Way,
    /// The broker's URL.
    #[arg(long)]
    pub url: String,
    /// A token file for each agent.
    #[arg(long, required = true, num_args = 1..)]
    pub tokens: Vec<PathBuf>,
    /// Maximum requests per second of each agent.
    #[arg(long)]
    pub rate: f64,
    #[arg(long)]
    pub seconds: f64,
}

/// What the hostile agents sent and got, for the report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub seconds: f64,
    /// CPU that the process used.
    pub cores: f64,
    pub counts: BTreeMap<String, u64>,
}

/// One hostile agent, as the ways see it. All its tasks share the pacer.
pub struct Agent {
    pub bus: String,
    pub token: String,
    pub pacer: Pacer,
    pub tally: Arc<Tally>,
}

impl Agent {
    /// The address that the broker listens on.
    pub fn address(&self) -> &str {
        self.bus.trim_start_matches("ws://").trim_end_matches("/bus")
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}/mcp", self.address())
    }
}

pub async fn misbehave(options: HostileOptions) -> anyhow::Result<()> {
    let tally = Arc::new(Tally::default());
    let end = Instant::now() + Duration::from_secs_f64(options.seconds);
    for file in &options.tokens {
        let token = std::fs::read_to_string(file).context("read a token")?.trim().to_owned();
        let (bus, pacer) = (options.url.clone(), Pacer::new(options.rate, end));
        let agent = Arc::new(Agent { bus, token, pacer, tally: Arc::clone(&tally) });
        for task in 0..options.way.tasks() {
            tokio::spawn(persist(options.way, Arc::clone(&agent), task));
        }
    }
    tokio::time::sleep_until(end).await;
    let cores = usage::cpu_seconds(std::process::id())? / options.seconds;
    let outcome = Outcome { seconds: options.seconds, cores, counts: tally.counts() };
    println!("outcome {}", serde_json::to_string(&outcome)?);
    std::future::pending().await
}

/// Starts again whenever a connection is refused or lost.
async fn persist(way: Way, agent: Arc<Agent>, task: usize) {
    loop {
        if let Err(error) = way.run(&agent, task).await {
            agent.tally.error(&error);
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}
