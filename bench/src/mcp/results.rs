//! The figures of `bench mcp`: samples of each path, of the bus and of the disk, and their medians over the rounds.

use super::{Era, Path};
use crate::{figures::Figures, results::median};

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

#[derive(Default)]
pub struct Results {
    samples: Vec<(Path, Era, Sample)>,
    /// Medians of lone calls on the bus without MCP, one per round.
    pub bus_us: Vec<f64>,
    /// Medians of a bare append with fdatasync on the same disk, one per round.
    pub sync_us: Vec<f64>,
    /// Medians of an append through a journal and its thread, one per round.
    pub journal_us: Vec<f64>,
    /// Paths that could not be measured, with the reason.
    pub skipped: Vec<(Path, String)>,
}

impl Results {
    pub fn add(&mut self, path: Path, era: Era, sample: Sample) {
        self.samples.push((path, era, sample));
    }

    /// Medians over the rounds.
    pub fn of(&self, path: Path, era: Era) -> Option<Sample> {
        let samples = self.samples.iter().filter(|one| (one.0, one.1) == (path, era)).map(|one| one.2);
        let value = |value: fn(Sample) -> f64| median(samples.clone().map(value));
        Some(Sample {
            p50_us: value(|sample| sample.p50_us)?,
            p99_us: value(|sample| sample.p99_us)?,
            rate: value(|sample| sample.rate)?,
            first_us: value(|sample| sample.first_us)?,
        })
    }

    pub fn bus_p50_us(&self) -> Option<f64> {
        median(self.bus_us.iter().copied())
    }

    pub fn sync_p50_us(&self) -> Option<f64> {
        median(self.sync_us.iter().copied())
    }

    pub fn journal_p50_us(&self) -> Option<f64> {
        median(self.journal_us.iter().copied())
    }

    /// The highest rate of another proxy, in any era.
    pub fn best_proxy(&self) -> Option<f64> {
        let proxies = Path::ALL.into_iter().filter(|path| path.needs_installation());
        let rates = proxies.flat_map(|path| [Era::Modern, Era::Legacy].map(|era| self.of(path, era)));
        rates.flatten().map(|sample| sample.rate).reduce(f64::max)
    }

    /// Paths of this build must have figures in both eras; a proxy may lack them.
    pub fn figures(&self, paths: &[Path]) -> Figures {
        let mut figures = Figures::default();
        figures.require("the bus", self.bus_p50_us());
        figures.require("the disk", self.sync_p50_us());
        figures.require("the disk through a journal", self.journal_p50_us());
        for path in paths.iter().filter(|path| !path.needs_installation()) {
            for era in [Era::Modern, Era::Legacy] {
                let sample = self.of(*path, era);
                let name = format!("{} ({})", path.name(), era.name());
                figures.require(format!("{name} alone"), sample.map(|sample| sample.p50_us));
                figures.require(format!("{name} with many in flight"), sample.map(|sample| sample.rate));
            }
        }
        figures
    }
}
