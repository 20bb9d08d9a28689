//! All limits and intervals of the engine.

use crate::{Millis, PlantedBug};

/// Limits and intervals of the engine.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Maximum number of messages pushed to one subscriber and not acknowledged.
    pub window_messages: usize,
    /// Maximum size of messages pushed to one subscriber and not acknowledged.
    pub window_bytes: u64,
    /// Like `window_messages`, for hosts: they keep running calls, and calls that wait for approval, unacknowledged.
    pub host_window_messages: usize,
    /// Like `window_bytes`, for hosts.
    pub host_window_bytes: u64,
    /// Like `window_messages`, for subscribers of version 1, if it differs. Clients of the original may acknowledge late,
    /// because its broker pushes a mailbox without a window. Their bytes count only until they are passed on
    /// ([`crate::Command::Passed`]).
    pub version1_window_messages: Option<usize>,
    /// Maximum number of pending messages in one mailbox.
    pub mailbox_messages: u64,
    /// Maximum size of pending messages in one mailbox.
    pub mailbox_bytes: u64,
    /// Maximum number of pending messages in all mailboxes.
    pub total_messages: u64,
    /// Maximum size of pending messages in all mailboxes.
    pub total_bytes: u64,
    /// Maximum number of mailboxes.
    pub mailboxes: usize,
    /// Backpressure: size of accepted but not yet durable messages above which the shell stops reading from its peers.
    pub unsettled_bytes: u64,
    /// Maximum number of push attempts before a message is dead-lettered.
    pub max_attempts: u32,
    /// Like `max_attempts`, for hosts: a call stays unacknowledged until it ends, and may outlast many connections.
    pub host_max_attempts: u32,
    /// Maximum number of peers and messages that one connection follows.
    pub followed_items: usize,
    /// How long a record is held back in case a subscribed recipient acknowledges it, which elides the record.
    pub linger: Millis,
    /// Maximum delay before acknowledgements and settled ids are durable if no confirmation waits for them. An
    /// acknowledgement of a message that has a record is written at once, so that it survives a crash of the process.
    pub lazy: Millis,
    /// Minimum number of settled ids that are remembered for deduplication, unless `history_age` is reached first.
    pub history_ids: usize,
    /// Minimum time that settled ids are remembered for deduplication, unless `history_ids` is reached first.
    pub history_age: Millis,
    /// Secret of this store that keys fingerprints, so that a peer can't construct colliding ids.
    pub fingerprint_seed: u64,
    /// A defect to inject, to test the tests.
    pub planted: Option<PlantedBug>,
}

/// Limits of what is pushed to one subscriber and not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Maximum number of messages.
    pub messages: usize,
    /// Maximum size.
    pub bytes: u64,
}

impl EngineOptions {
    /// Returns the window of a subscriber that is a host or not.
    pub fn window(&self, host: bool) -> Window {
        match host {
            true => Window { messages: self.host_window_messages, bytes: self.host_window_bytes },
            false => Window { messages: self.window_messages, bytes: self.window_bytes },
        }
    }
}

impl EngineOptions {
    /// Returns the maximum number of push attempts to a subscriber that is a host or not.
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
            // The original keeps at most so many messages in one mailbox.
            version1_window_messages: Some(50_000),
            mailbox_messages: 4_000_000,
            mailbox_bytes: 8 << 30,
            total_messages: 10_000_000,
            total_bytes: 32 << 30,
            mailboxes: 100_000,
            unsettled_bytes: 64 << 20,
            max_attempts: 32,
            host_max_attempts: 1000,
            followed_items: 16 << 10,
            linger: 10,
            lazy: 100,
            history_ids: 100_000,
            history_age: 3_600_000,
            fingerprint_seed: 0,
            planted: None,
        }
    }
}
