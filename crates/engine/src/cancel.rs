//! A sender takes a message back: at once while it is queued, and as soon as it is given back when it is in flight.

use crate::engine::DeadlineEntry;
use crate::mailbox::TakenBack;
use crate::settle::Why;
use crate::{DEAD_LETTER_SUFFIX, Effects, Engine, Fingerprint, Millis, Outgoing, PlantedBug, Seq};
use bytestring::ByteString;
use std::sync::Arc;

/// Deadlines of messages that are off the books may outnumber the others by so many before they are swept out.
const STALE_DEADLINES: u64 = 1024;

impl Engine {
    /// The subscriber hears of it whatever becomes of the message: it may work on it, or have had it on an earlier
    /// connection.
    pub(crate) fn cancel(
        &mut self,
        now: Millis,
        canceller: &Arc<str>,
        to: &str,
        correlation_id: ByteString,
        effects: &mut Effects,
    ) {
        self.to_subscriber(to, Outgoing::Cancel { correlation_id: correlation_id.clone() }, effects);
        let Some((index, seq, fingerprint)) = self.find_own(canceller, to, &correlation_id) else { return };
        // The id is a slice of all that it came with, and must not keep that as well.
        let id = ByteString::from(&*correlation_id);
        if let Some(lease) = self.boxes[index].leases.get_mut(&seq) {
            lease.cancelled = Some(Box::new(TakenBack { id, from: Arc::clone(canceller) }));
            return;
        }
        let mailbox = Arc::clone(&self.boxes[index].name);
        let entry = DeadlineEntry { mailbox, fingerprint, id, from: Arc::clone(canceller), accepted_at: now };
        self.strike(now, seq, entry, Why::Cancelled, effects);
        self.sweep_deadlines();
        self.pump(now, index, effects);
        self.drop_if_idle(index);
    }

    /// The subscriber is gone: what was taken back while it was in flight goes to nobody else.
    pub(crate) fn strike_cancelled(&mut self, now: Millis, index: usize, effects: &mut Effects) {
        if self.options.planted(PlantedBug::CancelForgotten) {
            return;
        }
        let mailbox = &mut self.boxes[index];
        let name = Arc::clone(&mailbox.name);
        let taken_back: Vec<(Seq, DeadlineEntry)> = mailbox
            .leases
            .iter_mut()
            .filter_map(|(seq, lease)| {
                let TakenBack { id, from } = *lease.cancelled.take()?;
                let (mailbox, fingerprint) = (Arc::clone(&name), lease.fingerprint);
                Some((*seq, DeadlineEntry { mailbox, fingerprint, id, from, accepted_at: lease.accepted_at }))
            })
            .collect();
        for (seq, entry) in taken_back {
            self.strike(now, seq, entry, Why::Cancelled, effects);
        }
    }

    /// The pending message of that id in that mailbox, if it is from this sender. Dead letters are not taken back: they
    /// are there to be looked at.
    fn find_own(&self, sender: &str, mailbox: &str, id: &str) -> Option<(usize, Seq, Fingerprint)> {
        let index = *self.names.get(mailbox).filter(|_| !mailbox.ends_with(DEAD_LETTER_SUFFIX))?;
        let (fingerprint, known) = self.find_from(sender, mailbox, id).filter(|(_, known)| known.pending)?;
        Some((index, known.seq, fingerprint))
    }

    /// The deadline of a stored message that nobody holds is not known by its place, so it stays when the message goes.
    /// Swept out all at once, that costs little for each, and what was taken back takes up no memory for long.
    fn sweep_deadlines(&mut self) {
        if (self.deadlines.len() as u64) <= 2 * self.total_messages + STALE_DEADLINES {
            return;
        }
        let (ledger, unsettled) = (&self.ledger, &self.unsettled);
        self.deadlines.retain(|(_, seq), entry| match ledger.get(&entry.fingerprint) {
            Some(known) if known.pending => known.seq == *seq,
            // Settled by a message that is not safe yet, so it may come back.
            Some(known) => unsettled.get(known.seq).is_some(),
            None => false,
        });
    }
}
