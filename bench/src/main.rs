//! Benchmarks of the bus and of tool calls. `run` compares the bus with its contenders; the hidden commands are the
//! processes that the benchmarks start: relays, echoing hosts, and workers that measure.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod backlog;
mod chaos;
mod cli;
mod cluster;
mod contenders;
mod faults;
mod figures;
mod flood;
mod goals;
mod idle;
mod journal;
mod load;
mod mcp;
mod own_broker;
mod process;
mod quiet;
mod report;
mod results;
mod run;
mod shape;
mod strangers;
mod tools;
mod wire;

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use clap::Parser;
use tokio::runtime::Builder;

use crate::{
    cli::{Cli, Command, Peer, WorkerOptions},
    contenders::Contender,
    shape::Shape,
    wire::{fast::Fast, relay, tungstenite::Tungstenite},
};

/// Maximum lifetime of a process of a measurement, in case the orchestrator fails to stop it.
const LIFETIME: Duration = Duration::from_secs(10 * 60);

fn main() -> ExitCode {
    match execute(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(options) => {
            return one_thread()?.block_on(run::run(options));
        }
        Command::ClusterSpeed(options) => {
            return one_thread()?.block_on(run::run_cluster(options));
        }
        Command::Backlog(options) => {
            return one_thread()?.block_on(backlog::run(options));
        }
        Command::Strangers(options) => {
            return one_thread()?.block_on(strangers::run(options));
        }
        Command::Idle(options) => {
            return one_thread()?.block_on(idle::run(options));
        }
        Command::Mcp(options) => {
            return one_thread()?.block_on(mcp::run(options));
        }
        Command::Instructions(options) => {
            return one_thread()?.block_on(mcp::instructions::run(options));
        }
        Command::Chaos(options) => {
            return one_thread()?.block_on(chaos::run(options));
        }
        Command::Cluster(options) => {
            return one_thread()?.block_on(cluster::run(options));
        }
        Command::Flood(options) => {
            return one_thread()?.block_on(flood::run(options));
        }
        Command::FloodHostile(options) => {
            process::exit_with_parent();
            let runtime = Builder::new_multi_thread().enable_all().build().context("start a runtime")?;
            runtime.block_on(limited(flood::misbehave(options)))?;
        }
        Command::FloodControl(options) => {
            process::exit_with_parent();
            flood::burn(&options);
        }
        Command::Journal(options) => {
            return one_thread()?.block_on(journal::run(options));
        }
        Command::JournalHost(options) => {
            process::exit_with_parent();
            one_thread()?.block_on(limited(journal::host::run(options)))?;
        }
        Command::McpServer(options) => mcp::server::serve(&options)?,
        Command::McpRelay(options) => mcp::relay::serve(&options)?,
        Command::EffectServer(options) => faults::effect::serve(&options)?,
        Command::FaultWatchdog { folder } => faults::watchdog::watch(&folder),
        Command::Relay { contender } => {
            process::exit_with_parent();
            serve_relay(contender)?;
        }
        Command::Host(Peer { contender, url }) => {
            process::exit_with_parent();
            let host = contenders::host(contender, &url, || println!("ready"));
            one_thread()?.block_on(limited(host))?;
        }
        Command::Worker(options) => {
            process::exit_with_parent();
            one_thread()?.block_on(limited(measure(options)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn serve_relay(contender: Contender) -> anyhow::Result<()> {
    match contender {
        Contender::RelayFast => one_thread()?.block_on(limited(relay::serve::<Fast>())),
        Contender::RelayMultiThread => Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("start a runtime")?
            .block_on(limited(relay::serve::<Tungstenite>())),
        other => bail!("{other} is not a relay"),
    }
}

async fn measure(options: WorkerOptions) -> anyhow::Result<()> {
    let Peer { contender, url } = options.peer;
    let plan = options.shape.plan(Duration::from_secs_f64(options.seconds));
    let sample = contenders::measure(contender, &url, options.shape, plan).await?;
    println!("sample {}", serde_json::to_string(&sample)?);
    Ok(())
}

async fn limited(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::time::timeout(LIFETIME, work).await.context("the process exceeded its lifetime")?
}

fn one_thread() -> anyhow::Result<tokio::runtime::Runtime> {
    Builder::new_current_thread().enable_all().build().context("start a runtime")
}

impl Shape {
    /// How a worker drives this shape for the given time.
    fn plan(self, window: Duration) -> load::Plan {
        match self {
            Shape::Call { in_flight, .. } => load::Plan::new(in_flight, window),
            Shape::OneWay | Shape::Drain { .. } => {
                load::Plan { limit: shape::ONE_WAY_LIMIT, ..load::Plan::new(shape::ONE_WAY_WINDOW, window) }
            }
        }
    }
}
