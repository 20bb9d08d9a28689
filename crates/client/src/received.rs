//! What is known of the delivery of a received message that is not acknowledged yet.

use crate::session::Session;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_protocol::MsgId;

/// A reply is kept this long past its request's deadline: a caller that reconnects late still gets it, and a host can
/// see that it was not collected. After that it expires, so a caller that never returns leaves nothing behind.
pub const REPLY_RETENTION: Duration = Duration::from_secs(3600);

/// Delivery metadata of a received message.
pub struct Received {
    /// The connection that delivered it; `tag` is valid only there.
    pub epoch: u64,
    pub tag: Option<u64>,
    pub deadline: Option<Instant>,
    pub attempt: u32,
    pub is_unsure: bool,
    /// Generation of the sender's name.
    pub generation: u64,
}

impl Session {
    pub fn deadline_of(&self, id: &MsgId) -> Option<Instant> {
        self.received.get(id.as_str())?.deadline
    }

    pub fn is_unsure(&self, id: &MsgId) -> bool {
        self.received.get(id.as_str()).is_some_and(|received| received.is_unsure)
    }

    pub fn generation_of(&self, id: &MsgId) -> u64 {
        self.received.get(id.as_str()).map_or(0, |received| received.generation)
    }

    pub fn attempt_of(&self, id: &MsgId) -> Option<u32> {
        Some(self.received.get(id.as_str())?.attempt)
    }

    /// Time until a reply to that message expires; `None` if the message has no deadline.
    pub fn reply_deadline(&self, request: &MsgId) -> Option<Duration> {
        let left = self.deadline_of(request)?.saturating_duration_since(self.now);
        Some(left + REPLY_RETENTION)
    }
}
