//! What recovery must restore, and what it must not.

use super::{MailboxModel, MessageNo, Model};
use crate::simulation::messages::Settlement;
use std::collections::{BTreeMap, BTreeSet};
use toolbus_engine::{AttemptsNote, Engine, Fingerprint, Millis, RestoredMessage, Seq, Settled};
use toolbus_store::Replay;

/// Forwards a replay to the engine and records it for the model.
pub struct Recovered {
    pub engine: Engine,
    pending: BTreeMap<Seq, Restored>,
    remembered: BTreeSet<Fingerprint>,
    superseded: BTreeSet<Seq>,
    /// Number of ranges that the store reported as corrupt.
    pub damaged: u64,
}

struct Restored {
    fingerprint: Fingerprint,
    accepted_at: Millis,
    expires_at: Option<Millis>,
}

impl Recovered {
    pub fn replaying_into(engine: Engine) -> Self {
        Self { engine, pending: BTreeMap::new(), remembered: BTreeSet::new(), superseded: BTreeSet::new(), damaged: 0 }
    }
}

impl Replay for Recovered {
    fn message(&mut self, message: RestoredMessage<'_>) {
        let RestoredMessage { fingerprint, accepted_at, expires_at, .. } = message;
        // Of two messages with one id the later one replaces the earlier, whose settlement was lost.
        let earlier = self.pending.extract_if(.., |seq, other| *seq != message.seq && other.fingerprint == fingerprint);
        self.superseded.extend(earlier.map(|(seq, _)| seq));
        self.pending.insert(message.seq, Restored { fingerprint, accepted_at, expires_at });
        self.engine.restore_message(message);
    }

    fn settled(&mut self, settled: &Settled) {
        if let Some((_, seq)) = &settled.stored {
            self.pending.remove(seq);
        }
        self.remembered.insert(settled.fingerprint);
        self.engine.restore_settled(settled);
    }

    fn attempts(&mut self, note: &AttemptsNote) {
        self.engine.restore_attempts(note);
    }
}

impl Model {
    pub fn recovered(&mut self, found: &Recovered) {
        let in_flight = self.disk.in_flight.take().unwrap_or_default();
        let unsynced = std::mem::take(&mut self.disk.unsynced);
        let may_be_gone: BTreeSet<Seq> =
            in_flight.settled.iter().chain(&unsynced).filter_map(|(_, stored)| *stored).collect();
        for (seq, no) in std::mem::take(&mut self.disk.durable) {
            let excused =
                may_be_gone.contains(&seq) || self.disk.droppable.contains(&seq) || found.superseded.contains(&seq);
            if !found.pending.contains_key(&seq) && !excused {
                self.violated(format!("{} was durable and is lost", self.describe(no)));
            }
            self.disk.durable.insert(seq, no);
        }
        if !found.superseded.is_empty() && self.keeps_all_ids && !self.disk.ids_dropped {
            self.violated("two messages with one id were restored");
        }
        let mut back: BTreeMap<MessageNo, Seq> = BTreeMap::new();
        for (seq, restored) in &found.pending {
            let expected = self.disk.durable.contains_key(seq) || in_flight.puts.contains_key(seq);
            match self.by_fingerprint.get(&restored.fingerprint).copied() {
                Some(no) if expected => self.check_restored(no, *seq, &mut back),
                _ => self.violated(format!("message {seq} was restored but never written")),
            }
        }
        let remembered: BTreeSet<MessageNo> =
            found.remembered.iter().filter_map(|fingerprint| self.by_fingerprint.get(fingerprint).copied()).collect();
        for no in 0..self.messages.len() {
            self.check_restart(no, &back, &remembered);
        }
        for no in 0..self.messages.len() {
            let restored = back.get(&no).map(|seq| (*seq, &found.pending[seq]));
            self.restart(no, restored, remembered.contains(&no));
        }
        self.disk.durable = back.into_iter().map(|(no, seq)| (seq, no)).collect();
        self.disk.droppable.clear();
        self.mailboxes.values_mut().for_each(|mailbox| *mailbox = MailboxModel::default());
    }

    fn check_restored(&mut self, no: MessageNo, seq: Seq, back: &mut BTreeMap<MessageNo, Seq>) {
        let sent = &self.messages[no];
        if sent.withdrawn {
            self.violated(format!("{} was restored although it was reported as withdrawn", self.describe(no)));
        } else if sent.settlement_durable && sent.seq == Some(seq) {
            let what = if sent.confirmed { "its acknowledgement was confirmed" } else { "its settlement was durable" };
            self.violated(format!("{} was restored although {what}", self.describe(no)));
        }
        back.insert(no, seq);
    }

    fn check_restart(&mut self, no: MessageNo, back: &BTreeMap<MessageNo, Seq>, remembered: &BTreeSet<MessageNo>) {
        let sent = &self.messages[no];
        let about = self.describe(no);
        if back.contains_key(&no) {
            return;
        }
        let must_remember = sent.settlement_durable && self.keeps_all_ids && !self.disk.ids_dropped;
        // A message sent again while it was dead-lettered looks like a second incarnation; its dead letter covers both.
        let dead_lettered =
            !self.has_one_incarnation(no) && sent.dead_copy.is_some_and(|copy| back.contains_key(&copy));
        if sent.receipted && sent.pending() && !sent.expired(self.latest) && !dead_lettered {
            self.violated(format!("{about} was receipted and is lost"));
        } else if must_remember && !remembered.contains(&no) {
            self.violated(format!("the id of {about} was forgotten at the restart"));
        } else if let (Some(Settlement::Answered(reply)), true) = (sent.settled, sent.record_durable)
            && self.messages[reply].pending()
            && self.has_one_incarnation(reply)
            && !back.contains_key(&reply)
        {
            self.violated(format!("{about} is settled, but its reply is lost"));
        }
    }

    fn restart(&mut self, no: MessageNo, restored: Option<(Seq, &Restored)>, remembered: bool) {
        let sent = &mut self.messages[no];
        sent.known = restored.is_some() || remembered;
        sent.seq = restored.map(|(seq, _)| seq);
        sent.cancelled_in_flight = false;
        sent.record_durable = restored.is_some();
        sent.settlement_durable = restored.is_none() && remembered;
        sent.settled = sent.settlement_durable.then_some(Settlement::BeforeRestart);
        if let Some((_, restored)) = restored {
            sent.confirmed = false;
            sent.incarnation_start = restored.accepted_at;
            sent.accepted_at.push(restored.accepted_at);
            sent.expires_at = restored.expires_at;
            self.deadlines.extend(sent.expires_at.map(|at| (at, no)));
        }
    }
}
