//! Putting back what an earlier run left: the store replays its records in order, the engine rebuilds its books.

use crate::engine::DeadlineEntry;
use crate::ledger::{Known, PendingId};
use crate::unsettled::Unsettled;
use crate::{AttemptsNote, Engine, Fingerprint, Millis, PlantedBug, Seq, Settled};
use bytestring::ByteString;
use std::sync::Arc;

/// The facts of a stored message; its body stays on disk.
#[derive(Debug, Clone)]
pub struct RestoredMessage<'a> {
    pub seq: Seq,
    pub mailbox: &'a str,
    pub id: &'a str,
    pub from: &'a str,
    pub fingerprint: Fingerprint,
    pub content: u64,
    pub size: u64,
    pub accepted_at: Millis,
    pub expires_at: Option<Millis>,
}

impl Engine {
    pub fn restore_message(&mut self, message: RestoredMessage<'_>) {
        // Records are copied when their file is cleaned up; a crash in between leaves both.
        if self.ledger.pending(&message.fingerprint, message.seq) {
            return;
        }
        self.supersede(&message);
        let sender = self.sender_hash(message.from);
        let pending = PendingId { seq: message.seq, content: message.content, sender, size: message.size as u32 };
        self.ledger.insert_pending(message.fingerprint, pending);
        self.total_messages += 1;
        self.total_bytes += message.size;
        let index = self.mailbox(message.mailbox);
        let mailbox = &mut self.boxes[index];
        if mailbox.pending == 0 {
            mailbox.oldest_hint = message.accepted_at;
        }
        mailbox.pending += 1;
        mailbox.pending_bytes += message.size;
        mailbox.shelve(message.seq, message.expires_at);
        if let Some(at) = message.expires_at {
            let entry = DeadlineEntry {
                mailbox: Arc::clone(&self.boxes[index].name),
                fingerprint: message.fingerprint,
                id: ByteString::from(message.id),
                from: Arc::from(message.from),
                accepted_at: message.accepted_at,
            };
            self.deadlines.insert((at, message.seq), entry);
        }
    }

    /// Two of one id can't both be pending: the first was settled before the second came, and the note of it is lost.
    fn supersede(&mut self, message: &RestoredMessage<'_>) {
        let first = self.ledger.get(&message.fingerprint).filter(|known| known.pending);
        if let Some(Known { seq, content, size, .. }) = first {
            self.strike_restored(message.mailbox, seq, &message.fingerprint);
            let stored = Some((Arc::from(message.mailbox), seq));
            let (fingerprint, size, at) = (message.fingerprint, size.into(), message.accepted_at);
            self.open.settled.push(Settled { fingerprint, content, size, at, stored });
            self.open.due_by(message.accepted_at);
        }
    }

    pub fn restore_settled(&mut self, settled: &Settled) {
        if let Some((name, seq)) = &settled.stored
            && self.ledger.pending(&settled.fingerprint, *seq)
        {
            self.strike_restored(name, *seq, &settled.fingerprint);
        }
        // An id that is pending again was used anew after it had been forgotten.
        let reused = self.ledger.get(&settled.fingerprint).is_some_and(|known| known.pending);
        if !reused && !self.options.planted(PlantedBug::DedupForgotten) {
            let limits = (self.options.history_ids, self.options.history_age);
            self.ledger.settle(settled.fingerprint, settled.content, settled.at, limits);
        }
    }

    fn strike_restored(&mut self, mailbox: &str, seq: Seq, fingerprint: &Fingerprint) {
        let Some(&index) = self.names.get(mailbox) else { return };
        let size = self.ledger.get(fingerprint).map_or(0, |known| u64::from(known.size));
        self.boxes[index].remove(seq, size);
        self.total_messages -= 1;
        self.total_bytes -= size;
        self.ledger.forget(fingerprint);
        self.drop_if_idle(index);
    }

    pub fn restore_attempts(&mut self, note: &AttemptsNote) {
        if let Some(&index) = self.names.get(&note.mailbox) {
            self.boxes[index].attempts.insert(note.seq, note.attempts);
        }
    }

    /// Ends the replay. Messages that the store found damaged are counted, so that someone sees it.
    pub fn finish_restore(&mut self, next_seq: Seq, next_batch: u64, set_aside: u64) {
        self.unsettled = Unsettled::starting_at(next_seq.max(1));
        self.next_batch = next_batch.max(1);
        self.set_aside = set_aside;
    }
}
