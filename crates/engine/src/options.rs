//! Every limit of the engine, by name.

use crate::{Millis, PlantedBug};

#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Messages pushed to one subscriber and not yet acknowledged.
    pub window_messages: usize,
    pub window_bytes: u64,
    /// The same for hosts, which keep the calls that they run, and those that wait for approval, unacknowledged.
    pub host_window_messages: usize,
    pub host_window_bytes: u64,
    /// Pending messages of one mailbox.
    pub mailbox_messages: u64,
    pub mailbox_bytes: u64,
    /// Pending messages of all mailboxes together.
    pub total_messages: u64,
    pub total_bytes: u64,
    pub mailboxes: usize,
    /// Accepted but not yet durable bytes; past it the shell stops reading from its peers until the disk caught up.
    pub unsettled_bytes: u64,
    /// How often a message is pushed before it goes to the dead letters.
    pub max_attempts: u32,
    /// The same for hosts: a call is theirs until it has ended, and its link may be lost often meanwhile.
    pub host_max_attempts: u32,
    /// How long a record waits for its acknowledgement before it is written, when its recipient is live.
    pub linger: Millis,
    /// How long acknowledgements and settled ids, which nobody waits for, may stay unwritten.
    pub lazy: Millis,
    /// Settled ids that are remembered at least, by count or by age, whichever is less.
    pub history_ids: usize,
    pub history_age: Millis,
    /// Secret of this store, so that nobody can construct ids that collide.
    pub fingerprint_seed: u64,
    /// A defect to plant, in tests of the tests only.
    pub planted: Option<PlantedBug>,
}

/// What a subscriber may have in its hands at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub messages: usize,
    pub bytes: u64,
}

impl EngineOptions {
    pub fn window(&self, host: bool) -> Window {
        match host {
            true => Window { messages: self.host_window_messages, bytes: self.host_window_bytes },
            false => Window { messages: self.window_messages, bytes: self.window_bytes },
        }
    }
}

impl EngineOptions {
    pub fn attempts(&self, host: bool) -> u32 {
        if host { self.host_max_attempts } else { self.max_attempts }
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            window_messages: 1024,
            window_bytes: 2 << 20,
            host_window_messages: 8192,
            host_window_bytes: 64 << 20,
            mailbox_messages: 4_000_000,
            mailbox_bytes: 8 << 30,
            total_messages: 10_000_000,
            total_bytes: 32 << 30,
            mailboxes: 100_000,
            unsettled_bytes: 64 << 20,
            max_attempts: 32,
            host_max_attempts: 1000,
            linger: 10,
            lazy: 100,
            history_ids: 100_000,
            history_age: 3_600_000,
            fingerprint_seed: 0,
            planted: None,
        }
    }
}
