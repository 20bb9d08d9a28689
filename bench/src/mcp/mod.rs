//! `bench mcp`: a tool call on every path from a client to a server, compared with the direct call.

pub mod connection;
mod paths;
mod programs;
mod report;
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
use clap::Args;
use hdrhistogram::Histogram;
use tokio::time::Instant;

use self::{
    connection::Connection,
    paths::{Path, RunningPath},
    programs::Programs,
};
use crate::{contenders::Contender, tools::Tools};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    Legacy,
    Modern,
}

impl Era {
    fn name(self) -> &'static str {
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
    /// Fail if a goal is missed.
    #[arg(long)]
    check: bool,
    /// Folder for results and tools [default: bench, in the target folder].
    #[arg(long, value_name = "DIR")]
    out: Option<std::path::PathBuf>,
}

/// One path in one round.
#[derive(Clone, Copy)]
pub struct Sample {
    pub p50_us: f64,
    pub p99_us: f64,
    /// Calls per second with many in flight.
    pub rate: f64,
    /// Time from the start of a new client to its first answer.
    pub first_us: f64,
}

pub struct Measured {
    pub path: Path,
    pub era: Era,
    pub samples: Vec<Sample>,
}

pub async fn run(options: McpOptions) -> anyhow::Result<ExitCode> {
    let mut tools = Tools::locate(options.out.clone())?;
    tools.prepare(Contender::Toolbus).await.map_err(anyhow::Error::msg)?;
    let programs = Programs::new(tools.path(Contender::Toolbus)?.to_owned(), tools.bench.clone(), &tools.out);
    let chosen = |path: &Path| *path == Path::Direct || options.only.is_empty() || options.only.contains(path);
    let mut prepared = Vec::new();
    let mut skipped = Vec::new();
    for path in Path::ALL.into_iter().filter(chosen) {
        match set_up(path, &programs).await {
            Ok((path, eras)) => prepared.extend(eras.into_iter().map(|era| (era, Arc::clone(&path)))),
            Err(error) => skipped.push((path, format!("{error:#}"))),
        }
    }
    let empty = |(era, prepared): &(Era, Prepared)| Measured { path: prepared.0, era: *era, samples: Vec::new() };
    let mut measured: Vec<Measured> = prepared.iter().map(empty).collect();
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        for ((era, path), into) in prepared.iter().zip(&mut measured) {
            match measure(&path.1, *era, &options).await {
                Ok(sample) => into.samples.push(sample),
                Err(error) => skipped.push((path.0, format!("{}, round {round}: {error:#}", era.name()))),
            }
        }
    }
    let (text, reached) = report::render(&measured, &skipped, &options);
    println!("{text}");
    std::fs::write(tools.out.join("mcp.txt"), &text).context("write the report")?;
    Ok(if options.check && !reached { ExitCode::FAILURE } else { ExitCode::SUCCESS })
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
async fn first_call(running: &RunningPath, era: Era) -> anyhow::Result<(Connection, Duration)> {
    let start = Instant::now();
    let connection = running.client(era)?;
    connection.open().await?;
    connection.echo("first").await?;
    Ok((connection, start.elapsed()))
}

async fn measure(running: &RunningPath, era: Era, options: &McpOptions) -> anyhow::Result<Sample> {
    let (connection, first) = first_call(running, era).await?;
    let connection = Arc::new(connection);
    let window = Duration::from_secs_f64(options.seconds);
    let lone = drive(&connection, 1, window).await?;
    let many = drive(&connection, options.in_flight, window).await?;
    Ok(Sample {
        p50_us: lone.value_at_quantile(0.5) as f64 / 1e3,
        p99_us: lone.value_at_quantile(0.99) as f64 / 1e3,
        rate: many.len() as f64 / window.as_secs_f64(),
        first_us: first.as_secs_f64() * 1e6,
    })
}

static CALLS: AtomicU64 = AtomicU64::new(0);

/// Number of calls since the start of this process.
pub fn calls_started() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// Keeps `in_flight` calls outstanding; returns their latencies in nanoseconds.
pub async fn drive(connection: &Arc<Connection>, in_flight: u32, window: Duration) -> anyhow::Result<Histogram<u64>> {
    let warm = Instant::now() + window / 4;
    let end = warm + window;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..in_flight {
        let connection = Arc::clone(connection);
        callers.spawn(async move {
            let mut times = Histogram::<u64>::new(3).context("a histogram")?;
            loop {
                let start = Instant::now();
                if start >= end {
                    return anyhow::Ok(times);
                }
                // Every call is different, so that the host never joins it to an earlier client's call of the same
                // agent.
                let call = CALLS.fetch_add(1, Ordering::Relaxed);
                connection
                    .echo(&format!("a text of some length that is said back, as a tool's answer would be {call}"))
                    .await?;
                if start >= warm {
                    times.record(start.elapsed().as_nanos() as u64).ok();
                }
            }
        });
    }
    let mut all = Histogram::<u64>::new(3).context("a histogram")?;
    while let Some(times) = callers.join_next().await {
        all.add(times.context("a caller")??).context("add histograms")?;
    }
    Ok(all)
}
