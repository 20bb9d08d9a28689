//! Group commit: contents and due time of the next batch, and the handling of a synced or refused one.

use crate::ledger::{Payer, PendingId};
use crate::totals::Charge;
use crate::unsettled::{Provisional, Waiters};
use crate::{ConnId, Effects, Engine, Fingerprint, Message, Millis, Outgoing, Refusal, Seq};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Records that are written and fsynced together, atomically with respect to crashes.
#[derive(Debug, Default)]
pub struct Batch {
    /// Number of the batch, ascending by one.
    pub number: u64,
    /// When the batch was closed.
    pub at: Millis,
    /// Lower bound of all sequence numbers that were assigned after this batch was closed.
    pub next_seq: Seq,
    /// Messages to write.
    pub puts: Vec<Arc<Message>>,
    /// Settlements to write.
    pub settled: Vec<Settled>,
    /// Push attempts to write.
    pub attempts: Vec<AttemptsNote>,
    /// Whether to fsync it. If not, it contains no messages, and is fsynced with a later batch.
    pub sync: bool,
}

impl Batch {
    /// Whether there is nothing to write. Such a batch makes earlier ones durable.
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.settled.is_empty() && self.attempts.is_empty()
    }
}

/// A settled message, whose id is remembered for deduplication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// Hash of mailbox and id.
    pub fingerprint: Fingerprint,
    /// Hash of content and sender.
    pub content: u64,
    /// Size of the message.
    pub size: u64,
    /// When the message was settled.
    pub at: Millis,
    /// Mailbox and sequence number of its record; `None` if the record was elided.
    pub stored: Option<(Arc<str>, Seq)>,
}

/// The number of push attempts of a message that was not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptsNote {
    /// Mailbox of the message.
    pub mailbox: Arc<str>,
    /// Sequence number of the message.
    pub seq: Seq,
    /// Number of push attempts.
    pub attempts: u32,
}

/// A frame to send once the batch is durable: the result of an acknowledgement, or the notice of a withdrawal.
#[derive(Debug)]
pub(crate) struct Confirmation {
    pub conn: ConnId,
    pub outgoing: Outgoing,
}

/// The contents of the next batch, except for messages.
#[derive(Debug, Default)]
pub(crate) struct OpenBatch {
    pub settled: Vec<Settled>,
    /// By sequence number, so that a recipient that reconnects repeatedly causes one record per message.
    pub attempts: BTreeMap<Seq, AttemptsNote>,
    pub confirmations: Vec<Confirmation>,
    /// When these should be written, if there are any.
    due: Option<Millis>,
    /// When these should be durable, if there are any. Never before `due`.
    sync_due: Option<Millis>,
}

impl OpenBatch {
    pub fn write_by(&mut self, at: Millis) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    pub fn durable_by(&mut self, at: Millis) {
        self.write_by(at);
        self.sync_due = Some(self.sync_due.map_or(at, |due| due.min(at)));
    }

    pub fn note_attempts(&mut self, mailbox: &Arc<str>, seq: Seq, attempts: u32) {
        self.attempts.insert(seq, AttemptsNote { mailbox: Arc::clone(mailbox), seq, attempts });
    }

    fn is_empty(&self) -> bool {
        self.settled.is_empty() && self.attempts.is_empty() && self.confirmations.is_empty()
    }

    /// Puts the contents of a refused batch before those that were added since.
    fn requeue(&mut self, mut batch: Batch, mut confirmations: Vec<Confirmation>) {
        batch.settled.append(&mut self.settled);
        self.settled = batch.settled;
        for note in batch.attempts {
            self.attempts.entry(note.seq).or_insert(note);
        }
        confirmations.append(&mut self.confirmations);
        self.confirmations = confirmations;
    }
}

#[derive(Debug)]
pub(crate) struct WritingBatch {
    number: u64,
    messages: std::ops::Range<Seq>,
    confirmations: Vec<Confirmation>,
    sync: bool,
    /// Settlements in this batch whose reply was dead-lettered since, by the dead letter that they are attached to if
    /// the batch is refused.
    pub transferred: Vec<(Seq, Vec<Provisional>)>,
}

