//! Deterministic simulation: engine, log, disk, clock and clients, driven from one seed.
//!
//! Single-threaded: each step is drawn, executed, and checked against a small reference [model](model::Model) of the
//! broker's guarantees. The same seed gives the same run, so that every failure can be reproduced.
//!
//! - `scenario` draws the parameters of a run, `steps` the next event; `behaviour` has the actions of clients.
//! - `world`, `broker_side`, `effects`, `client_side` and `storage` execute events.
//! - `script` is a fixed scenario for crash-point enumeration.
//! - `forger` sends messages that it may not send, in the variant with credentials.
//! - `cluster` is a separate simulation of the brokers of one partition on a replicated log.
//! - `calls` is a separate simulation of tool calls: workers, a broker, and hosts with their journals.
//! - `messages` and `model` hold the invariants; `drain` ends every run without faults.

mod behaviour;
mod broker_side;
mod calls;
mod client;
mod client_side;
mod cluster;
mod drain;
mod effects;
mod forger;
mod messages;
mod model;
mod scenario;
mod script;
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

/// How to simulate a seed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// The defect to plant, if any.
    pub planted: Option<Planted>,
    /// Use credentials, and let a forger send messages that it may not send.
    pub restricted: bool,
    /// Simulate tool calls end to end, with workers and hosts, instead of messages.
    pub calls: bool,
    /// Simulate the brokers of one partition of a cluster.
    pub cluster: bool,
    /// Print every event.
    pub trace: bool,
}

/// Summary of a run without violations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of steps.
    pub steps: u64,
    /// Number of crashes of all processes and machines.
    pub crashes: u64,
    /// Number of messages, or of calls, that clients sent.
    pub sent: u64,
    /// Forged messages, all of which were refused.
    pub forgeries: u64,
    /// Outcomes of calls.
    pub calls: Tally,
    /// Hash of all events: the same for every run of the same seed.
    pub trace_hash: u64,
}

/// The first violation of a run, with the options to reproduce it.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The seed of the run.
    pub seed: u64,
    /// The step at which the violation was found.
    pub step: u64,
    /// The violated invariant.
    pub what: String,
    /// As in [`Options::planted`].
    pub planted: Option<Planted>,
    /// As in [`Options::restricted`].
    pub restricted: bool,
    /// As in [`Options::calls`].
    pub calls: bool,
    /// As in [`Options::cluster`].
    pub cluster: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, step, what, planted, restricted, calls, cluster } = self;
        write!(f, "seed {seed}, step {step}: {what}\nreproduce with: cargo xtask sim --seed {seed}")?;
        if *restricted {
            write!(f, " --restricted")?;
        }
        if *calls {
            write!(f, " --calls")?;
        }
        if *cluster {
            write!(f, " --cluster")?;
        }
        planted.map_or(Ok(()), |planted| write!(f, " --planted {planted}"))
    }
}

impl std::error::Error for Failure {}

/// Runs one seed to its end or to the first violation.
pub fn run(seed: u64, options: Options) -> Result<Report, Failure> {
    let mut step = 0;
    // A failed assertion of the engine is a violation too, and has to be reported with its seed.
    let outcome = catch_unwind(AssertUnwindSafe(|| match options.calls {
        _ if options.cluster => cluster::simulate(seed, options, &mut step),
        true => calls::simulate(seed, options, &mut step),
        false => simulate(seed, options, &mut step),
    }));
    let what = match outcome {
        Ok(Ok(report)) => return Ok(report),
        Ok(Err(violation)) => violation,
        Err(panic) => panic_text(&*panic),
    };
    let Options { planted, restricted, calls, cluster, .. } = options;
    Err(Failure { seed, step, what, planted, restricted, calls, cluster })
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
            sent: world.model.messages.len() as u64,
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
