//! What a client and its broker agreed on in the handshake, and what follows from it for messages.

use crate::error::{BrokerError, BrokerResult};
use toolbus_protocol::{ErrorCode, Framing, InboxMessage};

/// More than names, ids and field names of a frame can take.
const FRAME_OVERHEAD: u64 = 4 << 10;

/// What was agreed on in the handshake.
#[derive(Debug, Clone, Copy, Default)]
pub struct Terms {
    /// 1 for an original broker.
    pub version: u32,
    pub framing: Framing,
    pub max_frame_bytes: Option<u64>,
}

impl Terms {
    /// Says no to what the broker would have to answer by closing the connection, again and again.
    pub fn check(&self, message: &InboxMessage) -> BrokerResult<()> {
        let limit = self.max_frame_bytes.unwrap_or(u64::MAX);
        let size = message.body.as_bytes().len() as u64 + FRAME_OVERHEAD;
        if size > limit {
            let reason = format!("a message of {size} bytes; the broker's limit is {limit}");
            let id = Some(message.id.clone());
            return Err(BrokerError::Rejected { code: Some(ErrorCode::FrameTooLarge), reason, id });
        }
        // Spliced into JSON text, a body that is not JSON could forge the fields around it.
        if self.framing == Framing::Json {
            message.body.check()?;
        }
        Ok(())
    }
}
