//! `bench instructions`: the processor instructions that `toolbus up` executes for a tool call over HTTP, counted by
//! valgrind. Unlike times, counts hardly depend on the machine or its load, so that a budget can be kept.

use std::{path::Path as FilePath, process::ExitCode};

use anyhow::Context;
use bytes::Bytes;
use clap::Args;

use super::{
    Era,
    paths::{Path, RunningPath},
    programs::Programs,
};
use crate::{contenders::Contender, figures::Figures, load::Load, own_broker, tools::Tools};

/// Instructions per call of a release build, as measured when they were last changed on purpose.
const BUDGET: [(Era, f64); 2] = [(Era::Modern, 313_000.0), (Era::Legacy, 303_000.0)];
/// How far a count may exceed its budget.
const TOLERANCE: f64 = 1.1;
/// Calls that are not counted: they fill caches and start processes.
const FIRST_CALLS: u32 = 50;

#[derive(Args)]
pub struct InstructionsOptions {
    /// Number of calls to count.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    calls: u32,
    /// A few calls, without a verdict: fails if there is no figure. The budget is for release builds.
    #[arg(long, conflicts_with = "calls")]
    short: bool,
    /// Folder for results and tools [default: bench, in the target folder].
    #[arg(long, value_name = "DIR")]
    out: Option<std::path::PathBuf>,
}

pub async fn run(options: InstructionsOptions) -> anyhow::Result<ExitCode> {
    let mut tools = Tools::locate(options.out.clone())?;
    tools.prepare(Contender::Toolbus).await.map_err(anyhow::Error::msg)?;
    let programs = Programs::new(tools.toolbus()?, tools.bench.clone(), &tools.out);
    let (first, calls) = if options.short { (1, 20) } else { (FIRST_CALLS, options.calls) };
    let (mut figures, mut is_over) = (Figures::default(), false);
    for (era, budget) in BUDGET {
        let fewer = executed(&programs, era, first).await?;
        let more = executed(&programs, era, first + calls).await?;
        let per_call = more.saturating_sub(fewer) as f64 / f64::from(calls);
        figures.require(era.name(), Some(per_call));
        let is_within = per_call <= budget * TOLERANCE;
        let verdict = match (options.short, is_within) {
            (true, _) => String::new(),
            (false, true) => format!("  budget {budget:.0} + 10 %  reached"),
            (false, false) => format!("  budget {budget:.0} + 10 %  MISSED"),
        };
        println!("{:26} {per_call:>10.0} instructions per call{verdict}", format!("/mcp of up, {}", era.name()));
        is_over |= !options.short && !is_within;
    }
    figures.ensure_complete()?;
    Ok(if is_over { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The instructions of a whole process that serves that many calls, one after the other.
async fn executed(programs: &Programs, era: Era, calls: u32) -> anyhow::Result<u64> {
    let folder = own_broker::folder()?;
    let log = folder.path().join("valgrind.log");
    let running = RunningPath::start(Path::ToolbusHttpSafe, &programs.counted_into(&log)).await?;
    let connection = std::sync::Arc::new(running.client(era)?);
    connection.open().await?;
    for _ in 0..calls {
        connection.once(&Bytes::new()).await?;
    }
    running.terminate().await?;
    collected(&log)
}

/// The count in the log of callgrind.
fn collected(log: &FilePath) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(log).context("read valgrind's log")?;
    let count = text.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    count.with_context(|| format!("valgrind reported no count:\n{text}"))
}
