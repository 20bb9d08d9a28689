//! `chaos`: real processes under load; links are cut at random bytes, and broker, host and workers are killed with
//! SIGKILL, stopped with SIGTERM and paused with SIGSTOP. At the end no call may be lost or have had its effect twice, and every call must have exactly one answer.

mod cutter;
mod deployment;
mod fault;
mod run;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use clap::Args;

use self::{deployment::System, fault::Fault, run::Run};
use crate::{
    faults::{guard::run_in_folder, table, verdict::Verdict},
    tools::Tools,
};

#[derive(Args)]
pub struct ChaosOptions {
    /// Number of processes to kill: the broker, the host and workers.
    #[arg(long, default_value_t = 20)]
    pub kills: u64,
    /// Number of processes to stop with SIGTERM, or to pause with SIGSTOP for a while, between the kills.
    #[arg(long, default_value_t = 0)]
    pub terms: u64,
    /// Number of links to cut, each at a random byte.
    #[arg(long, default_value_t = 200)]
    pub cuts: u64,
    /// Seed of the random choices [default: drawn and printed].
    #[arg(long)]
    seed: Option<u64>,
    /// Number of clients, each with a worker process.
    #[arg(long, default_value_t = 10, value_parser = in_range)]
    pub workers: usize,
    /// Concurrent calls per client.
    #[arg(long, default_value_t = 4, value_parser = in_range)]
    pub in_flight: usize,
    /// Average milliseconds between kills.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(20..=60_000))]
    pub pace: u64,
    /// Stop the kills and cuts after this many minutes and check what was done [default: when all are done].
    #[arg(long, value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(1..=1440))]
    pub minutes: Option<u64>,
    /// The toolbus binary to test [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Also test the original system, for comparison. It is built on first use.
    #[arg(long)]
    original: bool,
    /// Write the verdicts to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the folder with logs, effects and the timeline of kills and cuts even if all checks pass.
    #[arg(long)]
    keep: bool,
    /// Leave out the replay-safe tool, for a toolbus without a journal.
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
    /// The given seed, or the one drawn at the start of the run.
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
        None => tools.toolbus()?,
    };
    let mut systems = vec![System::Toolbus { binary, with_safe: !options.without_safe }];
    if options.original {
        systems.push(System::Original { programs: tools.original_programs().await? });
    }
    println!(
        "seed {}: {} kills, {} stops and pauses, {} cuts, {} workers with {} calls in flight",
        options.seed(),
        options.kills,
        options.terms,
        options.cuts,
        options.workers,
        options.in_flight
    );
    let mut verdicts = Vec::new();
    for system in systems {
        verdicts.push(run_guarded(&options, system, &tools.bench).await?);
        // Printed after each system, so that interrupting the next one doesn't lose it.
        println!("\n{}", table::render(&verdicts, &Fault::ALL.map(Fault::name)));
    }
    if let Some(file) = &options.json {
        std::fs::write(file, serde_json::to_vec_pretty(&verdicts)?)
            .with_context(|| format!("write {}", file.display()))?;
    }
    Ok(judge(&verdicts, options.seed()))
}

/// Only the verdict on our own system decides the exit code.
fn judge(verdicts: &[Verdict], seed: u64) -> ExitCode {
    for verdict in verdicts.iter().filter(|verdict| !verdict.passed()) {
        println!("{}:\n  {}", verdict.system, verdict.problems.join("\n  "));
    }
    match verdicts.first().is_some_and(Verdict::passed) {
        true => {
            println!("all checks passed (seed {seed})");
            ExitCode::SUCCESS
        }
        false => {
            println!("FAILED (seed {seed})");
            ExitCode::FAILURE
        }
    }
}

/// Runs one system. Its folder is kept if it failed.
async fn run_guarded(options: &ChaosOptions, system: System, bench: &Path) -> anyhow::Result<Verdict> {
    let is_ours = matches!(system, System::Toolbus { .. });
    let run = async |folder: &Path| Run::execute(options, system, bench, folder).await;
    let (mut verdict, folder) = run_in_folder("chaos", bench, run).await?;
    if is_ours && verdict.passed() && options.keep {
        println!("the run's folder: {}", folder.keep().display());
    } else if is_ours && !verdict.passed() {
        verdict.problems.push(format!("logs and effects are in {}", folder.keep().display()));
    }
    Ok(verdict)
}
