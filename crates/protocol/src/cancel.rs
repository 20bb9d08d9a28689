//! The answer to a `cancel` that carries a `request_id`.

use bytestring::ByteString;

/// The `cancel_result` frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelResult {
    /// Id of the request.
    pub request_id: ByteString,
    /// Id of the message.
    pub correlation_id: ByteString,
    /// The state of the message.
    pub outcome: CancelOutcome,
}

/// What a cancel did, or found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelOutcome {
    /// The message was queued and never pushed, and its withdrawal is durable: the recipient never receives it.
    Withdrawn,
    /// The message was pushed, or may have been. The cancel was forwarded to the subscriber, if there is one, and the
    /// message is not pushed again.
    Running,
    /// The message was settled before.
    Finished,
    /// The broker knows no such message of this sender.
    Unknown,
}

impl CancelOutcome {
    /// All outcomes.
    pub const ALL: [Self; 4] = [Self::Withdrawn, Self::Running, Self::Finished, Self::Unknown];

    /// Returns the name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Withdrawn => "withdrawn",
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Unknown => "unknown",
        }
    }

    /// Parses the name on the wire. An outcome of a later version promises nothing that is known here, so it counts as
    /// [`CancelOutcome::Running`], like every doubt about a push.
    pub fn from_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == name).unwrap_or(Self::Running)
    }
}
