//! Reads everything that the logs of a place have.

use crate::digest;
use crate::error::MoveError;
use std::collections::HashSet;
use std::sync::Arc;
use toolbus_broker::{MovedState, StatePlace, purpose_of_sealed};
use toolbus_engine::{AttemptsNote, Fingerprint, Message, Millis, Purpose, RestoredMessage, Seq, Settled};
use toolbus_store::{Disk, LogStore, Recovery, Replay, Store, StoreOptions};

/// How much is read at once.
const PAGE_MESSAGES: usize = 1024;
const PAGE_BYTES: u64 = 1 << 20;

/// A message log and the state beside it.
pub struct Log {
    pub store: LogStore,
    pub recovery: Recovery,
    pub place: StatePlace,
    pub state: MovedState,
}

/// A pending message, without its body.
pub struct Item {
    /// The position of its log.
    pub log: usize,
    pub mailbox: Arc<str>,
    pub seq: Seq,
    pub attempts: Option<u32>,
    pub accepted_at: Millis,
    pub fingerprint: Fingerprint,
    /// What [`Contents::messages`] was asked to note.
    pub route: u16,
    pub lane: u128,
    pub hash: u128,
}

/// All that logs have.
#[derive(Default)]
pub struct Contents {
    /// In the order of logs, then by mailbox and sequence number.
    pub messages: Vec<Item>,
    /// Bodies of all messages.
    pub bytes: u64,
    /// The settled ids of each log.
    pub ids: Vec<Vec<Settled>>,
    /// Number of messages that were left out.
    pub left_out: u64,
    /// Number of messages whose records are corrupt.
    pub unreadable: u64,
}

/// What to do with a message.
pub enum Verdict {
    /// It is one of the contents, with this route.
    Keep(u16),
    /// Only its id is kept, as if the message had been settled.
    LeaveOut,
}

struct NoReplay;

impl Replay for NoReplay {
    fn message(&mut self, _: RestoredMessage<'_>) {}
    fn settled(&mut self, _: &Settled) {}
    fn attempts(&mut self, _: &AttemptsNote) {}
}

impl Log {
    /// Opens a log. The seed is the secret of its place.
    pub fn open(disk: Arc<dyn Disk>, place: StatePlace, seed: u64) -> Result<Self, MoveError> {
        let options = StoreOptions { checksum_seed: seed, ..StoreOptions::default() };
        let (store, recovery) = LogStore::open(disk, options, &mut NoReplay)?;
        let state = place.read().map_err(MoveError::State)?;
        Ok(Self { store, recovery, place, state })
    }

    /// Fails if a part of the log can't be read.
    pub fn check_intact(&self) -> Result<(), MoveError> {
        let Recovery { damaged, damaged_bytes, missing_segments, unknown, .. } = self.recovery;
        match (damaged, missing_segments, unknown) {
            (0, 0, 0) => Ok(()),
            _ => Err(MoveError::Damaged { ranges: damaged, bytes: damaged_bytes, missing_segments, unknown }),
        }
    }
}

impl Contents {
    /// Reads all messages and ids. `verdict` is asked for each message, with the position of its log.
    pub fn of(logs: &[Log], verdict: impl Fn(usize, &Message, Purpose) -> Verdict) -> Result<Self, MoveError> {
        let mut contents = Self::default();
        for (number, log) in logs.iter().enumerate() {
            let mut ids = log.store.remembered();
            // Not later than the latest settlement, so that no other id is forgotten earlier for it.
            let newest = ids.last().map(|id| id.at);
            let mut pages = Pages::new(&log.store);
            for (mailbox, seq, attempts) in log.store.pending() {
                let Some(message) = pages.message(&mailbox, seq)? else {
                    contents.unreadable += 1;
                    continue;
                };
                let purpose = purpose_of_sealed(&message.sealed);
                match verdict(number, &message, purpose) {
                    Verdict::Keep(route) => {
                        contents.bytes += message.sealed.len() as u64;
                        contents.messages.push(Item {
                            log: number,
                            mailbox,
                            seq,
                            attempts,
                            accepted_at: message.accepted_at,
                            fingerprint: message.fingerprint,
                            route,
                            lane: digest::lane_of(&message, purpose),
                            hash: digest::of_message(&message, attempts),
                        });
                    }
                    Verdict::LeaveOut => {
                        contents.left_out += 1;
                        let Message { fingerprint, content, accepted_at, .. } = *message;
                        let at = newest.unwrap_or(accepted_at);
                        ids.push(Settled { fingerprint, content, size: 0, at, stored: None });
                    }
                }
            }
            contents.ids.push(ids);
        }
        Ok(contents)
    }
}

impl Contents {
    /// Fails if two pending messages have one id in one mailbox. Partitions deduplicate ids on their own, but a log keeps only
    /// one of two such messages.
    pub fn check_ids(&self) -> Result<(), MoveError> {
        let mut known = HashSet::with_capacity(self.messages.len());
        match self.messages.iter().find(|item| !known.insert(item.fingerprint)) {
            Some(item) => Err(MoveError::SameId { mailbox: item.mailbox.to_string() }),
            None => Ok(()),
        }
    }
}

/// Reads messages one after the other, a page at a time.
pub struct Pages<'a> {
    store: &'a LogStore,
    mailbox: Arc<str>,
    page: std::collections::VecDeque<Arc<Message>>,
}

impl<'a> Pages<'a> {
    pub fn new(store: &'a LogStore) -> Self {
        Self { store, mailbox: "".into(), page: Default::default() }
    }

    /// A pending message, or `None` if its record is corrupt.
    pub fn message(&mut self, mailbox: &Arc<str>, seq: Seq) -> Result<Option<Arc<Message>>, MoveError> {
        if self.mailbox != *mailbox {
            self.page.clear();
            self.mailbox = Arc::clone(mailbox);
        }
        while self.page.front().is_some_and(|message| message.seq < seq) {
            self.page.pop_front();
        }
        if self.page.front().is_none_or(|message| message.seq != seq) {
            self.page = self.store.read(mailbox, seq, PAGE_MESSAGES, PAGE_BYTES)?.messages.into();
        }
        Ok(self.page.front().filter(|message| message.seq == seq).cloned())
    }
}
