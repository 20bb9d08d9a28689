//! What a seed decides before the first step: limits, and how much of which trouble there is. Limits are small, because
//! most of what can go wrong happens at a limit.

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
    /// Credentials say who may send what.
    pub restricted: bool,
    pub clients: usize,
    pub steps: u64,
    /// Links stay up and the broker doesn't crash: then everything happens exactly once.
    pub calm: bool,
    pub crashes: bool,
    pub disk_trouble: bool,
    /// Deadlines pass without the engine being told at once. What happens then in silence the model can follow only
    /// where nothing is forgotten.
    pub late_ticks: bool,
    /// Batches are large, because they are written seldom.
    pub slow_disk: bool,
    /// No id is forgotten while the broker runs.
    pub long_memory: bool,
    pub largest_body: u64,
}

impl Scenario {
    pub fn draw(rng: &mut Rng, Options { planted, restricted, .. }: Options) -> Self {
        let calm = rng.chance(15);
        let disk_trouble = rng.chance(35);
        let long_memory = rng.chance(80);
        let (history_ids, history_age) = draw_memory(rng, long_memory);
        let largest_body = *pick(rng, &[200, 1_000, 4_000]);
        let window_messages = *pick(rng, &[1, 2, 4, 8, 64]);
        let window_bytes = *pick(rng, &[300, 1_000, 3_000, 1 << 20]);
        let max_attempts = *pick(rng, &[1, 2, 3, 1_000, 1_000, 1_000]);
        let engine = EngineOptions {
            window_messages,
            window_bytes,
            // The model knows one window.
            host_window_messages: window_messages,
            host_window_bytes: window_bytes,
            mailbox_messages: *pick(rng, &[4, 12, 1_000, 1_000]),
            mailbox_bytes: *pick(rng, &[2_000, 1 << 20, 1 << 20, 1 << 20]),
            total_messages: *pick(rng, &[10, 1_000, 1_000, 1_000]),
            total_bytes: *pick(rng, &[6_000, 1 << 20, 1 << 20, 1 << 20]),
            mailboxes: *pick(rng, &[3, 1_000, 1_000, 1_000]),
            unsettled_bytes: *pick(rng, &[500, 4_000, 1 << 20]),
            max_attempts,
            // As for the windows.
            host_max_attempts: max_attempts,
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
            disk_trouble,
            slow_disk: rng.chance(35),
            late_ticks: !disk_trouble && long_memory && rng.chance(40),
            long_memory,
            largest_body,
        }
    }

    /// Nothing is small and nothing goes wrong by itself: for scripts.
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
            disk_trouble: false,
            slow_disk: false,
            late_ticks: false,
            long_memory: true,
            largest_body: 1_000,
        }
    }

    pub fn deaths(&self) -> bool {
        self.engine.max_attempts < 1_000
    }
}

fn draw_memory(rng: &mut Rng, long: bool) -> (usize, Millis) {
    match long {
        true => (1_000_000, Millis::MAX),
        false if rng.chance(50) => (1 + rng.below(12) as usize, Millis::MAX),
        false => (1_000_000, 20 + rng.below(2_000)),
    }
}

pub fn pick<'a, T>(rng: &mut Rng, choices: &'a [T]) -> &'a T {
    &choices[rng.below(choices.len() as u64) as usize]
}
