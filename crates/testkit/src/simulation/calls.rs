//! Calls from end to end: workers that call, a broker, and hosts that run tools with a journal of their own, all of which
//! can stop at any moment. Broker, log, book, journal and the decisions about known calls are the real code.
//!
//! What tools do is written into a ledger that no crash reaches; [`truth`] holds everything that is said against it.
//!
//! - `plan` draws what a seed decides before the first step, `steps` what happens next, `drain` is the good end.
//! - `broker` is the broker with its disk, `network` the links to it.
//! - `worker` calls and asks again, `host` decides, `running` runs tools and answers, `joining` finds earlier calls,
//!   `tasks` go on by themselves, `paper` is the host's journal.

mod broker;
mod drain;
mod host;
mod joining;
mod network;
mod paper;
mod plan;
mod running;
mod steps;
mod tasks;
mod truth;
mod wire;
mod worker;

use super::trace::Trace;
use super::{Options, Report};
use broker::Broker;
use host::Host;
use network::Link;
use plan::Plan;
use std::collections::BTreeMap;
use toolbus_engine::{ConnId, Millis};
use toolbus_store::sim_disk::Rng;
use truth::Truth;
use worker::Worker;

pub use truth::Tally;

pub struct World {
    plan: Plan,
    rng: Rng,
    now: Millis,
    broker: Broker,
    links: BTreeMap<ConnId, Link>,
    /// Also those that are gone: their mailboxes may hold answers that nobody collected.
    workers: Vec<Worker>,
    hosts: Vec<Host>,
    truth: Truth,
    trace: Trace,
    crashes: u64,
    /// For ids of replies and looks, which no crash makes come again.
    next_id: u64,
}

impl World {
    fn new(plan: Plan, rng: Rng, trace: Trace) -> Self {
        let now = 1_000_000;
        let hosts = (0..plan.hosts).map(|number| Host::new(number, &plan, now)).collect();
        let mut world = Self {
            broker: Broker::new(&plan),
            now,
            links: BTreeMap::new(),
            workers: Vec::new(),
            hosts,
            truth: Truth::default(),
            trace,
            crashes: 0,
            next_id: 0,
            plan,
            rng,
        };
        for agent in 0..world.plan.agents {
            world.begin_worker(agent);
            if world.rng.chance(30) {
                world.begin_worker(agent);
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
}

/// Runs one seed to its end or to the first broken promise.
pub fn simulate(seed: u64, options: Options, step: &mut u64) -> Result<Report, String> {
    let mut rng = Rng::new(seed);
    let plan = Plan::draw(&mut rng, options.planted);
    let mut world = World::new(plan, rng, Trace::new(options.trace));
    let choices = steps::choices(&world.plan);
    while *step < world.plan.steps && world.truth.violation().is_none() {
        *step += 1;
        let next = steps::draw(&mut world.rng, &choices);
        world.take(next);
    }
    if world.truth.violation().is_none() {
        world.drain();
    }
    match world.truth.violation() {
        Some(violation) => Err(violation.to_owned()),
        None => Ok(Report {
            steps: *step,
            crashes: world.crashes,
            sent: world.truth.requests.len() as u64,
            forgeries: 0,
            calls: world.truth.tally,
            trace_hash: world.trace.hash(),
        }),
    }
}
