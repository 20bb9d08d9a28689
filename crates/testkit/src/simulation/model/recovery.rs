//! What a restart must bring back, and what it must not.

use super::{MailboxModel, MessageNo, Model};
use crate::simulation::sent::How;
use std::collections::{BTreeMap, BTreeSet};
use toolbus_engine::{AttemptsNote, Engine, Fingerprint, Millis, RestoredMessage, Seq, Settled};
use toolbus_store::Replay;

/// Passes a replay on to the engine and keeps its own account of it.
pub struct Recovered {
    pub engine: Engine,
    pending: BTreeMap<Seq, Restored>,
    remembered: BTreeSet<Fingerprint>,
    superseded: BTreeSet<Seq>,
    /// Stretches that the store took for damage.
    pub damaged: u64,
}

struct Restored {
    fingerprint: Fingerprint,
    accepted_at: Millis,
    expires_at: Option<Millis>,
}

impl Recovered {
    pub fn into(engine: Engine) -> Self {
        Self { engine, pending: BTreeMap::new(), remembered: BTreeSet::new(), superseded: BTreeSet::new(), damaged: 0 }
    }
}

impl Replay for Recovered {
    fn message(&mut self, message: RestoredMessage<'_>) {
        let RestoredMessage { fingerprint, accepted_at, expires_at, .. } = message;
        // Of two with one id the later stands for both; the settlement of the first was lost.
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
        let flight = self.disk.in_flight.take().unwrap_or_default();
        let may_be_gone: BTreeSet<Seq> = flight.settled.iter().filter_map(|(_, stored)| *stored).collect();
        for (seq, no) in std::mem::take(&mut self.disk.durable) {
            let excused =
                may_be_gone.contains(&seq) || self.disk.given_up.contains(&seq) || found.superseded.contains(&seq);
            if !found.pending.contains_key(&seq) && !excused {
                self.violated(format!("{} was on stable storage and is gone", self.describe(no)));
            }
            self.disk.durable.insert(seq, no);
        }
        if !found.superseded.is_empty() && self.long_memory && !self.disk.ids_dropped {
            self.violated("two messages with one id came back");
        }
        let mut back: BTreeMap<MessageNo, Seq> = BTreeMap::new();
        for (seq, restored) in &found.pending {
            let expected = self.disk.durable.contains_key(seq) || flight.puts.contains_key(seq);
            match self.by_fingerprint.get(&restored.fingerprint).copied() {
                Some(no) if expected => self.comes_back(no, *seq, &mut back),
                _ => self.violated(format!("message {seq} came back from nowhere")),
            }
        }
        let remembered: BTreeSet<MessageNo> =
            found.remembered.iter().filter_map(|fingerprint| self.by_fingerprint.get(fingerprint).copied()).collect();
        for no in 0..self.sent.len() {
            self.check_restart(no, &back, &remembered);
        }
        for no in 0..self.sent.len() {
            let restored = back.get(&no).map(|seq| (*seq, &found.pending[seq]));
            self.restart(no, restored, remembered.contains(&no));
        }
        self.disk.durable = back.into_iter().map(|(no, seq)| (seq, no)).collect();
        self.disk.given_up.clear();
        self.mailboxes.values_mut().for_each(|mailbox| *mailbox = MailboxModel::default());
    }

    fn comes_back(&mut self, no: MessageNo, seq: Seq, back: &mut BTreeMap<MessageNo, Seq>) {
        let sent_message = &self.sent[no];
        if sent_message.settlement_durable && sent_message.seq == Some(seq) {
            let what =
                if sent_message.confirmed { "its acknowledgement was confirmed" } else { "it was settled for good" };
            self.violated(format!("{} came back though {what}", self.describe(no)));
        }
        back.insert(no, seq);
    }

    fn check_restart(&mut self, no: MessageNo, back: &BTreeMap<MessageNo, Seq>, remembered: &BTreeSet<MessageNo>) {
        let sent_message = &self.sent[no];
        let about = self.describe(no);
        if back.contains_key(&no) {
            return;
        }
        let must_remember = sent_message.settlement_durable && self.long_memory && !self.disk.ids_dropped;
        // Sent again while it died, it looks like another life; its dead copy stands for both.
        let died = !self.has_one_life(no) && sent_message.dead_copy.is_some_and(|copy| back.contains_key(&copy));
        if sent_message.receipted && sent_message.pending() && !sent_message.expired(self.latest) && !died {
            self.violated(format!("{about} was receipted and is gone"));
        } else if must_remember && !remembered.contains(&no) {
            self.violated(format!("the id of {about} was forgotten at the restart"));
        } else if let (Some(How::Answered(reply)), true) = (sent_message.settled, sent_message.record_durable)
            && self.sent[reply].pending()
            && self.has_one_life(reply)
            && !back.contains_key(&reply)
        {
            self.violated(format!("{about} is settled, but its reply is gone"));
        }
    }

    fn restart(&mut self, no: MessageNo, restored: Option<(Seq, &Restored)>, remembered: bool) {
        let sent_message = &mut self.sent[no];
        sent_message.known = restored.is_some() || remembered;
        sent_message.seq = restored.map(|(seq, _)| seq);
        sent_message.taken_back = false;
        sent_message.record_durable = restored.is_some();
        sent_message.settlement_durable = restored.is_none() && remembered;
        sent_message.settled = sent_message.settlement_durable.then_some(How::BeforeRestart);
        if let Some((_, restored)) = restored {
            sent_message.confirmed = false;
            sent_message.born = restored.accepted_at;
            sent_message.accepted_at.push(restored.accepted_at);
            sent_message.expires_at = restored.expires_at;
            self.deadlines.extend(sent_message.expires_at.map(|at| (at, no)));
        }
    }
}
