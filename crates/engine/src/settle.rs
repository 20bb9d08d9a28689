//! Settlement: a message is acknowledged, settled by a reply, expired, withdrawn, or dead-lettered as unreadable.

use crate::engine::DeadlineEntry;
use crate::unsettled::{Provisional, Stage, Waiters};
use crate::{
    ConnId, DEAD_LETTER_SUFFIX, Effects, Engine, Fingerprint, Message, Millis, Outgoing, PlantedBug, Refusal, Seq,
    Settled, fingerprint,
};
use bytestring::ByteString;
use smallvec::SmallVec;
use std::sync::Arc;

/// Why a message is discarded without an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiscardReason {
    Expired,
    Cancelled,
}

impl DiscardReason {
    fn refused(self, id: ByteString, mailbox: &str) -> Outgoing {
        let mailbox = ByteString::from(mailbox);
        let refusal = match self {
            Self::Expired => Refusal::Expired { id: id.clone(), mailbox },
            Self::Cancelled => Refusal::Cancelled { id: id.clone(), mailbox },
        };
        Outgoing::Refused { refusal, id: Some(id) }
    }
}

impl Engine {
    /// Returns the senders of requests that were pushed to the subscriber of a mailbox and that it refused. Each request is
    /// reported once, so that a host can't blame an agent for more than it has sent to this host.
    pub fn refused(&mut self, mailbox: &str, tags: &[Seq]) -> Vec<Arc<str>> {
        let Some(&index) = self.names.get(mailbox) else { return Vec::new() };
        let leases = &mut self.boxes[index].leases;
        tags.iter().filter_map(|tag| leases.get_mut(tag)?.refusable.take()).collect()
    }

    pub(crate) fn ack_tags(&mut self, now: Millis, name: &str, tags: &[Seq], effects: &mut Effects) {
        let Some(&index) = self.names.get(name) else { return };
        for tag in tags {
            if let Some(lease) = self.boxes[index].leases.get(tag) {
                let fingerprint = lease.fingerprint;
                let waiters = self.settle(now, index, *tag, fingerprint, None);
                waiters.into_iter().for_each(|waiter| self.receipt(waiter, effects));
            }
        }
        self.pump(now, index, effects);
        self.drop_if_idle(index);
    }

    pub(crate) fn ack(&mut self, now: Millis, conn: ConnId, name: &str, id: ByteString, effects: &mut Effects) {
        if let Err(refusal) = self.ack_by_id(now, name, &id, effects) {
            effects.send(conn, Outgoing::Refused { refusal, id: None });
        }
    }

    pub(crate) fn ack_with_receipt(
        &mut self,
        now: Millis,
        conn: ConnId,
        name: &str,
        id: ByteString,
        request_id: ByteString,
        effects: &mut Effects,
    ) {
        let refusal = self.ack_by_id(now, name, &id, effects).err();
        if refusal.is_some() || self.options.planted(PlantedBug::AckResultBeforeSync) {
            effects.send(conn, Outgoing::AckResult { id, request_id, refusal });
            return;
        }
        // A repeated acknowledgement waits too: the first one may not be durable yet.
        self.send_when_durable(now, conn, Outgoing::AckResult { id, request_id, refusal: None });
    }

    /// Idempotent: succeeds for an id that is already settled, and fails for an unknown one.
    fn ack_by_id(&mut self, now: Millis, name: &str, id: &ByteString, effects: &mut Effects) -> Result<(), Refusal> {
        #[cfg(feature = "planted-bugs")]
        if self.options.planted(PlantedBug::AckBySuffix) {
            self.ack_by_suffix(now, name, id, effects);
        }
        let fingerprint = fingerprint(self.options.fingerprint_seed, name, id);
        let Some(known) = self.ledger.get(&fingerprint) else {
            return Err(Refusal::UnknownMessage { id: id.clone() });
        };
        if !known.pending {
            self.settle_independently(&fingerprint, known.seq);
        } else if let Some(&index) = self.names.get(name) {
            let waiters = self.settle(now, index, known.seq, fingerprint, None);
            waiters.into_iter().for_each(|waiter| self.receipt(waiter, effects));
            self.pump(now, index, effects);
            self.drop_if_idle(index);
        }
        Ok(())
    }

