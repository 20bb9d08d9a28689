//! Model of stable storage, derived from the batches alone. The engine's counters and each recovery are compared with
//! it.

use super::{MessageNo, Model, SentMessage, Settlement};
use std::collections::{BTreeMap, BTreeSet};
use toolbus_engine::{Batch, Millis, Seq, StatusView};

#[derive(Debug, Default)]
pub struct DiskModel {
    pub durable: BTreeMap<Seq, MessageNo>,
    /// The batch that was handed to the store and is not yet synced: a crash may keep any part of it.
    pub in_flight: Option<InFlight>,
    /// Settlements of batches that were written and not synced yet.
    pub unsynced: Vec<(MessageNo, Option<Seq>)>,
    /// Records settled in a batch that was refused because the disk was full. The store may drop them nevertheless.
    pub droppable: BTreeSet<Seq>,
    /// Remembered ids were dropped to free space on a full disk.
    pub ids_dropped: bool,
}

#[derive(Debug, Default)]
pub struct InFlight {
    pub puts: BTreeMap<Seq, MessageNo>,
    pub settled: Vec<(MessageNo, Option<Seq>)>,
}

impl Model {
    pub fn batch_taken(&mut self, now: Millis, batch: &Batch) {
        let mut in_flight = InFlight::default();
        for message in &batch.puts {
            if let Some(no) = self.observe(message) {
                in_flight.puts.insert(message.seq, no);
            }
        }
        for settled in &batch.settled {
            let Some(&no) = self.by_fingerprint.get(&settled.fingerprint) else {
                self.violated("an id was settled that was never sent");
                continue;
            };
            let stored = settled.stored.as_ref().map(|(_, seq)| *seq);
            if self.messages[no].settled.is_none() && self.is_current_incarnation(no, stored) {
                self.settled_unseen(now, no);
            }
            in_flight.settled.push((no, stored));
        }
        self.disk.in_flight = Some(in_flight);
    }

    /// Whether a settlement concerns the incarnation of the message that the model tracks.
    fn is_current_incarnation(&self, no: MessageNo, stored: Option<Seq>) -> bool {
        match (stored, self.messages[no].seq) {
            (Some(stored), Some(seq)) => stored == seq,
            (Some(_), None) => true,
            (None, _) => self.has_one_incarnation(no),
        }
    }

    /// The engine settled a message without an acknowledgement: allowed only with a reason.
    fn settled_unseen(&mut self, now: Millis, no: MessageNo) {
        let sent = &self.messages[no];
        let is_dead = |sent: &SentMessage| sent.dead_copy.is_some_and(|copy| self.messages[copy].known);
        // A reply that was dead-lettered before it was refused also settled its request.
        let reply = self.messages.iter().position(|reply| reply.answers == Some(no) && is_dead(reply));
        match (sent.dead_copy, reply) {
            _ if sent.expired(now) => self.settle(no, Settlement::Expired),
            (Some(copy), _) if is_dead(sent) => self.settle(no, Settlement::DeadLettered(copy)),
            (_, Some(reply)) => self.settle(no, Settlement::Answered(reply)),
            // The settlement of an earlier incarnation.
            _ if !self.has_one_incarnation(no) => {}
            _ => self.violated(format!("{} was settled without an acknowledgement", self.describe(no))),
        }
    }

    /// A batch without messages was written, and will be synced with a later one.
    pub fn batch_written(&mut self) {
        let in_flight = self.disk.in_flight.take().unwrap_or_default();
        if !in_flight.puts.is_empty() {
            self.violated("messages were written without a sync");
        }
        self.disk.unsynced.extend(in_flight.settled);
    }

    pub fn batch_synced(&mut self) {
        let mut in_flight = self.disk.in_flight.take().unwrap_or_default();
        in_flight.settled.splice(..0, std::mem::take(&mut self.disk.unsynced));
        for (seq, no) in in_flight.puts {
            self.disk.durable.insert(seq, no);
            if self.messages[no].seq == Some(seq) {
                self.messages[no].record_durable = true;
            }
        }
        for (no, stored) in in_flight.settled {
            if let Some(seq) = stored {
                self.disk.durable.remove(&seq);
                self.disk.droppable.remove(&seq);
            }
            let is_current = self.is_current_incarnation(no, stored);
            let sent = &mut self.messages[no];
            sent.settlement_durable |= sent.settled.is_some() && is_current;
        }
    }

