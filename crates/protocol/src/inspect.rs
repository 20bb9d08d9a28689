//! A look at what is there right now: who is connected, how far messages are from their turn, what waits in a mailbox.

use bytestring::ByteString;

/// Peers, and letters, that one `look` may ask about.
pub const MAX_INSPECTED: usize = 256;

/// Asks; the answer is [`Looked`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inspect {
    pub request_id: ByteString,
    /// Mailboxes: is anybody connected under that name?
    pub peers: Vec<ByteString>,
    /// Messages that I sent: are they still pending, and how many are before them?
    pub messages: Vec<MessageRef>,
    /// A mailbox whose messages are to be listed.
    pub rows_of: Option<ByteString>,
}

/// A message by the mailbox that it was sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRef {
    pub to: ByteString,
    pub id: ByteString,
}

/// Peers and letters are answered in the order of the question.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inspected {
    pub request_id: ByteString,
    pub peers: Vec<bool>,
    /// How many pending messages are before it in its mailbox, counted up to 1000; `None` if it is not pending there.
    pub messages: Vec<Option<u64>>,
    /// In the order in which they are delivered.
    pub rows: Vec<MessageRow>,
    /// Whether there may be messages that the rows do not show.
    pub more: bool,
}

/// A pending message, without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRow {
    pub id: ByteString,
    pub from: ByteString,
    pub age_ms: u64,
    /// How often it was pushed.
    pub attempt: u32,
    /// Pushed to the subscriber and not yet acknowledged.
    pub in_flight: bool,
    /// What is left of its deadline.
    pub deadline_ms: Option<u64>,
}
