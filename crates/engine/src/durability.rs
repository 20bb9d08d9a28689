//! The way to disk: what the next batch holds, when it is due, and what follows once it is synced or refused.

use crate::ledger::PendingId;
use crate::unsettled::{Provisional, Waiters};
use crate::{ConnId, Effects, Engine, Fingerprint, Message, Millis, Outgoing, Refusal, Seq};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is written and synced in one step: all of it survives a crash, or nothing.
#[derive(Debug, Default)]
pub struct Batch {
    pub number: u64,
    pub at: Millis,
    /// No sequence number from here on was given out before this batch was closed.
    pub next_seq: Seq,
    pub puts: Vec<Arc<Message>>,
    pub settled: Vec<Settled>,
    pub attempts: Vec<AttemptsNote>,
}

/// A message that needs no delivery any more. Its id is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    pub fingerprint: Fingerprint,
    pub content: u64,
    pub size: u64,
    pub at: Millis,
    /// Where its record is; `None` if it never got one.
    pub stored: Option<(Arc<str>, Seq)>,
}

/// How often a message was pushed in vain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptsNote {
    pub mailbox: Arc<str>,
    pub seq: Seq,
    pub attempts: u32,
}

/// What somebody is told once the batch is on disk: that an acknowledgement will last, or that a message is taken back.
#[derive(Debug)]
pub(crate) struct Confirmation {
    pub conn: ConnId,
    pub outgoing: Outgoing,
}

/// What accumulates besides messages until the next batch is closed.
#[derive(Debug, Default)]
pub(crate) struct OpenBatch {
    pub settled: Vec<Settled>,
    /// By place, so that a recipient that comes and goes makes one note and not many.
    pub attempts: BTreeMap<Seq, AttemptsNote>,
    pub confirmations: Vec<Confirmation>,
    /// When the above should be written, if any.
    pub due: Option<Millis>,
}

impl OpenBatch {
    pub fn due_by(&mut self, at: Millis) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    pub fn note_attempts(&mut self, mailbox: &Arc<str>, seq: Seq, attempts: u32) {
        self.attempts.insert(seq, AttemptsNote { mailbox: Arc::clone(mailbox), seq, attempts });
    }

    fn is_empty(&self) -> bool {
        self.settled.is_empty() && self.attempts.is_empty() && self.confirmations.is_empty()
    }

    /// Takes back what could not be written, as older than what came since.
    fn put_back(&mut self, mut batch: Batch, mut confirmations: Vec<Confirmation>) {
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
    /// Settlements in this batch whose reply died since, and the letter they go with should the batch be refused.
    pub handed_over: Vec<(Seq, Vec<Provisional>)>,
}

impl Engine {
    /// The batch that is due, if the store is free to take one. The shell writes and syncs it and then reports
    /// [`Engine::synced`] or [`Engine::batch_refused`].
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
        self.writing = Some(WritingBatch {
            number,
            messages: closed.messages.clone(),
            confirmations: open.confirmations,
            handed_over: Vec::new(),
        });
        let next_seq = self.unsettled.end();
        let attempts = open.attempts.into_values().collect();
        Some(Batch { number, at: now, next_seq, puts: closed.puts, settled, attempts })
    }

    /// Tells somebody something when all that is settled by now is on disk, which is to be soon.
    pub(crate) fn confirm_when_safe(&mut self, now: Millis, conn: ConnId, outgoing: Outgoing) {
        self.open.confirmations.push(Confirmation { conn, outgoing });
        self.open.due_by(now);
        self.unsettled.hurry();
    }

    /// Makes everything that is open due now.
    pub fn hurry(&mut self, now: Millis) {
        self.unsettled.hurry();
        if self.open.due.is_some() {
            self.open.due_by(now);
        }
    }

    pub(crate) fn batch_due(&self) -> Option<Millis> {
        [self.unsettled.next_due(), self.open.due].into_iter().flatten().min()
    }

    /// Whether a batch is on its way to disk or waits to be.
    pub fn anything_to_write(&self) -> bool {
        self.writing.is_some() || self.batch_due().is_some()
    }

    /// The batch is on stable storage: receipts go out.
    pub fn synced(&mut self, number: u64, effects: &mut Effects) {
        let Some(writing) = self.writing.take_if(|writing| writing.number == number) else { return };
        for seq in writing.messages {
            // Those acknowledged in the meantime are gone already.
            let Some(safe) = self.unsettled.remove(seq) else { continue };
            if let Some(&index) = self.names.get(&safe.message.mailbox)
                && self.boxes[index].waiting.remove(&seq)
            {
                self.boxes[index].shelve(seq, safe.message.expires_at);
            }
            safe.waiters.into_iter().for_each(|waiter| self.receipt(waiter, effects));
        }
        for Confirmation { conn, outgoing } in writing.confirmations {
            if self.conns.contains_key(&conn) {
                effects.send(conn, outgoing);
            }
        }
    }

