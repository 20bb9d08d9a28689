//! A separate simulation of one partition on a replicated log: several brokers that claim it, lose it and believe too long
//! that they own it, and clients that send and receive through whichever broker serves them.
//!
//! Each broker runs the shipped lease, stream disk, store and engine. The log and the key-value bucket are modelled: answers
//! get lost, appends arrive late, brokers are cut off, crash, and their clocks run differently. `oracle` holds the
//! invariants; `broker` and `client` execute events; every run ends without faults, and then no receipted message may be
//! missing.

mod broker;
mod bucket;
mod client;
mod drain;
mod oracle;
mod steps;

use super::trace::Trace;
use super::{Options, Report};
use broker::Broker;
use bucket::Bucket;
use client::Client;
use oracle::Oracle;
use toolbus_cluster::LeaseOptions;
use toolbus_cluster::PlantedBug;
use toolbus_cluster::sim_log::SimLog;
use toolbus_engine::{EngineOptions, Millis};
use toolbus_store::StoreOptions;
use toolbus_store::sim_disk::Rng;

/// Everything of a run.
struct World {
    rng: Rng,
    trace: Trace,
    now: Millis,
    engine: EngineOptions,
    store: StoreOptions,
    lease: LeaseOptions,
    planted: Option<PlantedBug>,
    log: SimLog,
    bucket: Bucket,
    brokers: Vec<Broker>,
    clients: Vec<Client>,
    oracle: Oracle,
    crashes: u64,
    /// A late append was accepted at a place that it did not expect.
    misplaced: bool,
    is_draining: bool,
}

pub fn simulate(seed: u64, options: Options, step: &mut u64) -> Result<Report, String> {
    let mut world = World::draw(seed, options);
    let steps = 500 + world.rng.below(1_500);
    while *step < steps && world.oracle.violation().is_none() {
        *step += 1;
        world.step();
    }
    if world.oracle.violation().is_none() {
        world.drain();
    }
    match world.oracle.violation() {
        Some(violation) => Err(violation.to_owned()),
        None => Ok(Report {
            steps: *step,
            crashes: world.crashes,
            sent: world.oracle.messages.len() as u64,
            trace_hash: world.trace.hash(),
            ..Report::default()
        }),
    }
}

impl World {
    fn draw(seed: u64, options: Options) -> Self {
        let mut rng = Rng::new(seed);
        let planted = options.planted.and_then(super::Planted::in_cluster);
        let lease = LeaseOptions { silence: 120, renewal: 20, suspension: 100, answer: 10, planted };
        let window_messages = 1 + rng.below(8) as usize;
        let engine = EngineOptions {
            window_messages,
            host_window_messages: window_messages,
            linger: rng.below(5),
            lazy: [0, 3, 20][rng.below(3) as usize],
            fingerprint_seed: 1,
            ..EngineOptions::default()
        };
        let store = StoreOptions {
            segment_bytes: [600, 2_000, 8_000][rng.below(3) as usize],
            checksum_seed: 1,
            ..StoreOptions::default()
        };
        let log = SimLog::new(rng.next_u64());
        let brokers = (0..2 + rng.below(2) as usize).map(|number| Broker::new(number, lease, &mut rng)).collect();
        let clients = (0..2 + rng.below(3) as usize).map(Client::new).collect();
        Self {
            trace: Trace::new(options.trace),
            now: 1_000_000,
            engine,
            store,
            lease,
            planted,
            log,
            bucket: Bucket::default(),
            brokers,
            clients,
            oracle: Oracle::default(),
            crashes: 0,
            misplaced: false,
            is_draining: false,
            rng,
        }
    }

    fn note(&mut self, what: &str, facts: &[(&str, u64)]) {
        self.trace.note(self.now, what, facts);
    }
}
