//! `bench mcp`: a tool call on every path from a client to a server, compared with the direct call, with relays that do
//! nothing, with the bus alone and with a sync of the disk.

pub mod connection;
pub mod instructions;
mod paths;
mod plot;
mod programs;
pub mod relay;
mod report;
mod results;
pub mod server;

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use tokio::time::Instant;

use self::{connection::Connection, paths::RunningPath, programs::Programs};
pub use self::{
    paths::Path,
    results::{Results, Sample},
};
use crate::{
    contenders::Contender,
    goals::tool_calls,
    journal, load,
    load::{Load, Plan},
    own_broker, run,
    shape::LONE_SMALL,
    tools::Tools,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    Legacy,
    Modern,
}

impl Era {
    pub fn name(self) -> &'static str {
        match self {
            Era::Legacy => "legacy",
            Era::Modern => "modern",
        }
    }
}

#[derive(Args)]
pub struct McpOptions {
    /// Number of rounds over all paths; the report shows medians over the rounds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Seconds per measurement.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Only these paths, separated by commas. The direct path is always measured.
    #[arg(long, value_delimiter = ',', value_name = "PATH", value_parser = Path::from_name)]
    only: Vec<Path>,
    /// Calls in flight when the rate is measured.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=256))]
    in_flight: u32,
    /// One short round of the paths that need no installation, without verdicts: fails if one has no figure.
    #[arg(long, conflicts_with_all = ["rounds", "seconds", "check"])]
    short: bool,
    /// Fail if a goal is missed.
    #[arg(long)]
    check: bool,
    /// Folder for results and tools [default: bench, in the target folder].
    #[arg(long, value_name = "DIR")]
    out: Option<std::path::PathBuf>,
}

impl McpOptions {
    fn rounds(&self) -> u32 {
        if self.short { 1 } else { self.rounds }
    }

    fn seconds(&self) -> f64 {
        if self.short { 0.2 } else { self.seconds }
    }

    fn paths(&self) -> Vec<Path> {
        let chosen = |path: &Path| match self.only.as_slice() {
            [] => !(self.short && path.needs_installation()),
            only => *path == Path::Direct || only.contains(path),
        };
        Path::ALL.into_iter().filter(chosen).collect()
    }
}

pub async fn run(options: McpOptions) -> anyhow::Result<ExitCode> {
    let mut tools = Tools::locate(options.out.clone())?;
    tools.prepare(Contender::Toolbus).await.map_err(anyhow::Error::msg)?;
    let programs = Programs::new(tools.toolbus()?, tools.bench.clone(), &tools.out);
    let mut results = Results::default();
    let mut prepared = Vec::new();
    for path in options.paths() {
        match set_up(path, &programs).await {
            Ok((path, eras)) => prepared.extend(eras.into_iter().map(|era| (era, Arc::clone(&path)))),
            Err(error) => results.skipped.push((path, format!("{error:#}"))),
        }
    }
    for round in 1..=options.rounds() {
        eprintln!("round {round} of {}", options.rounds());
        let bus = run::measure(&tools, Contender::Toolbus, LONE_SMALL, options.seconds()).await.context("the bus")?;
        results.bus_us.extend(bus.p50_us);
        results.sync_us.push(bare_sync(options.seconds()).await?);
        results.journal_us.push(journaled_sync(options.seconds()).await?);
        for (era, path) in &prepared {
            match measure(&path.1, *era, &options).await {
                Ok(sample) => results.add(path.0, *era, sample),
                Err(error) => results.skipped.push((path.0, format!("{}, round {round}: {error:#}", era.name()))),
            }
        }
    }
    let verdicts = if options.short { Vec::new() } else { tool_calls::judge(&results) };
    let text = report::render(&results, &verdicts, &options);
    println!("{text}");
    if !options.short {
        std::fs::write(tools.out.join("mcp.txt"), &text).context("write the report")?;
        std::fs::write(tools.out.join("mcp.svg"), plot::render(&results, &options)).context("write the plot")?;
    }
    results.figures(&options.paths()).ensure_complete()?;
    let missed = verdicts.iter().any(|verdict| verdict.reached != Some(true));
    Ok(if options.check && missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The median of an append with fdatasync, on the disk on which broker and hosts have their data.
async fn bare_sync(seconds: f64) -> anyhow::Result<f64> {
    let folder = own_broker::folder()?;
    let window = Duration::from_secs_f64(seconds / 2.0);
    let sync = tokio::task::spawn_blocking(move || journal::sync::bare(folder.path(), window));
    Ok(sync.await.context("measure a sync")??.p50_us)
}

/// The median of an append through the journal and its thread, until the caller continues: what a call can't do without as
/// long as a sync must not block the thread that serves the others.
async fn journaled_sync(seconds: f64) -> anyhow::Result<f64> {
    let folder = own_broker::folder()?;
    let window = Duration::from_secs_f64(seconds / 2.0);
    Ok(journal::sync::through_journal(folder.path(), window).await?.p50_us)
}

type Prepared = Arc<(Path, RunningPath)>;

/// Starts a path and finds the eras in which a call succeeds.
async fn set_up(path: Path, programs: &Programs) -> anyhow::Result<(Prepared, Vec<Era>)> {
    eprintln!("setting up {}", path.name());
    programs.prepare(path).await?;
    let running = RunningPath::start(path, programs).await?;
    let mut eras = Vec::new();
    let mut last = None;
    for era in [Era::Modern, Era::Legacy] {
        match first_call(&running, era).await {
            Ok(_) => eras.push(era),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) if eras.is_empty() => Err(error),
        _ => Ok((Arc::new((path, running)), eras)),
    }
}

/// Starts a new client and measures the time to its first answer.
async fn first_call(running: &RunningPath, era: Era) -> anyhow::Result<(Arc<Connection>, Duration)> {
    let start = Instant::now();
    let connection = Arc::new(running.client(era)?);
    connection.open().await?;
    connection.once(&Bytes::new()).await?;
    Ok((connection, start.elapsed()))
}

async fn measure(running: &RunningPath, era: Era, options: &McpOptions) -> anyhow::Result<Sample> {
    let (connection, first) = first_call(running, era).await?;
    let window = Duration::from_secs_f64(options.seconds());
    let lone = drive(&connection, 1, window).await?;
    let many = drive(&connection, options.in_flight, window).await?;
    Ok(Sample {
        p50_us: lone.p50_us.context("calls are timed")?,
        p99_us: lone.p99_us.context("calls are timed")?,
        rate: many.rate,
        first_us: first.as_secs_f64() * 1e6,
    })
}

static CALLS: AtomicU64 = AtomicU64::new(0);

/// Number of calls since the start of this process.
pub fn calls_started() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// Keeps `in_flight` calls outstanding on the connection.
pub async fn drive(connection: &Arc<Connection>, in_flight: u32, window: Duration) -> anyhow::Result<load::Sample> {
    load::drive(vec![Arc::clone(connection)], Bytes::new(), Plan::new(in_flight, window)).await
}

impl Load for Arc<Connection> {
    async fn once(&self, _: &Bytes) -> anyhow::Result<()> {
        // Every call is different, so that the host never joins it to an earlier client's call of the same agent.
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        self.echo(&format!("a text of some length that is said back, as a tool's answer would be {call}")).await
    }
}
