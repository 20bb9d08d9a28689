//! Parameters of a run, drawn before the first step.

use crate::planted::Planted;
use crate::simulation::scenario::pick;
use toolbus_engine::EngineOptions;
use toolbus_journal::LogOptions;
use toolbus_store::StoreOptions;
use toolbus_store::sim_disk::Rng;

#[derive(Debug, Clone)]
pub struct Plan {
    pub engine: EngineOptions,
    pub store: StoreOptions,
    pub journal: LogOptions,
    /// Journal segments older than this are rewritten.
    pub tidy_after: u64,
    /// Replies wait until RESULT is durable.
    pub sync_results: bool,
    pub planted: Option<Planted>,
    pub agents: usize,
    pub hosts: usize,
    pub steps: u64,
    /// Number of distinct arguments: the fewer, the more calls equal an earlier one.
    pub arguments: u64,
    /// Percentage of calls with a deadline.
    pub deadlines: u64,
    /// Percentage of calls that are tasks.
    pub tasks: u64,
    /// Multiplies the weights of crashes and other faults.
    pub fault_rate: u64,
    /// Enables a replay-safe tool that mostly crashes its host.
    pub host_crashing_tool: bool,
}

impl Plan {
    pub fn draw(rng: &mut Rng, planted: Option<Planted>) -> Self {
        let engine = EngineOptions {
            // The broker's own dead-lettering of requests is not simulated here.
            max_attempts: 1_000_000,
            host_max_attempts: 1_000_000,
            linger: rng.below(5),
            lazy: *pick(rng, &[0, 3, 20, 200]),
            history_age: u64::MAX,
            fingerprint_seed: rng.next_u64(),
            host_window_messages: *pick(rng, &[2, 8, 1000]),
            window_messages: *pick(rng, &[2, 8, 1000]),
            ..EngineOptions::default()
        };
        let store = StoreOptions {
            segment_bytes: *pick(rng, &[2 << 10, 16 << 10]),
            history_age: u64::MAX,
            checksum_seed: rng.next_u64(),
            ..StoreOptions::default()
        };
        let segment_bytes = *pick(rng, &[300, 1000, 8000]);
        let in_journal = planted.and_then(Planted::in_journal);
        Self {
            engine,
            store,
            journal: LogOptions { segment_bytes, checksum_seed: rng.next_u64(), planted: in_journal },
            tidy_after: *pick(rng, &[50, 1000, u64::MAX]),
            sync_results: rng.chance(30),
            planted,
            agents: 1 + rng.below(3) as usize,
            hosts: 1 + rng.below(2) as usize,
            steps: 200 + rng.below(700),
            arguments: *pick(rng, &[1, 2, 4, 50]),
            deadlines: *pick(rng, &[0, 10, 40]),
            tasks: *pick(rng, &[0, 15]),
            fault_rate: *pick(rng, &[0, 4, 10, 25]),
            host_crashing_tool: rng.chance(10),
        }
    }

    pub fn is_planted(&self, bug: Planted) -> bool {
        self.planted == Some(bug)
    }
}
