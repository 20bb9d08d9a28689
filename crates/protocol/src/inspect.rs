//! Queue inspection: which peers are connected, the positions of messages in their queues, the contents of a mailbox.

use bytestring::ByteString;

/// Maximum number of peers, and of messages, in one `inspect`.
pub const MAX_INSPECTED: usize = 256;

/// The `inspect` frame, answered by [`Inspected`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inspect {
    /// Id of this request.
    pub request_id: ByteString,
    /// Mailboxes to check for connections.
    pub peers: Vec<ByteString>,
    /// Messages of the requester to locate.
    pub messages: Vec<MessageRef>,
    /// Mailbox to list.
    pub rows_of: Option<ByteString>,
}

/// A message, identified by its recipient and its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRef {
    /// Mailbox of the recipient.
    pub to: ByteString,
    /// Id of the message.
    pub id: ByteString,
}

/// The `inspected` frame, with peers and messages in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inspected {
    /// Id of the request.
    pub request_id: ByteString,
    /// Whether each peer is connected.
    pub peers: Vec<bool>,
    /// Whether certainly no agent has the name of each peer; empty from an older broker.
    pub unknown: Vec<bool>,
    /// Number of pending messages before each message in its mailbox, up to 1000; `None` if it is not pending there.
    pub messages: Vec<Option<u64>>,
    /// Whether each message was accepted and is settled; empty from an older broker.
    pub settled: Vec<bool>,
    /// All messages that were settled within this time are remembered; 0 from an older broker. A message that is neither
    /// pending nor settled was not accepted, or was settled earlier.
    pub remembered_ms: u64,
    /// Pending messages of the listed mailbox, in delivery order.
    pub rows: Vec<MessageRow>,
    /// Whether the mailbox may hold messages that `rows` does not show.
    pub more: bool,
}

/// A pending message, without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRow {
    /// Id of the message.
    pub id: ByteString,
    /// Name of the sender.
    pub from: ByteString,
    /// Time since the broker accepted the message.
    pub age_ms: u64,
    /// Number of push attempts so far.
    pub attempt: u32,
    /// Whether the message is pushed to the current subscriber and not acknowledged.
    pub in_flight: bool,
    /// Remaining time to live.
    pub deadline_ms: Option<u64>,
}
