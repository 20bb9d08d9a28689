//! Rebuilds the index and the engine's state from the records of the log.

use crate::StoreOptions;
use crate::index::{Index, RememberedId};
use crate::record::{self, Record};
use std::sync::Arc;
use toolbus_engine::{AttemptsNote, Message, RestoredMessage, Seq, Settled};
use toolbus_wal::{Frame, Location};

/// Receives the records of the log in log order, to rebuild state from them.
pub trait Replay {
    /// A message was stored, or copied by compaction.
    fn message(&mut self, message: RestoredMessage<'_>);
    /// A message was settled.
    fn settled(&mut self, settled: &Settled);
    /// The number of delivery attempts of a message changed.
    fn attempts(&mut self, note: &AttemptsNote);
}

/// The result of replaying the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The first sequence number that was never assigned.
    pub next_seq: Seq,
    /// Number of intact records in the log.
    pub records: u64,
    /// Bytes of a torn write at the end of the log.
    pub torn_bytes: u64,
    /// Number of ranges that were corrupted after they had become durable.
    pub damaged: u64,
    /// Total bytes of the corrupt ranges.
    pub damaged_bytes: u64,
    /// Number of missing segment files.
    pub missing_segments: u32,
    /// Number of intact records of an unknown format, which were ignored.
    pub unknown: u64,
}

/// A replay in progress.
pub struct Replaying<'a> {
    options: &'a StoreOptions,
    target: &'a mut dyn Replay,
    index: Index,
    next_seq: Seq,
    unknown: u64,
}

impl<'a> Replaying<'a> {
    pub fn new(options: &'a StoreOptions, target: &'a mut dyn Replay) -> Self {
        Self { options, target, index: Index::default(), next_seq: 0, unknown: 0 }
    }

    pub fn record(&mut self, frame: Frame) {
        let location = frame.location;
        match record::read_record(frame) {
            Some(record) => self.apply(record, location),
            None => {
                self.unknown += 1;
                tracing::error!(?location, "a record of the log has an unknown format");
            }
        }
    }

    pub fn finish(mut self, log: toolbus_wal::Recovery) -> (Index, Recovery) {
        self.index.sort_ids(self.options.history_ids, self.options.history_age);
        let toolbus_wal::Recovery { records, torn_bytes, damaged, damaged_bytes, missing_segments } = log;
        let Self { index, next_seq, unknown, .. } = self;
        (index, Recovery { next_seq, records, torn_bytes, damaged, damaged_bytes, missing_segments, unknown })
    }

    fn apply(&mut self, record: Record, location: Location) {
        let index = &mut self.index;
        match record {
            Record::Put(message) => {
                self.next_seq = self.next_seq.max(message.seq + 1);
                self.target.message(restored(&message));
                let name = match index.mailboxes.get_key_value(&message.mailbox) {
                    Some((name, _)) => Arc::clone(name),
                    None => Arc::clone(&message.mailbox),
                };
                index.add(&name, message.seq, location);
            }
            Record::Settled(all) => {
                for settled in all {
                    if let Some((mailbox, seq)) = &settled.stored {
                        index.remove(mailbox, *seq);
                    }
                    self.target.settled(&settled);
                    let Settled { fingerprint, content, at, .. } = settled;
                    let id = RememberedId { fingerprint, content, at, segment: location.segment };
                    index.remember_replayed(id, self.options.history_ids, self.options.history_age);
                }
            }
            Record::NextSeq(next) => self.next_seq = self.next_seq.max(next),
            Record::Attempts(all) => {
                for note in &all {
                    index.note_attempts(note);
                    self.target.attempts(note);
                }
            }
        }
    }
}

fn restored(message: &Message) -> RestoredMessage<'_> {
    RestoredMessage {
        seq: message.seq,
        mailbox: &message.mailbox,
        id: &message.id,
        from: &message.from.name,
        fingerprint: message.fingerprint,
        content: message.content,
        size: message.size(),
        accepted_at: message.accepted_at,
        expires_at: message.expires_at,
    }
}
