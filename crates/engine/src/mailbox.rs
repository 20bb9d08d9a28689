//! The state of one mailbox: counters, the subscriber, and leases of pushed messages. It holds no bodies.

use crate::{ConnId, EngineOptions, Fingerprint, Millis, Seq, Window};
use bytestring::ByteString;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Stands for the deadline of a message without one.
pub const NO_DEADLINE: Millis = Millis::MAX;

/// A message that was pushed to the subscriber and is not acknowledged yet.
#[derive(Debug, Clone)]
pub struct Lease {
    pub fingerprint: Fingerprint,
    /// What it counts in the window.
    pub size: u64,
    pub attempt: u32,
    pub accepted_at: Millis,
    pub expires_at: Option<Millis>,
    /// Set once the sender cancels: if the lease ends without an acknowledgement, the message is withdrawn instead of
    /// being redelivered. Not persisted.
    pub cancelled: Option<Box<Withdrawal>>,
    /// The sender, until its request is reported as refused.
    pub refusable: Option<Arc<str>>,
}

/// A withdrawn message: its id, and the sender to notify.
#[derive(Debug, Clone)]
pub struct Withdrawal {
    pub id: ByteString,
    pub from: Arc<str>,
}

#[derive(Debug)]
pub struct Mailbox {
    pub name: Arc<str>,
    /// Hash of the agent that it belongs to.
    pub owner: u64,
    /// Key of the agent whose share the mailbox uses.
    pub payer: u64,
    /// Number of messages that are not settled. Each is in exactly one of `leases`, `skipped`, `stored` and `waiting`.
    pub pending: u64,
    pub pending_bytes: u64,
    pub subscriber: Option<ConnId>,
    /// Whether a connection follows messages of this mailbox.
    pub followed: bool,
    /// Limits of what is pushed to the subscriber and not acknowledged.
    pub window: Window,
    pub leases: BTreeMap<Seq, Lease>,
    pub leased_bytes: u64,
    /// Pushed, but not encodable for this subscriber. They stay for the next one.
    pub skipped: BTreeSet<Seq>,
    /// Durable and not pushed, with their deadline or [`NO_DEADLINE`]. Fetched and pushed before `waiting`.
    pub stored: BTreeMap<Seq, Millis>,
    /// Not pushed and not yet durable, so still in memory. Invariant: all durable messages are older.
    pub waiting: BTreeSet<Seq>,
    /// Next sequence number to fetch: stored messages before it are leased or settled.
    pub cursor: Seq,
    pub fetching: bool,
    /// A message became pending again while a fetch was in progress, so its page may lack that message.
    pub page_is_stale: bool,
    /// Size of the stored message at the cursor if it did not fit into the window, to avoid fetching it again before it
    /// fits. Zero if unknown.
    pub next_size: u64,
    /// Push attempts of messages that are not leased. Each of them may have been pushed, also those with no attempts.
    pub attempts: HashMap<Seq, u32>,
    /// Acceptance time of the oldest message, as far as known without reading the disk.
    pub oldest_hint: Millis,
}

impl Mailbox {
    pub fn new(name: Arc<str>, (owner, payer): (u64, u64), window: Window) -> Self {
        Self {
            name,
            owner,
            payer,
            window,
            pending: 0,
            pending_bytes: 0,
            subscriber: None,
            followed: false,
            leases: BTreeMap::new(),
            leased_bytes: 0,
            skipped: BTreeSet::new(),
            stored: BTreeMap::new(),
            waiting: BTreeSet::new(),
            cursor: 0,
            fetching: false,
            page_is_stale: false,
            next_size: 0,
            attempts: HashMap::new(),
            oldest_hint: 0,
        }
    }

    /// Returns the number of durable messages that are not pushed yet.
    pub fn stored_unpushed(&self) -> u64 {
        let others = (self.leases.len() + self.skipped.len() + self.waiting.len()) as u64;
        debug_assert_eq!(self.stored.len() as u64 + others, self.pending, "each message is in exactly one set");
        self.stored.len() as u64
    }

    /// Registers a message that is durable and not leased.
    pub fn add_stored(&mut self, seq: Seq, expires_at: Option<Millis>) {
        self.stored.insert(seq, expires_at.unwrap_or(NO_DEADLINE));
    }

    /// Whether there is a subscriber and no message that must be pushed before a new one.
    pub fn is_caught_up(&self) -> bool {
        self.subscriber.is_some() && self.waiting.is_empty() && self.stored_unpushed() == 0
    }

    pub fn has_room(&self, size: u64) -> bool {
        // A message larger than the window is pushed alone, as it would otherwise never be pushed.
        self.leases.is_empty()
            || (self.leases.len() < self.window.messages && self.leased_bytes + size <= self.window.bytes)
    }

    /// Returns how many messages and bytes to fetch, or `None` while the window has too little room for a fetch.
    pub fn room_to_fetch(&self, options: &EngineOptions) -> Option<(usize, u64)> {
        // A wide window is filled by several short fetches.
        let page = options.window(false);
        let messages = self.window.messages.saturating_sub(self.leases.len()).min(page.messages);
        let bytes = self.window.bytes.saturating_sub(self.leased_bytes).min(page.bytes);
        let worthwhile = messages >= page.messages.div_ceil(4) && bytes >= page.bytes / 4;
        (self.leases.is_empty() || (worthwhile && self.has_room(self.next_size))).then_some((messages, bytes))
    }

    /// The sequence numbers of all pending messages, in no order.
    pub fn pending_seqs(&self) -> impl Iterator<Item = Seq> {
        self.leases.keys().chain(&self.skipped).chain(self.stored.keys()).chain(&self.waiting).copied()
    }

    /// Moves the cursor past a stored message that needs no further fetch.
    pub fn advance_past(&mut self, seq: Seq) {
        self.cursor = self.cursor.max(seq + 1);
        self.next_size = 0;
    }

    /// Moves the cursor back, so that fetching resumes at `seq`.
    pub fn rewind(&mut self, seq: Seq) {
        self.cursor = self.cursor.min(seq);
        self.next_size = 0;
    }

    pub fn lease(&mut self, seq: Seq, lease: Lease) {
        self.waiting.remove(&seq);
        self.stored.remove(&seq);
        self.advance_past(seq);
        self.leased_bytes += lease.size;
        self.leases.insert(seq, lease);
    }

    /// Skips a pushed message for the rest of this subscription. Returns false if it is not leased.
    pub fn skip(&mut self, seq: Seq) -> bool {
        let Some(lease) = self.leases.remove(&seq) else { return false };
        self.leased_bytes -= lease.size;
        self.skipped.insert(seq);
        true
    }

    /// Whether the message was pushed to the current subscriber.
    pub fn was_pushed(&self, seq: Seq) -> bool {
        self.leases.contains_key(&seq) || self.skipped.contains(&seq)
    }

    /// Removes a settled message from whichever set it is in.
    pub fn remove(&mut self, seq: Seq, size: u64) {
        if let Some(lease) = self.leases.remove(&seq) {
            self.leased_bytes -= lease.size;
            self.oldest_hint = lease.accepted_at;
        } else if !self.waiting.remove(&seq) && self.stored.remove(&seq).is_none() {
            self.skipped.remove(&seq);
        }
        self.attempts.remove(&seq);
        self.pending -= 1;
        self.pending_bytes -= size;
    }

    pub fn oldest(&self) -> Option<Millis> {
        match self.leases.first_key_value() {
            _ if self.pending == 0 => None,
            Some((_, lease)) => Some(lease.accepted_at),
            None => Some(self.oldest_hint),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.pending == 0 && self.subscriber.is_none()
    }
}