impl Engine {
    /// Closes and returns the batch that is due, unless another one is being written. The shell writes it, fsyncs it
    /// if it has to be ([`Batch::sync`]), and then calls [`Engine::synced`] or [`Engine::batch_refused`].
    pub fn take_batch(&mut self, now: Millis) -> Option<Batch> {
        if self.writing.is_some() || self.batch_due().is_none_or(|due| due > now) {
            return None;
        }
        let open = std::mem::take(&mut self.open);
        let number = self.next_batch;
        self.next_batch += 1;
        let mut closed = self.unsettled.close_batch(now);
        let mut settled = open.settled;
        settled.append(&mut closed.settled);
        let sync_due = [open.sync_due, self.unsynced_due].into_iter().flatten().min();
        let sync = !closed.puts.is_empty() || !open.confirmations.is_empty() || sync_due.is_some_and(|due| due <= now);
        if !sync {
            (self.unsynced_due, self.next_ack_write) = (sync_due, now + 1);
        }
        self.writing = Some(WritingBatch {
            number,
            messages: closed.messages.clone(),
            confirmations: open.confirmations,
            sync,
            transferred: Vec::new(),
        });
        let next_seq = self.unsettled.end();
        let attempts = open.attempts.into_values().collect();
        Some(Batch { number, at: now, next_seq, puts: closed.puts, settled, attempts, sync })
    }

    /// Sends a frame once all current settlements are durable, and makes the open batch due now.
    pub(crate) fn send_when_durable(&mut self, now: Millis, conn: ConnId, outgoing: Outgoing) {
        self.open.confirmations.push(Confirmation { conn, outgoing });
        self.open.durable_by(now);
        self.unsettled.hurry();
    }

    /// Makes the open batch due now.
    pub fn hurry(&mut self, now: Millis) {
        self.unsettled.hurry();
        if self.open.due.is_some() {
            self.open.durable_by(now);
        }
        self.unsynced_due = self.unsynced_due.map(|due| due.min(now));
    }

    pub(crate) fn batch_due(&self) -> Option<Millis> {
        [self.unsettled.next_due(), self.open.due, self.unsynced_due].into_iter().flatten().min()
    }

    /// Returns whether a batch is being written or has contents to write.
    pub fn anything_to_write(&self) -> bool {
        self.writing.is_some() || self.batch_due().is_some()
    }

    /// Handles a written batch, and fsynced if it has to be: sends its receipts and confirmations.
    pub fn synced(&mut self, number: u64, effects: &mut Effects) {
        let Some(writing) = self.writing.take_if(|writing| writing.number == number) else { return };
        self.unsynced_due.take_if(|_| writing.sync);
        for seq in writing.messages {
            // Messages that were settled in the meantime are already removed.
            let Some(durable) = self.unsettled.remove(seq) else { continue };
            if let Some(&index) = self.names.get(&durable.message.mailbox)
                && self.boxes[index].waiting.remove(&seq)
            {
                self.boxes[index].add_stored(seq, durable.message.expires_at);
            }
            durable.waiters.into_iter().for_each(|waiter| self.receipt(waiter, effects));
        }
        for Confirmation { conn, outgoing } in writing.confirmations {
            if self.conns.contains_key(&conn) {
                effects.send(conn, outgoing);
            }
        }
    }

    /// Handles a batch that the disk had no room for: refuses its messages and retries its settlements at `retry_at`.
    pub fn batch_refused(&mut self, now: Millis, mut batch: Batch, retry_at: Millis, effects: &mut Effects) {
        let Some(writing) = self.writing.take_if(|writing| writing.number == batch.number) else { return };
        self.disk_low = true;
        let puts = std::mem::take(&mut batch.puts);
        self.open.requeue(batch, writing.confirmations);
        for (message, settles) in writing.transferred {
            self.open.settled.retain(|settled| !settles.iter().any(|provisional| provisional.settled == *settled));
            self.attach_settlements(message, settles);
        }
        self.open.confirmations.retain(|confirmation| self.conns.contains_key(&confirmation.conn));
        self.clear_refused_records(&puts);
        let mut touched: BTreeSet<Arc<str>> = puts.iter().map(|message| Arc::clone(&message.mailbox)).collect();
        let mut reverted = Vec::new();
        for message in &puts {
            // Messages that were settled in the meantime are already removed.
            let Some(refused) = self.unsettled.remove(message.seq) else { continue };
            self.discard_refused(message);
            self.notify_refused(message, &refused.settles, refused.waiters, effects);
            reverted.extend(refused.settles);
        }
        touched.extend(reverted.into_iter().filter_map(|provisional| self.revert_settlement(provisional)));
        // Only settlements, attempts and confirmations remain: they are never refused, but retried.
        self.open.due = (!self.open.is_empty()).then_some(retry_at);
        self.open.sync_due = self.open.due;
        self.unsynced_due = self.unsynced_due.map(|due| due.max(retry_at));
        for name in touched {
            if let Some(&index) = self.names.get(&name) {
                self.pump(now, index, effects);
                self.drop_if_idle(index);
            }
        }
        self.notify_followers(effects);
    }

