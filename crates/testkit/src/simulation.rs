//! Deterministic simulation: engine, log, disk, clock and clients, driven from one seed.
//!
//! Nothing here runs by itself: a step is drawn, carried out, and checked against a small [model](model::Model) of what
//! the broker promises. The same seed gives the same run, so that a failure can be looked at as often as one likes.
//!
//! - `scenario` draws the limits, `steps` what happens next, `behaviour` is what clients do of their own accord.
//! - `world`, `broker_side`, `effects`, `client_side` and `storage` carry events out.
//! - `script` is one story without chance, for stopping it at every point.
//! - `forger` sends what it may not, in the variant with credentials.
//! - `calls` is a world of its own: workers, a broker and hosts with their journals.
//! - `messages` and `model` say what must be true, `drain` is the good end that every run must have.

mod behaviour;
mod broker_side;
mod calls;
mod client;
mod client_side;
mod drain;
mod effects;
mod forger;
mod model;
mod scenario;
mod script;
mod sent;
mod steps;
mod storage;
mod trace;
mod world;

pub use calls::Tally;
pub use script::{CrashPoint, Ending, run_to_crash_point};

use crate::planted::Planted;
use scenario::Scenario;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use toolbus_store::sim_disk::Rng;
use trace::Trace;
use world::World;

#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    pub planted: Option<Planted>,
    /// Credentials say who may send what, and somebody tries what it may not.
    pub restricted: bool,
    /// Calls from end to end, with workers and hosts, instead of messages.
    pub calls: bool,
    /// Print every event.
    pub trace: bool,
}

/// What a run that kept all promises consisted of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    pub steps: u64,
    pub crashes: u64,
    pub sent: u64,
    /// Messages that nobody may send; none was taken.
    pub forgeries: u64,
    /// What became of calls.
    pub calls: Tally,
    /// The same for every run of the same seed.
    pub trace_hash: u64,
}

#[derive(Debug, Clone)]
pub struct Failure {
    pub seed: u64,
    pub step: u64,
    pub what: String,
    pub planted: Option<Planted>,
    pub restricted: bool,
    pub calls: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, step, what, planted, restricted, calls } = self;
        write!(f, "seed {seed}, step {step}: {what}\nreplay it with: cargo xtask sim --seed {seed}")?;
        if *restricted {
            write!(f, " --restricted")?;
        }
        if *calls {
            write!(f, " --calls")?;
        }
        planted.map_or(Ok(()), |planted| write!(f, " --planted {planted}"))
    }
}

impl std::error::Error for Failure {}

/// Runs one seed to its end or to the first broken promise.
pub fn run(seed: u64, options: Options) -> Result<Report, Failure> {
    let mut step = 0;
    // The engine's own assertions are promises too, and their failure needs the seed.
    let outcome = catch_unwind(AssertUnwindSafe(|| match options.calls {
        true => calls::simulate(seed, options, &mut step),
        false => simulate(seed, options, &mut step),
    }));
    let what = match outcome {
        Ok(Ok(report)) => return Ok(report),
        Ok(Err(violation)) => violation,
        Err(panic) => panic_text(&*panic),
    };
    let Options { planted, restricted, calls, .. } = options;
    Err(Failure { seed, step, what, planted, restricted, calls })
}

fn simulate(seed: u64, options: Options, step: &mut u64) -> Result<Report, String> {
    let mut rng = Rng::new(seed);
    let scenario = Scenario::draw(&mut rng, options);
    let mut world = World::new(scenario, rng, Trace::new(options.trace));
    let choices = steps::choices(&world);
    while *step < world.scenario.steps && world.model.violation().is_none() {
        *step += 1;
        let next = steps::draw(&mut world, &choices);
        world.take(next);
    }
    if world.model.violation().is_none() {
        world.drain();
    }
    match world.model.violation() {
        Some(violation) => Err(violation.to_owned()),
        None => Ok(Report {
            steps: *step,
            crashes: world.crashes,
            sent: world.model.sent.len() as u64,
            forgeries: world.forgeries,
            calls: Tally::default(),
            trace_hash: world.trace.hash(),
        }),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("without a message"))
}
