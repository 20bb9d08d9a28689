//! Cancellation by the sender: a queued message is withdrawn immediately, one in flight when its lease ends without an
//! acknowledgement.

use crate::engine::DeadlineEntry;
use crate::mailbox::Withdrawal;
use crate::settle::DiscardReason;
use crate::{ConnId, DEAD_LETTER_SUFFIX, Effects, Engine, Fingerprint, Millis, Outgoing, PlantedBug, Seq};
use bytestring::ByteString;
use std::sync::Arc;

/// Deadline entries of settled messages that are tolerated, beyond the number of pending messages, before a sweep.
const MAX_STALE_DEADLINES: u64 = 1024;

/// What a cancel did, or found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelOutcome {
    /// The message was queued, had never been pushed, and is withdrawn.
    Withdrawn,
    /// The message was pushed, or may have been.
    Running,
    /// The message was settled before.
    Finished,
    /// There is no such message, or the connection may not cancel it.
    Unknown,
}

impl Engine {
    /// Cancels a message, and forwards the cancel to the subscriber: it may be working on the message, even if that was
    /// pushed on an earlier connection. With a shared token the cancel is forwarded whether or not the message is found.
    pub(crate) fn cancel(
        &mut self,
        now: Millis,
        conn: ConnId,
        to: &str,
        correlation_id: &ByteString,
        effects: &mut Effects,
    ) -> CancelOutcome {
        let Some(peer) = self.conns.get(&conn) else { return CancelOutcome::Unknown };
        let found = self.find_cancellable(peer, to, correlation_id);
        let canceller = self.canceller(peer, to, correlation_id);
        if peer.rights.unrestricted || found.is_some_and(|known| known.pending) {
            let from = self.find_from(&canceller, to, correlation_id).map(|_| ByteString::from(&*canceller));
            self.to_subscriber(to, Outgoing::Cancel { correlation_id: correlation_id.clone(), from }, effects);
        }
        match found {
            None => CancelOutcome::Unknown,
            Some(known) if known.withdrawn => CancelOutcome::Withdrawn,
            Some(known) if !known.pending => CancelOutcome::Finished,
            Some(_) => self.cancel_pending(now, &canceller, to, correlation_id, effects),
        }
    }

    fn cancel_pending(
        &mut self,
        now: Millis,
        canceller: &Arc<str>,
        to: &str,
        correlation_id: &str,
        effects: &mut Effects,
    ) -> CancelOutcome {
        let Some((index, seq, fingerprint)) = self.find_own(canceller, to, correlation_id) else {
            return CancelOutcome::Unknown;
        };
        // A copy: the given id is a slice that keeps the whole received buffer alive.
        let id = ByteString::from(correlation_id);
        let mailbox = &mut self.boxes[index];
        if let Some(lease) = mailbox.leases.get_mut(&seq) {
            lease.cancelled = Some(Box::new(Withdrawal { id, from: Arc::clone(canceller) }));
            return CancelOutcome::Running;
        }
        let was_pushed = self.may_have_been_pushed(index, seq);
        let mailbox = Arc::clone(&self.boxes[index].name);
        let entry = DeadlineEntry { mailbox, fingerprint, id, from: Arc::clone(canceller), accepted_at: now };
        self.discard(now, seq, entry, DiscardReason::Cancelled, effects);
        self.sweep_deadlines();
        self.pump(now, index, effects);
        self.drop_if_idle(index);
        if was_pushed {
            return CancelOutcome::Running;
        }
        self.ledger.mark_withdrawn(&fingerprint);
        CancelOutcome::Withdrawn
    }

    /// Answers a cancel. A withdrawal has to be durable first, also a repeated one; even the withdrawal of a message
    /// without a record, because its sender may deliver it again after a crash.
    pub(crate) fn answer_cancel(&mut self, now: Millis, conn: ConnId, answer: Outgoing, effects: &mut Effects) {
        let waits = matches!(answer, Outgoing::CancelResult { outcome: CancelOutcome::Withdrawn, .. });
        if waits && !self.options.planted(PlantedBug::WithdrawnBeforeSync) {
            self.send_when_durable(now, conn, answer);
        } else {
            effects.send(conn, answer);
        }
    }

    /// Withdraws the messages that were cancelled in flight, because their subscription ended without an
    /// acknowledgement.
    pub(crate) fn discard_cancelled(&mut self, now: Millis, index: usize, effects: &mut Effects) {
        if self.options.planted(PlantedBug::CancelForgotten) {
            return;
        }
        let mailbox = &mut self.boxes[index];
        let name = Arc::clone(&mailbox.name);
        let withdrawn: Vec<(Seq, DeadlineEntry)> = mailbox
            .leases
            .iter_mut()
            .filter_map(|(seq, lease)| {
                let Withdrawal { id, from } = *lease.cancelled.take()?;
                let (mailbox, fingerprint) = (Arc::clone(&name), lease.fingerprint);
                Some((*seq, DeadlineEntry { mailbox, fingerprint, id, from, accepted_at: lease.accepted_at }))
            })
            .collect();
        for (seq, entry) in withdrawn {
            self.discard(now, seq, entry, DiscardReason::Cancelled, effects);
        }
    }

    /// Returns the pending message with that id in that mailbox, if it is from this sender. Dead letters can't be
    /// withdrawn: they are kept for inspection.
    fn find_own(&self, sender: &str, mailbox: &str, id: &str) -> Option<(usize, Seq, Fingerprint)> {
        let index = *self.names.get(mailbox).filter(|_| !mailbox.ends_with(DEAD_LETTER_SUFFIX))?;
        let (fingerprint, known) = self.find_from(sender, mailbox, id).filter(|(_, known)| known.pending)?;
        Some((index, known.seq, fingerprint))
    }

    /// Removes the deadline entries of settled messages. `settle` removes only those of leased messages, so withdrawn
    /// ones leave theirs behind. Sweeping them together keeps the amortised cost low and memory bounded.
    pub(crate) fn sweep_deadlines(&mut self) {
        if (self.deadlines.len() as u64) <= 2 * self.totals.all.messages + MAX_STALE_DEADLINES {
            return;
        }
        let (ledger, unsettled) = (&self.ledger, &self.unsettled);
        self.deadlines.retain(|(_, seq), entry| match ledger.get(&entry.fingerprint) {
            Some(known) if known.pending => known.seq == *seq,
            // Settled by a reply that is not durable yet: if the reply is refused, the message is pending again.
            Some(known) => unsettled.get(known.seq).is_some(),
            None => false,
        });
    }
}
