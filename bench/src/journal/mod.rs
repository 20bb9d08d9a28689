//! `bench journal`: the overhead of the host's journal on an end-to-end call (client, `toolbus connect`, broker, host,
//! tool). Compares the same host with a journal in memory, on disk, and on disk for a replay-safe tool; a bare sync of the
//! same disk is measured as well. All of them are interleaved within every round.

mod cpu_time;
pub mod host;
mod report;
pub mod sync;

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context;
use clap::{Args, ValueEnum};
use tokio::process::Command;

use self::sync::SyncTime;
use crate::{
    figures::Figures,
    mcp::{Era, calls_started, connection::Connection, drive},
    own_broker,
    process::Running,
    results::median,
    tools::Tools,
};

const READY_LIMIT: Duration = Duration::from_secs(40);

#[derive(Args)]
pub struct JournalOptions {
    /// Number of rounds over all modes; the report shows medians over the rounds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Seconds per measurement.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Calls in flight when the rate is measured.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=256))]
    in_flight: u32,
    /// One short round without verdicts: fails if a mode has no figure.
    #[arg(long, conflicts_with_all = ["rounds", "seconds", "check"])]
    short: bool,
    /// Fail if a goal is missed.
    #[arg(long)]
    check: bool,
    /// Folder for results and tools [default: bench, in the target folder].
    #[arg(long, value_name = "DIR")]
    out: Option<std::path::PathBuf>,
}

impl JournalOptions {
    fn rounds(&self) -> u32 {
        if self.short { 1 } else { self.rounds }
    }

    fn seconds(&self) -> f64 {
        if self.short { 0.2 } else { self.seconds }
    }
}

/// Whether the host has a journal, and whether its tool is replay-safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    None,
    Safe,
    Never,
}

impl Mode {
    pub const ALL: [Mode; 3] = [Mode::None, Mode::Safe, Mode::Never];

    pub fn name(self) -> &'static str {
        match self {
            Mode::None => "none",
            Mode::Safe => "safe",
            Mode::Never => "never",
        }
    }

    pub fn description(self) -> &'static str {
        match self {
            Mode::None => "journal in memory",
            Mode::Safe => "journal, replay-safe tool",
            Mode::Never => "journal, tool not replay-safe",
        }
    }
}

/// One mode in one round.
#[derive(Clone, Copy)]
pub struct Sample {
    pub p50_us: f64,
    pub p99_us: f64,
    /// Calls per second with many in flight.
    pub rate: f64,
    /// CPU time of the whole machine per call, which varies less with the load of other machines than the rate does.
    pub cpu_us: f64,
}

/// Sync times, one of each kind per round.
pub struct Syncs {
    pub bare: Vec<SyncTime>,
    /// Through the journal.
    pub journal: Vec<SyncTime>,
}

pub async fn run(options: JournalOptions) -> anyhow::Result<ExitCode> {
    let tools = Tools::locate(options.out.clone())?;
    let toolbus = tools.toolbus()?;
    let folder = own_broker::folder()?;
    let (_broker, url, _) = own_broker::start(folder.path()).await?;
    let mut hosts = Vec::new();
    for mode in Mode::ALL {
        hosts.push(start_host(&tools, &url, folder.path(), mode).await?);
    }
    let (mut bare, mut journal) = (Vec::new(), Vec::new());
    let mut measured: Vec<(Mode, Vec<Sample>)> = Mode::ALL.map(|mode| (mode, Vec::new())).into();
    for round in 0..options.rounds() as usize {
        eprintln!("round {} of {}", round + 1, options.rounds());
        let window = Duration::from_secs_f64(options.seconds());
        let sync_folder = folder.path().to_owned();
        let sync = tokio::task::spawn_blocking(move || sync::bare(&sync_folder, window / 2));
        bare.push(sync.await.context("measure a sync")??);
        journal.push(sync::through_journal(folder.path(), window / 2).await?);
        // The order rotates, so that no mode is always the first.
        for offset in 0..Mode::ALL.len() {
            let (mode, samples) = &mut measured[(round + offset) % Mode::ALL.len()];
            let sample = measure(&toolbus, &url, folder.path(), *mode, &options).await?;
            let Sample { p50_us, rate, cpu_us, .. } = sample;
            eprintln!(
                "  {:30} {p50_us:6.0} µs alone {rate:7.0} calls/s {cpu_us:5.0} µs CPU per call",
                mode.description()
            );
            samples.push(sample);
        }
    }
    let (text, reached) = report::render(&measured, &Syncs { bare, journal }, &options);
    println!("{text}");
    if !options.short {
        std::fs::write(tools.out.join("journal.txt"), &text).context("write the report")?;
    }
    figures(&measured).ensure_complete()?;
    Ok(if options.check && !reached { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn figures(measured: &[(Mode, Vec<Sample>)]) -> Figures {
    let mut figures = Figures::default();
    for (mode, samples) in measured {
        let value = |value: fn(&Sample) -> f64| median(samples.iter().map(value));
        figures.require(format!("{}, alone", mode.description()), value(|sample| sample.p50_us));
        figures.require(format!("{}, many in flight", mode.description()), value(|sample| sample.rate));
    }
    figures
}

async fn start_host(tools: &Tools, url: &str, folder: &std::path::Path, mode: Mode) -> anyhow::Result<Running> {
    let mut command = Command::new(&tools.bench);
    command.args(["journal-host", "--broker", url, "--mode", mode.name(), "--folder"]).arg(folder);
    let mut host = Running::spawn(mode.name(), command, folder)?;
    host.line_after("ready", READY_LIMIT).await?;
    Ok(host)
}

/// Measures a new client of the host: first one call at a time, then many in flight.
async fn measure(
    toolbus: &std::path::Path,
    url: &str,
    folder: &std::path::Path,
    mode: Mode,
    options: &JournalOptions,
) -> anyhow::Result<Sample> {
    let mut connect = Command::new(toolbus);
    connect.args(["connect", "--broker", url, "--host", mode.name(), "--token-file"]).arg(folder.join("token"));
    let connection = Connection::stdio(connect, Era::Modern, &folder.join("client.log"))?;
    first_call(&connection).await?;
    let connection = Arc::new(connection);
    let window = Duration::from_secs_f64(options.seconds());
    let lone = drive(&connection, 1, window).await?;
    let (before, calls_before) = (cpu_time::of_machine()?, calls_started());
    let many = drive(&connection, options.in_flight, window).await?;
    let (cpu, calls) = (cpu_time::of_machine()? - before, calls_started() - calls_before);
    Ok(Sample {
        p50_us: lone.p50_us.context("calls are timed")?,
        p99_us: lone.p99_us.context("calls are timed")?,
        rate: many.rate,
        cpu_us: cpu.as_secs_f64() * 1e6 / calls as f64,
    })
}

/// Retries until a call succeeds: the host reports that it is ready before its tools are announced.
async fn first_call(connection: &Connection) -> anyhow::Result<()> {
    let retries = async {
        loop {
            match connection.echo("first").await {
                Ok(()) => return,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    tokio::time::timeout(READY_LIMIT, retries).await.context("no call succeeded")
}
