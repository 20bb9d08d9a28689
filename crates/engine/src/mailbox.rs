//! The state of one mailbox: counters, the subscriber, and what is on its way to it. Bodies are not here.

use crate::{ConnId, EngineOptions, Fingerprint, Millis, Seq, Window};
use bytestring::ByteString;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The deadline of a message that has none.
pub const NEVER: Millis = Millis::MAX;

/// A message that was pushed to the subscriber and is not acknowledged yet.
#[derive(Debug, Clone)]
pub struct Lease {
    pub fingerprint: Fingerprint,
    pub size: u64,
    pub attempt: u32,
    pub accepted_at: Millis,
    pub expires_at: Option<Millis>,
    /// Its sender took it back: should it be given back, it goes to nobody else. Not on disk.
    pub cancelled: Option<Box<TakenBack>>,
}

/// Whom to tell, and of what, when a message goes that was taken back.
#[derive(Debug, Clone)]
pub struct TakenBack {
    pub id: ByteString,
    pub from: Arc<str>,
}

#[derive(Debug)]
pub struct Mailbox {
    pub name: Arc<str>,
    /// All messages that are neither acknowledged nor expired nor moved away.
    pub pending: u64,
    pub pending_bytes: u64,
    pub subscriber: Option<ConnId>,
    /// What the subscriber may have in its hands.
    pub window: Window,
    pub leases: BTreeMap<Seq, Lease>,
    pub leased_bytes: u64,
    /// Pushed to the subscriber, which could not be shown them. They wait for another one.
    pub skipped: BTreeSet<Seq>,
    /// Durable, not pushed, and to be read from the store before the waiting ones: when each expires, or [`NEVER`].
    pub stored: BTreeMap<Seq, Millis>,
    /// Not pushed and still in memory, because not durable yet. Everything durable is older than these.
    pub waiting: BTreeSet<Seq>,
    /// Stored messages before this place are leased or off the books.
    pub cursor: Seq,
    pub fetching: bool,
    /// What is being read back was asked for before a message came back onto the books, and may lack it.
    pub page_is_stale: bool,
    /// Size of the stored message at the cursor, once it was found not to fit: until it does, reading it again is
    /// no use. Zero if unknown.
    pub next_size: u64,
    /// How often messages were pushed that are not leased now.
    pub attempts: HashMap<Seq, u32>,
    /// When the oldest message arrived, as far as it is known without reading the disk.
    pub oldest_hint: Millis,
}

impl Mailbox {
    pub fn new(name: Arc<str>, window: Window) -> Self {
        Self {
            name,
            window,
            pending: 0,
            pending_bytes: 0,
            subscriber: None,
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

    /// Durable messages that were not pushed yet: they have to be read from the store, before the waiting ones.
    pub fn stored_unpushed(&self) -> u64 {
        let elsewhere = (self.leases.len() + self.skipped.len() + self.waiting.len()) as u64;
        debug_assert_eq!(self.stored.len() as u64 + elsewhere, self.pending, "each message stands in one place");
        self.stored.len() as u64
    }

    /// A message that nobody was pushed is on disk, and only there.
    pub fn shelve(&mut self, seq: Seq, expires_at: Option<Millis>) {
        self.stored.insert(seq, expires_at.unwrap_or(NEVER));
    }

    /// Whether the next message can go straight to the subscriber, with nothing before it.
    pub fn is_caught_up(&self) -> bool {
        self.subscriber.is_some() && self.waiting.is_empty() && self.stored_unpushed() == 0
    }

    pub fn has_room(&self, size: u64) -> bool {
        // A message larger than the window goes alone rather than never.
        self.leases.is_empty()
            || (self.leases.len() < self.window.messages && self.leased_bytes + size <= self.window.bytes)
    }

    /// Room for a read from the store, or `None` while it would be too small to be worth one.
    pub fn room_to_fetch(&self, options: &EngineOptions) -> Option<(usize, u64)> {
        // A wide window is filled by several reads, so that none takes long.
        let page = options.window(false);
        let messages = self.window.messages.saturating_sub(self.leases.len()).min(page.messages);
        let bytes = self.window.bytes.saturating_sub(self.leased_bytes).min(page.bytes);
        let worthwhile = messages >= page.messages.div_ceil(4) && bytes >= page.bytes / 4;
        (self.leases.is_empty() || (worthwhile && self.has_room(self.next_size))).then_some((messages, bytes))
    }

    /// The stored message at this place needs no further reading.
    pub fn pass(&mut self, seq: Seq) {
        self.cursor = self.cursor.max(seq + 1);
        self.next_size = 0;
    }

    /// Reading starts over from this place.
    pub fn rewind(&mut self, seq: Seq) {
        self.cursor = self.cursor.min(seq);
        self.next_size = 0;
    }

    pub fn lease(&mut self, seq: Seq, lease: Lease) {
        self.waiting.remove(&seq);
        self.stored.remove(&seq);
        self.pass(seq);
        self.leased_bytes += lease.size;
        self.leases.insert(seq, lease);
    }

    /// Passes over a pushed message for the rest of this subscription. False if it is not in flight.
    pub fn skip(&mut self, seq: Seq) -> bool {
        let Some(lease) = self.leases.remove(&seq) else { return false };
        self.leased_bytes -= lease.size;
        self.skipped.insert(seq);
        true
    }

    /// Whether the subscriber was pushed this message.
    pub fn was_pushed(&self, seq: Seq) -> bool {
        self.leases.contains_key(&seq) || self.skipped.contains(&seq)
    }

    /// Takes a message off the books, wherever it stands.
    pub fn remove(&mut self, seq: Seq, size: u64) {
        if let Some(lease) = self.leases.remove(&seq) {
            self.leased_bytes -= lease.size;
            self.oldest_hint = lease.accepted_at;
        } else if !self.waiting.remove(&seq) && self.stored.remove(&seq).is_none() {
            self.skipped.remove(&seq);
        }
        if !self.attempts.is_empty() {
            self.attempts.remove(&seq);
        }
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