    pub fn batch_refused(&mut self, batch: &Batch) {
        let in_flight = self.disk.in_flight.take().unwrap_or_default();
        if batch.puts.is_empty() {
            self.disk.droppable.extend(in_flight.settled.iter().filter_map(|(_, stored)| *stored));
        }
        let refused: BTreeSet<MessageNo> =
            in_flight.puts.into_values().filter(|no| self.messages[*no].settled.is_none()).collect();
        refused.into_iter().for_each(|no| self.refuse(no));
    }

    /// The broker forgets a refused message. Messages that it settled become pending again if their record is durable;
    /// otherwise they are refused with it.
    fn refuse(&mut self, refused: MessageNo) {
        self.forget(refused);
        for no in 0..self.messages.len() {
            let settled = self.messages[no].settled;
            let undone =
                matches!(settled, Some(Settlement::Answered(by) | Settlement::DeadLettered(by)) if by == refused);
            if undone && self.messages[no].record_durable {
                self.reopen(no);
            } else if undone {
                self.refuse(no);
            }
        }
        // It was dead-lettered before it expired or was cancelled, so the dead-lettering is undone.
        let Some(origin) = self.messages[refused].origin else { return };
        match self.messages[origin].settled {
            Some(Settlement::Expired | Settlement::Cancelled) if !self.messages[origin].record_durable => {
                self.refuse(origin);
                self.undo_answer(origin);
            }
            Some(Settlement::Cancelled) => self.reopen(origin),
            _ => {}
        }
    }

    /// Reopens the request that a refused reply had settled.
    fn undo_answer(&mut self, reply: MessageNo) {
        let answered = self.messages[reply].answers.filter(|no| {
            let sent = &self.messages[*no];
            sent.settled == Some(Settlement::Acked) && sent.record_durable && !sent.settlement_durable
        });
        answered.into_iter().for_each(|no| self.reopen(no));
    }

    fn forget(&mut self, no: MessageNo) {
        self.end_lease(no);
        self.may_be_pushed_again(no);
        let sent = &mut self.messages[no];
        sent.known = false;
        sent.settled = None;
        sent.seq = None;
        sent.order_lost = true;
    }

    fn reopen(&mut self, no: MessageNo) {
        self.may_be_pushed_again(no);
        self.messages[no].settled = None;
        self.deadlines.extend(self.messages[no].expires_at.map(|at| (at, no)));
    }

    pub(super) fn may_be_pushed_again(&mut self, no: MessageNo) {
        let name = self.messages[no].mailbox.clone();
        self.mailbox(&name).pushed.remove(&no);
    }

    /// Compares the engine's counters with the durable records. Valid only while no write is in progress.
    pub fn compare(&mut self, view: &StatusView) {
        let mut expected: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for no in self.disk.durable.values() {
            let sent = &self.messages[*no];
            let (messages, bytes) = expected.entry(&sent.mailbox).or_default();
            (*messages, *bytes) = (*messages + 1, *bytes + sent.size());
        }
        let mut wrong = None;
        for row in &view.mailboxes {
            let counted = (row.messages, row.bytes);
            let wanted = expected.remove(&*row.name).unwrap_or_default();
            let leases = self.mailboxes.get(&*row.name).map_or(0, |mailbox| mailbox.leases.len() as u64);
            if counted != wanted || row.in_flight != leases {
                wrong = Some(format!("{row:?} should have {wanted:?} and {leases} in flight"));
            }
        }
        if let Some((name, wanted)) = expected.first_key_value() {
            wrong = Some(format!("mailbox '{name}' should have {wanted:?}"));
        }
        if let Some(wrong) = wrong {
            self.violated(format!("the engine miscounts: {wrong}"));
        }
    }
}