    /// Clears the references of settlements to records that were refused.
    fn clear_refused_records(&mut self, refused: &[Arc<Message>]) {
        let is_refused = |seq: &Seq| refused.binary_search_by_key(seq, |message| message.seq).is_ok();
        let provisional = self.unsettled.iter_mut().flat_map(|unsettled| &mut unsettled.settles);
        for settled in self.open.settled.iter_mut().chain(provisional.map(|provisional| &mut provisional.settled)) {
            settled.stored.take_if(|(_, seq)| is_refused(seq));
        }
    }

    fn discard_refused(&mut self, message: &Message) {
        let owner = self.owner_key(&message.mailbox);
        self.totals.remove(self.charge(&message.fingerprint, owner, message.size()));
        self.ledger.forget(&message.fingerprint);
        self.open.attempts.remove(&message.seq);
        if let Some(at) = message.expires_at {
            self.deadlines.remove(&(at, message.seq));
        }
        if let Some(&index) = self.names.get(&message.mailbox) {
            self.boxes[index].remove(message.seq, message.size());
            self.message_changed(index, message.fingerprint);
        }
    }

    /// Answers the waiters of a refused message. A request that it settled is refused with it if it has no record of
    /// its own, and receipted otherwise.
    fn notify_refused(&self, message: &Message, settles: &[Provisional], waiters: Waiters, effects: &mut Effects) {
        for waiter in waiters {
            let lost = |settled: &Settled| settled.fingerprint == waiter.fingerprint && settled.stored.is_none();
            let refused = waiter.fingerprint == message.fingerprint || settles.iter().any(|it| lost(&it.settled));
            if !refused {
                self.receipt(waiter, effects);
            } else if self.conns.contains_key(&waiter.conn) {
                effects.send(waiter.conn, Outgoing::Refused { refusal: Refusal::DiskFull, id: Some(waiter.id) });
            }
        }
    }

    /// Makes a message pending again whose settling reply was refused. Returns its mailbox.
    fn revert_settlement(&mut self, Provisional { settled, sender, deadline }: Provisional) -> Option<Arc<str>> {
        if self.ledger.get(&settled.fingerprint).is_some_and(|known| known.pending) {
            // The id was forgotten and reused: the newer message replaces this one.
            return None;
        }
        self.open.settled.retain(|other| *other != settled);
        let Some((name, seq)) = settled.stored else {
            self.ledger.forget_settled(&settled.fingerprint);
            return None;
        };
        let payer = Payer::Sender;
        let pending = PendingId { seq, content: settled.content, sender, size: settled.size as u32, payer };
        self.ledger.revive(settled.fingerprint, pending);
        self.totals.add(Charge { sender, payer, owner: self.owner_key(&name), size: settled.size });
        let expires_at = deadline.as_ref().map(|((at, _), _)| *at);
        self.deadlines.extend(deadline);
        let index = self.mailbox(&name);
        self.message_changed(index, settled.fingerprint);
        let mailbox = &mut self.boxes[index];
        mailbox.add_stored(seq, expires_at);
        // It was pushed before it was answered or dead-lettered. The number of attempts starts again.
        mailbox.attempts.insert(seq, 0);
        mailbox.pending += 1;
        mailbox.pending_bytes += settled.size;
        mailbox.rewind(seq);
        mailbox.page_is_stale = mailbox.fetching;
        Some(name)
    }
}