    /// Settles a pushed message with the reply `onto`: both become durable atomically. The receipt of the settled
    /// message is due when `onto` is durable, or is dropped where `onto` itself is the receipt.
    pub(crate) fn fold_ack(&mut self, now: Millis, name: &str, settled: Seq, onto: Seq, effects: &mut Effects) {
        let Some(&index) = self.names.get(name) else { return };
        let Some(fingerprint) = self.boxes[index].leases.get(&settled).map(|lease| lease.fingerprint) else { return };
        let mut waiters = self.settle(now, index, settled, fingerprint, Some(onto));
        waiters.retain(|waiter| !self.is_implied_by(waiter, onto));
        if self.options.planted(PlantedBug::FoldWithoutWaiting) {
            waiters.drain(..).for_each(|waiter| self.receipt(waiter, effects));
        }
        self.transfer_waiters(onto, waiters, effects);
        self.pump(now, index, effects);
        self.drop_if_idle(index);
    }

    /// Defers receipts of a settled message until the message that settled it is durable.
    pub(crate) fn transfer_waiters(&mut self, onto: Seq, waiters: Waiters, effects: &mut Effects) {
        match self.unsettled.get_mut(onto) {
            Some(unsettled) => unsettled.waiters.extend(waiters),
            None => waiters.into_iter().for_each(|waiter| self.receipt(waiter, effects)),
        }
    }

    /// Makes a settlement independent of the reply `onto`, because the message was also acknowledged by id: it stays
    /// settled even if the reply is refused.
    fn settle_independently(&mut self, fingerprint: &Fingerprint, onto: Seq) {
        let is_same = |provisional: &mut Provisional| provisional.settled.fingerprint == *fingerprint;
        for (_, settles) in self.writing.iter_mut().flat_map(|writing| &mut writing.transferred) {
            settles.retain_mut(|provisional| !is_same(provisional));
        }
        let Some(reply) = self.unsettled.get_mut(onto) else { return };
        let independent: Vec<Provisional> = reply.settles.extract_if(.., is_same).collect();
        // In stage `Writing` the batch already contains the settlement.
        if reply.stage == Stage::Open {
            self.open.settled.extend(independent.into_iter().map(|provisional| provisional.settled));
        }
    }

    /// Whether `onto` is the reply to the waiter's message and was pushed to the connection of the waiter.
    fn is_implied_by(&self, waiter: &crate::unsettled::Waiter, onto: Seq) -> bool {
        let Some(reply) = self.unsettled.get(onto) else { return false };
        let numbered = self.conns.get(&waiter.conn).is_some_and(|conn| conn.numbered_receipts);
        numbered
            && reply.message.correlation_id.as_ref() == Some(&waiter.id)
            && self.names.get(&reply.message.mailbox).is_some_and(|&index| {
                let mailbox = &self.boxes[index];
                mailbox.subscriber == Some(waiter.conn) && mailbox.leases.contains_key(&onto)
            })
    }

    /// Settles a pending message and returns the waiters for its receipt. If its record was not yet handed to the
    /// store, the record is elided: only the id is written.
    pub(crate) fn settle(
        &mut self,
        now: Millis,
        index: usize,
        seq: Seq,
        fingerprint: Fingerprint,
        onto: Option<Seq>,
    ) -> Waiters {
        let known = self.ledger.get(&fingerprint).expect("a pending message is in the ledger");
        let size = u64::from(known.size);
        let charge = self.charge(&fingerprint, self.boxes[index].owner, size);
        let sender = charge.sender;
        let expires_at = self.boxes[index].leases.get(&seq).and_then(|lease| lease.expires_at);
        let deadline = expires_at.and_then(|at| self.deadlines.remove_entry(&(at, seq)));
        self.boxes[index].remove(seq, size);
        self.open.attempts.remove(&seq);
        self.totals.remove(charge);
        let limits = (self.options.history_ids, self.options.history_age);
        self.ledger.settle(fingerprint, known.content, now, limits);
        self.message_changed(index, fingerprint);
        let removed = self.unsettled.remove(seq);
        let elided = removed.as_ref().is_some_and(|unsettled| unsettled.stage == Stage::Open);
        let stored = (!elided).then(|| (Arc::clone(&self.boxes[index].name), seq));
        let entry = Settled { fingerprint, content: known.content, size, at: now, stored };
        self.open.durable_by(now + self.options.lazy);
        let (waiters, settled_before) =
            removed.map(|unsettled| (unsettled.waiters, unsettled.settles)).unwrap_or_default();
        if elided {
            // The settlements of an elided message no longer depend on it.
            self.open.settled.extend(settled_before.into_iter().map(|provisional| provisional.settled));
        }
        let Some(onto) = onto else {
            if entry.stored.is_some() {
                self.open.write_by(now.max(self.next_ack_write));
            }
            self.open.settled.push(entry);
            return waiters;
        };
        self.ledger.depend_on(&fingerprint, onto);
        match self.unsettled.get_mut(onto) {
            Some(unsettled) => {
                if unsettled.stage == Stage::Writing {
                    self.open.settled.push(entry.clone());
                }
                unsettled.settles.push(Provisional { settled: entry, sender, deadline });
            }
            None => self.open.settled.push(entry),
        }
        waiters
    }

