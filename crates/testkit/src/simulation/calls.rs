//! Tool calls end to end: workers, a broker, and hosts that run tools and keep a journal, each of which can crash at
//! any step. Engine, store, call machine and journal are the production code: a simulated host only feeds events to the
//! machine and carries out its effects.
//!
//! Effects of tools are recorded in the [`oracle`], which no crash affects and which checks every answer against them.
//!
//! - `plan` draws the parameters of a run, `steps` the next event; `drain` ends a run without faults.
//! - `broker` is the engine with its store and disk, `network` the links to it.
//! - `worker` sends calls. `host` is a process at a host: `admission` feeds it the frames of the broker, `effects` carries
//!   out what its machine decides, `callers` asks the broker about callers, `replies` sends what it answers, `journal` drives its journal, `restart` ends it.
//! - `servers` runs tools, `policy` decides about calls, `tasks` queries tasks.

mod admission;
mod broker;
mod callers;
mod drain;
mod effects;
mod host;
mod journal;
mod network;
mod oracle;
mod plan;
mod policy;
mod replies;
mod restart;
mod servers;
mod steps;
mod tasks;
mod wire;
mod worker;

use super::trace::Trace;
use super::{Options, Report};
use broker::Broker;
use host::Host;
use network::Link;
use oracle::Oracle;
use plan::Plan;
use policy::Policy;
use servers::Run;
use std::collections::BTreeMap;
use toolbus_engine::{ConnId, Millis};
use toolbus_store::sim_disk::Rng;
use wire::Codebook;
use worker::Worker;

pub use oracle::Tally;

pub struct World {
    plan: Plan,
    rng: Rng,
    now: Millis,
    /// The wall clock jumps; `now` does not.
    wall_offset: u64,
    broker: Broker,
    links: BTreeMap<ConnId, Link>,
    /// Including stopped ones: their mailboxes may hold uncollected answers.
    workers: Vec<Worker>,
    /// The hosts of the plan, and perhaps a second one with the name of the first.
    hosts: Vec<Host>,
    /// Runs of tools that have not ended, by number.
    runs: BTreeMap<oracle::RunNo, Run>,
    policy: Policy,
    codebook: Codebook,
    oracle: Oracle,
    trace: Trace,
    crashes: u64,
    /// For ids of replies, inspections and processes, which must stay unique across crashes.
    next_id: u64,
}

impl World {
    fn new(plan: Plan, rng: Rng, trace: Trace) -> Self {
        let mut world = Self {
            broker: Broker::new(&plan),
            now: 1_000_000,
            wall_offset: 1_763_000_000_000,
            links: BTreeMap::new(),
            workers: Vec::new(),
            hosts: Vec::new(),
            runs: BTreeMap::new(),
            policy: Policy::default(),
            codebook: Codebook::default(),
            oracle: Oracle::default(),
            trace,
            crashes: 0,
            next_id: 0,
            plan,
            rng,
        };
        (0..world.plan.hosts).for_each(|number| world.add_host(number));
        if world.plan.amnesia {
            world.add_host(0);
        }
        for agent in 0..world.plan.agents {
            world.start_worker(agent);
            if world.rng.chance(30) {
                world.start_worker(agent);
            }
        }
        world
    }

    fn note(&mut self, what: &str, facts: &[(&str, u64)]) {
        self.trace.note(self.now, what, facts);
    }

    fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn wall(&self) -> u64 {
        self.now + self.wall_offset
    }
}

/// Runs one seed to its end or to the first violation.
pub fn simulate(seed: u64, options: Options, step: &mut u64) -> Result<Report, String> {
    let mut rng = Rng::new(seed);
    let plan = Plan::draw(&mut rng, options.planted);
    let mut world = World::new(plan, rng, Trace::new(options.trace));
    let choices = steps::choices(&world.plan);
    while *step < world.plan.steps && world.oracle.violation().is_none() {
        *step += 1;
        let next = steps::draw(&mut world.rng, &choices);
        world.take(next);
    }
    if world.oracle.violation().is_none() {
        world.drain();
    }
    match world.oracle.violation() {
        Some(violation) => Err(violation.to_owned()),
        None => Ok(Report {
            steps: *step,
            crashes: world.crashes,
            sent: world.oracle.requests.len() as u64,
            forgeries: 0,
            calls: world.oracle.tally,
            trace_hash: world.trace.hash(),
        }),
    }
}
