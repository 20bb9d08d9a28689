//! `chaos`: real processes under load, links cut at random bytes, and broker, host and workers killed with SIGKILL. At the
//! end no call may be lost, none may have had its effect twice, and every caller must have had exactly one answer.

mod answer;
mod client;
mod cutter;
mod dice;
pub mod effect;
mod keeper;
mod recovery;
mod run;
mod site;
mod table;
mod tally;
mod verdict;
mod warden;
mod warm_up;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use self::{run::Run, site::System, verdict::Verdict};
use crate::tools::{Tools, existing};

pub use warden::watch as watch_over;

#[derive(Args)]
pub struct ChaosOptions {
    /// Processes to kill: the broker, the host and workers.
    #[arg(long, default_value_t = 20)]
    pub kills: u64,
    /// Links to cut, each at a random byte.
    #[arg(long, default_value_t = 200)]
    pub cuts: u64,
    /// What is tried; a new one each time by default, and printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Clients, each with a worker process.
    #[arg(long, default_value_t = 10, value_parser = in_range)]
    pub workers: usize,
    /// Calls of each client at a time.
    #[arg(long, default_value_t = 4, value_parser = in_range)]
    pub in_flight: usize,
    /// Milliseconds between kills, on average.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(20..=60_000))]
    pub pace: u64,
    /// End the storm after so many minutes, whatever was reached, and judge that [default: when all is done].
    #[arg(long, value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(1..=1440))]
    pub minutes: Option<u64>,
    /// The toolbus to run [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// The same against the original, side by side. It is built on first use.
    #[arg(long)]
    original: bool,
    /// Write the verdicts to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the folder with logs, effects and the story of kills and cuts, also if every promise was kept.
    #[arg(long)]
    keep: bool,
    /// Leave out the tool that may run twice, for a toolbus without a journal.
    #[arg(long, hide = true)]
    without_safe: bool,
}

fn in_range(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=64).contains(&count) => Ok(count),
        _ => Err("expected between 1 and 64".to_owned()),
    }
}

impl ChaosOptions {
    /// The one that was given, or drawn when the run began.
    fn seed(&self) -> u64 {
        self.seed.unwrap_or_default()
    }
}

pub async fn run(mut options: ChaosOptions) -> anyhow::Result<ExitCode> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_micros() as u64);
    options.seed.get_or_insert(now % 1_000_000_000);
    let tools = Tools::locate(None)?;
    let binary = match &options.binary {
        Some(binary) => binary.canonicalize().with_context(|| format!("find {}", binary.display()))?,
        None => existing(tools.bench.with_file_name("toolbus"))?,
    };
    let mut systems = vec![System::Toolbus { binary, with_safe: !options.without_safe }];
    if options.original {
        systems.push(System::Original { programs: tools.original_programs().await? });
    }
    println!(
        "seed {}: {} kills, {} cuts, {} workers with {} calls in flight",
        options.seed(),
        options.kills,
        options.cuts,
        options.workers,
        options.in_flight
    );
    let mut verdicts = Vec::new();
    for system in systems {
        verdicts.push(under_guard(&options, system, &tools.bench).await?);
        // What was seen is not lost if somebody ends the next one.
        println!("\n{}", table::render(&verdicts));
    }
    if let Some(file) = &options.json {
        std::fs::write(file, serde_json::to_vec_pretty(&verdicts)?)
            .with_context(|| format!("write {}", file.display()))?;
    }
    Ok(judge(&verdicts, options.seed()))
}

/// Only our own system has promised anything.
fn judge(verdicts: &[Verdict], seed: u64) -> ExitCode {
    for verdict in verdicts.iter().filter(|verdict| !verdict.is_kept()) {
        println!("{}:\n  {}", verdict.system, verdict.complaints.join("\n  "));
    }
    match verdicts.first().is_some_and(Verdict::is_kept) {
        true => {
            println!("every promise was kept (seed {seed})");
            ExitCode::SUCCESS
        }
        false => {
            println!("BROKEN (seed {seed})");
            ExitCode::FAILURE
        }
    }
}

/// A run in a folder of its own. Whatever its end is, nothing that it started is left; the folder is kept if there is
/// something to look at.
async fn under_guard(options: &ChaosOptions, system: System, bench: &Path) -> anyhow::Result<Verdict> {
    let folder = tempfile::Builder::new().prefix("toolbus-chaos-").tempdir().context("make a folder")?;
    let warden = warden::post(bench, folder.path())?;
    let is_ours = matches!(system, System::Toolbus { .. });
    let mut terminated = signal(SignalKind::terminate()).context("listen for signals")?;
    let outcome = tokio::select! {
        outcome = Run::execute(options, system, bench.to_owned(), folder.path()) => outcome,
        _ = tokio::signal::ctrl_c() => return interrupted(folder.path()),
        _ = terminated.recv() => return interrupted(folder.path()),
    };
    drop(warden);
    let mut verdict = match outcome {
        Ok(verdict) => verdict,
        Err(error) => {
            warden::end_all(folder.path());
            bail!("{error:#} (the run's folder: {})", folder.keep().display())
        }
    };
    if is_ours && verdict.is_kept() && options.keep {
        println!("the run's folder: {}", folder.keep().display());
    } else if is_ours && !verdict.is_kept() {
        verdict.complaints.push(format!("logs and effects are in {}", folder.keep().display()));
    }
    Ok(verdict)
}

/// Nothing is awaited from here on, so nothing is started again either.
fn interrupted(folder: &Path) -> anyhow::Result<Verdict> {
    warden::end_all(folder);
    bail!("interrupted")
}
