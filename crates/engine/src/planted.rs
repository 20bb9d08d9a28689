//! Defects that tests inject to prove that the simulation detects them.

/// A defect that breaks a guarantee. Has no effect without the feature `planted-bugs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// The receipt is sent when the message is accepted, before it is durable.
    ReceiptBeforeSync,
    /// An acknowledgement of `7` also settles `job-7`.
    AckBySuffix,
    /// Settled ids are forgotten at a restart.
    DedupForgotten,
    /// Expired messages are pushed.
    DeadlineIgnored,
    /// A reply that settles its request releases the request's receipt before the reply is durable.
    FoldWithoutWaiting,
    /// `ack_result` is sent before the acknowledgement is durable.
    AckResultBeforeSync,
    /// Unacknowledged messages are not redelivered to the next subscriber.
    NoRedelivery,
    /// The subscriber's window is ignored.
    WindowIgnored,
    /// A cancel withdraws messages of other senders.
    CancelByAnyone,
    /// A message that was cancelled in flight is redelivered to the next subscriber.
    CancelForgotten,
    /// `withdrawn` is reported before the withdrawal is durable.
    WithdrawnBeforeSync,
    /// A reply is accepted from a mailbox that does not hold the request.
    ReplyByAnyone,
    /// A message that was sent before, and that the broker does not know, counts as never pushed.
    RepetitionTakenForNew,
}

impl crate::EngineOptions {
    pub(crate) fn planted(&self, bug: PlantedBug) -> bool {
        cfg!(feature = "planted-bugs") && self.planted == Some(bug)
    }
}

#[cfg(feature = "planted-bugs")]
impl crate::Engine {
    pub(crate) fn ack_by_suffix(&mut self, now: crate::Millis, name: &str, id: &str, effects: &mut crate::Effects) {
        let Some(&index) = self.names.get(name) else { return };
        let leased: Vec<(crate::Seq, crate::Fingerprint)> =
            self.boxes[index].leases.iter().map(|(seq, lease)| (*seq, lease.fingerprint)).collect();
        for (seq, fingerprint) in leased {
            let by_suffix = self.unsettled.get(seq).is_some_and(|u| u.message.id.ends_with(id) && *u.message.id != *id);
            if by_suffix {
                let waiters = self.settle(now, index, seq, fingerprint, None);
                waiters.into_iter().for_each(|waiter| self.receipt(waiter, effects));
            }
        }
    }
}
