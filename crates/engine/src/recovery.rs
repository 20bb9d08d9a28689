//! Recovery: the store replays its records in order, and the engine rebuilds its state.

use crate::engine::DeadlineEntry;
use crate::ledger::{KnownId, Payer, PendingId};
use crate::totals::Charge;
use crate::unsettled::Unsettled;
use crate::{AttemptsNote, Engine, Fingerprint, Millis, PlantedBug, Seq, Settled};
use bytestring::ByteString;
use std::sync::Arc;

/// The metadata of a stored message; its body stays on disk.
#[derive(Debug, Clone)]
pub struct RestoredMessage<'a> {
    /// Sequence number.
    pub seq: Seq,
    /// Mailbox that the message is in.
    pub mailbox: &'a str,
    /// Id of the message.
    pub id: &'a str,
    /// Name of the sender.
    pub from: &'a str,
    /// Hash of mailbox and id.
    pub fingerprint: Fingerprint,
    /// Hash of content and sender.
    pub content: u64,
    /// Size, as in [`crate::Message::size`].
    pub size: u64,
    /// When the broker accepted the message.
    pub accepted_at: Millis,
    /// When the deadline passes, if there is one.
    pub expires_at: Option<Millis>,
}

impl Engine {
    /// Restores a message record. Idempotent.
    pub fn restore_message(&mut self, message: RestoredMessage<'_>) {
        // Compaction copies records; a crash before the old segment is removed leaves both copies.
        if self.ledger.pending(&message.fingerprint, message.seq) {
            return;
        }
        self.supersede(&message);
        let sender = self.sender_key(message.from);
        // Whether it settled a request is not in the log.
        let payer = Payer::Sender;
        let size = message.size as u32;
        let pending = PendingId { seq: message.seq, content: message.content, sender, size, payer };
        self.ledger.insert_pending(message.fingerprint, pending);
        let index = self.mailbox_paid_by(message.mailbox, sender.agent);
        self.totals.add(Charge { sender, payer, owner: self.boxes[index].owner, size: message.size });
        let mailbox = &mut self.boxes[index];
        if mailbox.pending == 0 {
            mailbox.oldest_hint = message.accepted_at;
        }
        mailbox.pending += 1;
        mailbox.pending_bytes += message.size;
        mailbox.add_stored(message.seq, message.expires_at);
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

    /// Settles an earlier pending message with the same fingerprint. It must have been settled before the later one was
    /// accepted, and that record is lost.
    fn supersede(&mut self, message: &RestoredMessage<'_>) {
        let first = self.ledger.get(&message.fingerprint).filter(|known| known.pending);
        if let Some(KnownId { seq, content, size, .. }) = first {
            self.discard_restored(message.mailbox, seq, &message.fingerprint);
            let stored = Some((Arc::from(message.mailbox), seq));
            let (fingerprint, size, at) = (message.fingerprint, size.into(), message.accepted_at);
            self.open.settled.push(Settled { fingerprint, content, size, at, stored });
            self.open.durable_by(message.accepted_at);
        }
    }

    /// Restores a settlement record.
    pub fn restore_settled(&mut self, settled: &Settled) {
        if let Some((name, seq)) = &settled.stored
            && self.ledger.pending(&settled.fingerprint, *seq)
        {
            self.discard_restored(name, *seq, &settled.fingerprint);
        }
        if !self.options.planted(PlantedBug::DedupForgotten) {
            let Settled { fingerprint, content, at, .. } = *settled;
            self.ledger.restore_settled(fingerprint, content, at, self.options.history_ids);
        }
    }

    fn discard_restored(&mut self, mailbox: &str, seq: Seq, fingerprint: &Fingerprint) {
        let Some(&index) = self.names.get(mailbox) else { return };
        let size = self.ledger.get(fingerprint).map_or(0, |known| u64::from(known.size));
        self.boxes[index].remove(seq, size);
        self.totals.remove(self.charge(fingerprint, self.boxes[index].owner, size));
        self.ledger.forget(fingerprint);
        self.drop_if_idle(index);
    }

    /// Restores the number of push attempts of a message.
    pub fn restore_attempts(&mut self, note: &AttemptsNote) {
        if let Some(&index) = self.names.get(&note.mailbox) {
            self.boxes[index].attempts.insert(note.seq, note.attempts);
        }
    }

    /// Ends the recovery. `set_aside` is the number of corrupt records that the store found; the status reports it.
    pub fn finish_restore(&mut self, next_seq: Seq, next_batch: u64, set_aside: u64) {
        self.unsettled = Unsettled::starting_at(next_seq.max(1));
        self.restored_until = self.unsettled.end();
        self.next_batch = next_batch.max(1);
        self.set_aside = set_aside;
        self.ledger.end_restore((self.options.history_ids, self.options.history_age));
    }
}
