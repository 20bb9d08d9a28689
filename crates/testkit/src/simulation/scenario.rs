//! Parameters of a run, drawn before the first step: limits and kinds of faults. Limits are small, because most defects
//! appear at a limit.

use super::Options;
use crate::planted::Planted;
use toolbus_engine::{EngineOptions, Millis};
use toolbus_store::StoreOptions;
use toolbus_store::sim_disk::Rng;

#[derive(Debug, Clone)]
pub struct Scenario {
    pub engine: EngineOptions,
    pub store: StoreOptions,
    pub planted: Option<Planted>,
    /// Credentials restrict who may send what.
    pub restricted: bool,
    pub clients: usize,
    pub steps: u64,
    /// Links stay up and the broker doesn't crash, so that every message is delivered exactly once.
    pub calm: bool,
    pub crashes: bool,
    pub disk_faults: bool,
    /// The engine's clock lags, so that deadlines pass before a tick. The model can follow what the engine then does
    /// only if no id is evicted.
    pub late_ticks: bool,
    /// Writes are rare, so batches are large.
    pub slow_disk: bool,
    /// The broker evicts no id from its deduplication history.
    pub keeps_all_ids: bool,
    pub largest_body: u64,
}

impl Scenario {
    pub fn draw(rng: &mut Rng, Options { planted, restricted, .. }: Options) -> Self {
        let calm = rng.chance(15);
        let disk_faults = rng.chance(35);
        let keeps_all_ids = rng.chance(80);
        let (history_ids, history_age) = draw_history(rng, keeps_all_ids);
        let largest_body = *pick(rng, &[200, 1_000, 4_000]);
        let window_messages = *pick(rng, &[1, 2, 4, 8, 64]);
        let window_bytes = *pick(rng, &[300, 1_000, 3_000, 1 << 20]);
        let max_attempts = *pick(rng, &[1, 2, 3, 1_000, 1_000, 1_000]);
        let (mailbox_messages, mailbox_bytes) =
            (*pick(rng, &[4, 12, 1_000, 1_000]), *pick(rng, &[2_000, 1 << 20, 1 << 20, 1 << 20]));
        let engine = EngineOptions {
            window_messages,
            window_bytes,
            // The model has one window for all peers.
            host_window_messages: window_messages,
            host_window_bytes: window_bytes,
            version1_window_messages: None,
            mailbox_messages,
            mailbox_bytes,
            total_messages: *pick(rng, &[10, 1_000, 1_000, 1_000]),
            total_bytes: *pick(rng, &[6_000, 1 << 20, 1 << 20, 1 << 20]),
            mailboxes: *pick(rng, &[3, 1_000, 1_000, 1_000]),
            unsettled_bytes: *pick(rng, &[500, 4_000, 1 << 20]),
            max_attempts,
            // One limit for all peers, too.
            host_max_attempts: max_attempts,
            followed_items: 64,
            linger: rng.below(5),
            lazy: *pick(rng, &[0, 3, 20, 200]),
            history_ids,
            history_age,
            fingerprint_seed: rng.next_u64(),
            planted: planted.and_then(Planted::in_engine),
        };
        let store = StoreOptions {
            segment_bytes: *pick(rng, &[1 << 10, 4 << 10, 16 << 10]),
            history_ids,
            history_age,
            checksum_seed: rng.next_u64(),
            planted_no_sync: planted == Some(Planted::NoSync),
        };
        Self {
            engine,
            store,
            planted,
            restricted,
            clients: 3 + rng.below(3) as usize,
            steps: 150 + rng.below(600),
            calm,
            crashes: !calm && rng.chance(80),
            disk_faults,
            slow_disk: rng.chance(35),
            late_ticks: !disk_faults && keeps_all_ids && rng.chance(40),
            keeps_all_ids,
            largest_body,
        }
    }

    /// Default limits and no random faults, for scripts.
    pub fn plain() -> Self {
        Self {
            engine: EngineOptions::default(),
            store: StoreOptions { segment_bytes: 2 << 10, ..StoreOptions::default() },
            planted: None,
            restricted: false,
            clients: 3,
            steps: 0,
            calm: false,
            crashes: true,
            disk_faults: false,
            slow_disk: false,
            late_ticks: false,
            keeps_all_ids: true,
            largest_body: 1_000,
        }
    }

    pub fn dead_lettering(&self) -> bool {
        self.engine.max_attempts < 1_000
    }
}

fn draw_history(rng: &mut Rng, long: bool) -> (usize, Millis) {
    match long {
        true => (1_000_000, Millis::MAX),
        false if rng.chance(50) => (1 + rng.below(12) as usize, Millis::MAX),
        false => (1_000_000, 20 + rng.below(2_000)),
    }
}

pub fn pick<'a, T>(rng: &mut Rng, choices: &'a [T]) -> &'a T {
    &choices[rng.below(choices.len() as u64) as usize]
}
