//! Defects that tests plant to prove that they would be noticed.

/// A known way to break a guarantee. Only builds with the feature `planted-bugs` ever look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// The receipt goes out when the message is accepted, not when it is safe.
    ReceiptBeforeSync,
    /// An acknowledgement of `7` also settles `job-7`.
    AckBySuffix,
    /// Ids are forgotten at a restart.
    DedupForgotten,
    /// Expired messages are delivered all the same.
    DeadlineIgnored,
    /// A reply that settles its request lets the request's receipt go before the reply is safe.
    FoldWithoutWaiting,
    /// Confirmations of acknowledgements don't wait for the sync.
    AckResultBeforeSync,
    /// What was pushed and not acknowledged is not pushed again to the next subscriber.
    NoRedelivery,
    /// The window of a subscriber is not respected.
    WindowIgnored,
    /// A cancel takes back what somebody else sent.
    CancelByAnyone,
    /// A message that was cancelled in flight is pushed again to the next subscriber.
    CancelForgotten,
    /// A reply is taken from anyone, whether it was asked or not.
    ReplyByAnyone,
}

impl crate::EngineOptions {
    pub(crate) fn planted(&self, bug: PlantedBug) -> bool {
        cfg!(feature = "planted-bugs") && self.planted == Some(bug)
    }
}
