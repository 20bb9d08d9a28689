//! `cluster`: NATS servers, brokers, hosts and workers as real processes under load. Each NATS server, each broker and each
//! host is killed, stopped, paused and cut off in turn; two of the hosts are a pool. At the end no call and no message with a receipt may be lost, no call may
//! have had its effect twice, and every caller must have exactly one answer.

mod gate;
pub mod health;
mod layout;
mod messages;
pub mod nats;
mod node;
mod plan;
mod report;
mod run;
mod running;
mod source;
mod timing;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use clap::Args;

use self::{layout::Programs, plan::Nodes, run::Run};
use crate::{faults::guard::run_in_folder, tools::Tools};

/// Milliseconds between a worker's answer and its next call.
const PAUSE: (u64, u64) = (100, 500);

#[derive(Args)]
pub struct ClusterOptions {
    /// Stop the blows after this many minutes and check what was done [default: when all are done].
    #[arg(long, value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: Option<u64>,
    /// Number of blows [default: 60, short: 12].
    #[arg(long, value_name = "N")]
    blows: Option<usize>,
    /// Number of clients, each with a worker process [default: 200, short: 20].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    workers: Option<u16>,
    /// A short run: each kind of blow once, few workers, short outages, 60 seconds at most.
    #[arg(long, conflicts_with = "minutes")]
    short: bool,
    /// Seed of the random choices [default: drawn and printed].
    #[arg(long)]
    seed: Option<u64>,
    /// Test one broker without NATS, for comparison.
    #[arg(long)]
    embedded: bool,
    /// The toolbus binary to test [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Write the verdict to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the folder with logs, effects and the timeline of blows even if all checks pass.
    #[arg(long)]
    keep: bool,
}

impl ClusterOptions {
    /// The given seed, or the one drawn at the start of the run.
    fn seed(&self) -> u64 {
        self.seed.unwrap_or_default()
    }

    fn nodes(&self) -> Nodes {
        let hosts = layout::HOSTS.len();
        if self.embedded { Nodes { nats: 0, brokers: 1, hosts } } else { Nodes { nats: 3, brokers: 3, hosts } }
    }

    fn blows(&self) -> usize {
        self.blows.unwrap_or(if self.short { 12 } else { 60 })
    }

    fn workers(&self) -> usize {
        self.workers.map_or(if self.short { 20 } else { 200 }, usize::from)
    }

    /// Pairs of a sender and a receiver of messages.
    fn pairs(&self) -> usize {
        if self.short { 3 } else { 8 }
    }

    /// Milliseconds before a struck process is restarted.
    fn down(&self) -> (u64, u64) {
        if self.short { (200, 1_000) } else { (500, 8_000) }
    }

    /// Milliseconds for which a node is paused or cut off: in the long run also longer than a lease.
    fn outages(&self) -> (u64, u64) {
        if self.short { (500, 2_500) } else { (1_000, 20_000) }
    }

    /// Time without blows before each.
    fn calm(&self) -> Duration {
        Duration::from_secs(if self.short { 1 } else { 4 })
    }

    fn time_limit(&self) -> Duration {
        match self.minutes {
            _ if self.short => Duration::from_secs(60),
            Some(minutes) => Duration::from_secs(minutes * 60),
            None => Duration::MAX / 4,
        }
    }
}

pub async fn run(mut options: ClusterOptions) -> anyhow::Result<ExitCode> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_micros() as u64);
    options.seed.get_or_insert(now % 1_000_000_000);
    let tools = Tools::locate(None)?;
    let toolbus = match &options.binary {
        Some(binary) => binary.canonicalize().with_context(|| format!("find {}", binary.display()))?,
        None => tools.toolbus()?,
    };
    let nats_server = if options.embedded { None } else { Some(tools.nats_server().await?) };
    println!("seed {}: {} blows, {} workers", options.seed(), options.blows(), options.workers());
    let run =
        async |folder: &Path| Run::execute(&options, Programs { toolbus, nats_server }, &tools.bench, folder).await;
    let (verdict, folder) = run_in_folder("cluster", &tools.bench, run).await?;
    println!("\n{}", report::render(&verdict));
    if let Some(file) = &options.json {
        std::fs::write(file, serde_json::to_vec_pretty(&verdict)?)
            .with_context(|| format!("write {}", file.display()))?;
    }
    if options.keep || !verdict.calls.passed() {
        println!("logs, effects and the timeline are in {}", folder.keep().display());
    }
    if verdict.calls.passed() {
        println!("all checks passed (seed {})", options.seed());
        return Ok(ExitCode::SUCCESS);
    }
    println!("FAILED (seed {}):\n  {}", options.seed(), verdict.calls.problems.join("\n  "));
    Ok(ExitCode::FAILURE)
}
