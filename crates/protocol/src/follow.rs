//! Follows: the broker reports changes of peers and messages without being polled.

use crate::MessageRef;
use bytestring::ByteString;

/// The `follow` frame, answered by [`Followed`] at once and after every change. Replaces an earlier follow of the
/// connection with the same request id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Follow {
    /// Id of this request.
    pub request_id: ByteString,
    /// Mailboxes to follow the connections of; at most [`crate::MAX_INSPECTED`].
    pub peers: Vec<ByteString>,
    /// Messages of the requester to follow until they are settled; at most [`crate::MAX_INSPECTED`].
    pub messages: Vec<MessageRef>,
}

/// The `followed` frame, with peers and messages in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Followed {
    /// Id of the request.
    pub request_id: ByteString,
    /// Whether each peer is connected.
    pub peers: Vec<bool>,
    /// Whether each message is pending in its mailbox.
    pub uncollected: Vec<bool>,
}
