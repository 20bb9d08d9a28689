//! What is on stable storage, told from the batches alone: the engine's counters and a restart are compared with it.

use super::{How, MessageNo, Model, SentMessage};
use std::collections::{BTreeMap, BTreeSet};
use toolbus_engine::{Batch, Millis, Seq, StatusView};

#[derive(Debug, Default)]
pub struct DiskModel {
    pub durable: BTreeMap<Seq, MessageNo>,
    /// The batch that was handed to the store and is not synced: a crash may keep any part of it.
    pub in_flight: Option<InFlight>,
    /// Settled in a batch that found no room: the record may be given up all the same.
    pub given_up: BTreeSet<Seq>,
    /// The space of remembered ids was given up on a full disk.
    pub ids_dropped: bool,
}

#[derive(Debug, Default)]
pub struct InFlight {
    pub puts: BTreeMap<Seq, MessageNo>,
    pub settled: Vec<(MessageNo, Option<Seq>)>,
}

impl Model {
    pub fn batch_taken(&mut self, now: Millis, batch: &Batch) {
        let mut flight = InFlight::default();
        for message in &batch.puts {
            if let Some(no) = self.witness(message) {
                flight.puts.insert(message.seq, no);
            }
        }
        for settled in &batch.settled {
            let Some(&no) = self.by_fingerprint.get(&settled.fingerprint) else {
                self.violated("an id was settled that nobody ever sent");
                continue;
            };
            let stored = settled.stored.as_ref().map(|(_, seq)| *seq);
            if self.sent[no].settled.is_none() && self.is_this_life(no, stored) {
                self.settled_unseen(now, no);
            }
            flight.settled.push((no, stored));
        }
        self.disk.in_flight = Some(flight);
    }

    /// Whether a settlement is about the life of the message that the model knows.
    fn is_this_life(&self, no: MessageNo, stored: Option<Seq>) -> bool {
        match (stored, self.sent[no].seq) {
            (Some(stored), Some(seq)) => stored == seq,
            (Some(_), None) => true,
            (None, _) => self.has_one_life(no),
        }
    }

    /// The engine may have settled what nobody acknowledged, but not without reason.
    fn settled_unseen(&mut self, now: Millis, no: MessageNo) {
        let sent_message = &self.sent[no];
        let is_dead = |sent_message: &SentMessage| sent_message.dead_copy.is_some_and(|copy| self.sent[copy].known);
        // A reply that died before its refusal took along what it settled.
        let reply = self.sent.iter().position(|reply| reply.answers == Some(no) && is_dead(reply));
        match (sent_message.dead_copy, reply) {
            _ if sent_message.expired(now) => self.settle(no, How::Expired),
            (Some(copy), _) if is_dead(sent_message) => self.settle(no, How::Dead(copy)),
            (_, Some(reply)) => self.settle(no, How::Answered(reply)),
            // A life that ended before this one began.
            _ if !self.has_one_life(no) => {}
            _ => self.violated(format!("{} was settled though nobody acknowledged it", self.describe(no))),
        }
    }

    pub fn batch_synced(&mut self) {
        let flight = self.disk.in_flight.take().unwrap_or_default();
        for (seq, no) in flight.puts {
            self.disk.durable.insert(seq, no);
            if self.sent[no].seq == Some(seq) {
                self.sent[no].record_durable = true;
            }
        }
        for (no, stored) in flight.settled {
            if let Some(seq) = stored {
                self.disk.durable.remove(&seq);
                self.disk.given_up.remove(&seq);
            }
            let this_life = self.is_this_life(no, stored);
            let sent_message = &mut self.sent[no];
            sent_message.settlement_durable |= sent_message.settled.is_some() && this_life;
        }
    }

    pub fn batch_refused(&mut self, batch: &Batch) {
        let flight = self.disk.in_flight.take().unwrap_or_default();
        if batch.puts.is_empty() {
            self.disk.given_up.extend(flight.settled.iter().filter_map(|(_, stored)| *stored));
        }
        let refused: BTreeSet<MessageNo> =
            flight.puts.into_values().filter(|no| self.sent[*no].settled.is_none()).collect();
        refused.into_iter().for_each(|no| self.refuse(no));
    }

    /// Nothing is left of a message. What it settled is pending again, or goes with it.
    fn refuse(&mut self, refused: MessageNo) {
        self.forget(refused);
        for no in 0..self.sent.len() {
            let undone = matches!(self.sent[no].settled, Some(How::Answered(by) | How::Dead(by)) if by == refused);
            if undone && self.sent[no].record_durable {
                self.revive(no);
            } else if undone {
                self.refuse(no);
            }
        }
        // It died before its deadline passed or it was cancelled, so it is the death that is undone.
        let Some(origin) = self.sent[refused].origin else { return };
        match self.sent[origin].settled {
            Some(How::Expired | How::Cancelled) if !self.sent[origin].record_durable => {
                self.refuse(origin);
                self.undo_answer(origin);
            }
            Some(How::Cancelled) => self.revive(origin),
            _ => {}
        }
    }

    /// What a reply settled that came to nothing after all.
    fn undo_answer(&mut self, reply: MessageNo) {
        let answered = self.sent[reply].answers.filter(|no| {
            let sent_message = &self.sent[*no];
            sent_message.settled == Some(How::Acked) && sent_message.record_durable && !sent_message.settlement_durable
        });
        answered.into_iter().for_each(|no| self.revive(no));
    }

    fn forget(&mut self, no: MessageNo) {
        self.end_lease(no);
        self.may_be_pushed_again(no);
        let sent_message = &mut self.sent[no];
        sent_message.known = false;
        sent_message.settled = None;
        sent_message.seq = None;
        sent_message.lost_its_place = true;
    }

    fn revive(&mut self, no: MessageNo) {
        self.may_be_pushed_again(no);
        self.sent[no].settled = None;
        self.deadlines.extend(self.sent[no].expires_at.map(|at| (at, no)));
    }

    pub(super) fn may_be_pushed_again(&mut self, no: MessageNo) {
        let name = self.sent[no].mailbox.clone();
        self.mailbox(&name).pushed.remove(&no);
    }

    /// With nothing on the way, the engine's books say what is on disk.
    pub fn compare(&mut self, view: &StatusView) {
        let mut expected: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for no in self.disk.durable.values() {
            let sent_message = &self.sent[*no];
            let (messages, bytes) = expected.entry(&sent_message.mailbox).or_default();
            (*messages, *bytes) = (*messages + 1, *bytes + sent_message.size());
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