    pub(crate) fn expire(&mut self, now: Millis, seq: Seq, entry: DeadlineEntry, effects: &mut Effects) {
        let mailbox = Arc::clone(&entry.mailbox);
        self.discard_expired(now, seq, entry, effects);
        if let Some(&index) = self.names.get(&mailbox) {
            self.pump(now, index, effects);
            self.drop_if_idle(index);
        }
    }

    /// Discards an expired message, if it is still pending, and notifies its sender.
    pub(crate) fn discard_expired(&mut self, now: Millis, seq: Seq, entry: DeadlineEntry, effects: &mut Effects) {
        if !self.options.planted(PlantedBug::DeadlineIgnored) && self.ledger.pending(&entry.fingerprint, seq) {
            self.discard(now, seq, entry, DiscardReason::Expired, effects);
        }
    }

    /// Settles a pending message that was not acknowledged, and notifies its sender.
    pub(crate) fn discard(
        &mut self,
        now: Millis,
        seq: Seq,
        entry: DeadlineEntry,
        reason: DiscardReason,
        effects: &mut Effects,
    ) {
        let Some(&index) = self.names.get(&entry.mailbox) else { return };
        let has_record = self.unsettled.get(seq).is_none_or(|unsettled| unsettled.stage == Stage::Writing);
        let waiters = self.settle(now, index, seq, entry.fingerprint, None);
        // Notify the connections that wait for the receipt and the subscriber of the sender's mailbox. Requests that
        // this message settled were consumed, so their waiters get a receipt.
        let mut notified: SmallVec<[(ConnId, ByteString); 1]> = SmallVec::new();
        for waiter in waiters {
            if waiter.fingerprint != entry.fingerprint {
                self.receipt(waiter, effects);
            } else if self.conns.contains_key(&waiter.conn) {
                notified.push((waiter.conn, waiter.id));
            }
        }
        let subscriber = self.names.get(&entry.from).and_then(|&index| self.boxes[index].subscriber);
        if let Some(conn) = subscriber.filter(|conn| !notified.iter().any(|(other, _)| other == conn)) {
            notified.push((conn, entry.id));
        }
        for (conn, id) in notified {
            let outgoing = reason.refused(id, &entry.mailbox);
            // After a crash an expired message expires again, but a withdrawal has to be durable.
            if reason == DiscardReason::Cancelled && has_record {
                self.send_when_durable(now, conn, outgoing);
            } else {
                effects.send(conn, outgoing);
            }
        }
    }

    /// Dead-letters a message that can't be encoded for its recipient. A message in a dead-letter mailbox is only
    /// skipped for this reader and stays for another one.
    pub(crate) fn unreadable(&mut self, now: Millis, conn: ConnId, message: &Message, effects: &mut Effects) {
        let Some(&index) = self.names.get(&message.mailbox) else { return };
        if !self.ledger.pending(&message.fingerprint, message.seq) {
            return;
        }
        let (id, mailbox) = (message.id.clone(), ByteString::from(&*message.mailbox));
        let refusal = if message.mailbox.ends_with(DEAD_LETTER_SUFFIX) {
            let reader = self.boxes[index].subscriber == Some(conn);
            (reader && self.boxes[index].skip(message.seq)).then_some(Refusal::UnreadableLetter { id, mailbox })
        } else {
            self.dead_letter(now, index, message, effects).then_some(Refusal::Unreadable { id })
        };
        if let Some(refusal) = refusal {
            effects.send(conn, Outgoing::Refused { refusal, id: None });
            self.pump(now, index, effects);
            self.drop_if_idle(index);
        }
    }
}
