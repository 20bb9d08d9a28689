//! The report of a run: tables on stdout, a JSON file and an SVG plot.

pub mod chart;
pub mod number;

mod json;
mod svg;
mod table;

use std::{fs, path::Path};

use anyhow::Context;
use serde::Serialize;

use crate::{cli::RunOptions, goals::Verdict, results::Results, tools::Tools};

/// The conditions of a run, without which its figures can't be interpreted.
#[derive(Serialize)]
pub struct RunFacts {
    pub rounds: u32,
    pub seconds: f64,
    pub cores: usize,
    pub kernel: String,
    pub load_average: String,
    pub nats_server: Option<String>,
}

impl RunFacts {
    pub async fn collect(options: &RunOptions, tools: &Tools) -> Self {
        let read = |path| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.trim().to_owned()
        };
        Self {
            rounds: options.rounds(),
            seconds: options.seconds(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: read("/proc/sys/kernel/osrelease"),
            load_average: read("/proc/loadavg"),
            nats_server: tools.nats_version().await,
        }
    }

    /// One line about how the figures were measured.
    pub fn summary(&self) -> String {
        let rounds = if self.rounds == 1 { "round" } else { "rounds" };
        format!(
            "median of {} {rounds} of {} s, {} cores, Linux {}; only ratios inside one run count",
            self.rounds, self.seconds, self.cores, self.kernel
        )
    }
}

pub fn print(results: &Results, verdicts: &[Verdict], run: &RunFacts) {
    print!("{}", table::render(results, verdicts, run));
}

pub fn write(folder: &Path, results: &Results, verdicts: &[Verdict], run: &RunFacts) -> anyhow::Result<()> {
    let json = json::render(results, verdicts, run)?;
    for (name, text) in
        [("bus.json", json), ("bus.svg", svg::render(results, run)), ("bus.txt", table::render(results, verdicts, run))]
    {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}