    /// The disk had no room for the batch. Its messages are refused; its acknowledgements are tried again later.
    pub fn batch_refused(&mut self, now: Millis, mut batch: Batch, retry_at: Millis, effects: &mut Effects) {
        let Some(writing) = self.writing.take_if(|writing| writing.number == batch.number) else { return };
        self.disk_low = true;
        let puts = std::mem::take(&mut batch.puts);
        self.open.put_back(batch, writing.confirmations);
        for (message, settles) in writing.handed_over {
            self.open.settled.retain(|settled| !settles.iter().any(|provisional| provisional.settled == *settled));
            self.ride_on(message, settles);
        }
        self.open.confirmations.retain(|confirmation| self.conns.contains_key(&confirmation.conn));
        self.forget_places(&puts);
        let mut touched: BTreeSet<Arc<str>> = puts.iter().map(|message| Arc::clone(&message.mailbox)).collect();
        let mut undone = Vec::new();
        for message in &puts {
            // Those acknowledged in the meantime are off the books already.
            let Some(refused) = self.unsettled.remove(message.seq) else { continue };
            self.strike_refused(message);
            self.answer_refused(message, &refused.settles, refused.waiters, effects);
            undone.extend(refused.settles);
        }
        touched.extend(undone.into_iter().filter_map(|provisional| self.unsettle(provisional)));
        // Only what nobody can refuse is left; it is tried again when there may be room.
        self.open.due = (!self.open.is_empty()).then_some(retry_at);
        for name in touched {
            if let Some(&index) = self.names.get(&name) {
                self.pump(now, index, effects);
                self.drop_if_idle(index);
            }
        }
    }

    /// What was settled while its record was being refused has no record to name.
    fn forget_places(&mut self, refused: &[Arc<Message>]) {
        let is_refused = |seq: &Seq| refused.binary_search_by_key(seq, |message| message.seq).is_ok();
        let provisional = self.unsettled.iter_mut().flat_map(|unsettled| &mut unsettled.settles);
        for settled in self.open.settled.iter_mut().chain(provisional.map(|provisional| &mut provisional.settled)) {
            settled.stored.take_if(|(_, seq)| is_refused(seq));
        }
    }

    fn strike_refused(&mut self, message: &Message) {
        self.ledger.forget(&message.fingerprint);
        self.open.attempts.remove(&message.seq);
        self.total_messages -= 1;
        self.total_bytes -= message.size();
        if let Some(at) = message.expires_at {
            self.deadlines.remove(&(at, message.seq));
        }
        if let Some(&index) = self.names.get(&message.mailbox) {
            self.boxes[index].remove(message.seq, message.size());
        }
    }

    /// Tells whoever waited for a refused message. What it settled has a record of its own, was consumed, or is refused
    /// with it because nothing of it is left.
    fn answer_refused(&self, message: &Message, settles: &[Provisional], waiters: Waiters, effects: &mut Effects) {
        for waiter in waiters {
            let gone = |settled: &Settled| settled.fingerprint == waiter.about && settled.stored.is_none();
            let refused = waiter.about == message.fingerprint || settles.iter().any(|it| gone(&it.settled));
            if !refused {
                self.receipt(waiter, effects);
            } else if self.conns.contains_key(&waiter.conn) {
                effects.send(waiter.conn, Outgoing::Refused { refusal: Refusal::DiskFull, id: Some(waiter.id) });
            }
        }
    }

    /// The message that settled this one was refused, so this one is pending again. Returns where.
    fn unsettle(&mut self, Provisional { settled, sender, deadline }: Provisional) -> Option<Arc<str>> {
        if self.ledger.get(&settled.fingerprint).is_some_and(|known| known.pending) {
            // Its id was forgotten and used anew; that message stands for both.
            return None;
        }
        self.open.settled.retain(|other| *other != settled);
        let Some((name, seq)) = settled.stored else {
            self.ledger.forget_settled(&settled.fingerprint);
            return None;
        };
        let pending = PendingId { seq, content: settled.content, sender, size: settled.size as u32 };
        self.ledger.revive(settled.fingerprint, pending);
        self.total_messages += 1;
        self.total_bytes += settled.size;
        let expires_at = deadline.as_ref().map(|((at, _), _)| *at);
        self.deadlines.extend(deadline);
        let index = self.mailbox(&name);
        let mailbox = &mut self.boxes[index];
        mailbox.shelve(seq, expires_at);
        mailbox.pending += 1;
        mailbox.pending_bytes += settled.size;
        mailbox.rewind(seq);
        mailbox.page_is_stale = mailbox.fetching;
        Some(name)
    }
}
