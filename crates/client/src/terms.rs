//! Parameters negotiated in the handshake, and the checks of messages that follow from them.

use crate::{BrokerError, BrokerResult};
use toolbus_protocol::{ErrorCode, Framing, InboxMessage};

/// Upper bound on the bytes of a frame besides the body: names, ids and field names.
const FRAME_OVERHEAD: u64 = 4 << 10;

/// Parameters negotiated in the handshake.
#[derive(Debug, Clone, Copy, Default)]
pub struct Terms {
    /// Protocol version; 1 for an original broker.
    pub version: u32,
    pub framing: Framing,
    pub max_frame_bytes: Option<u64>,
}

impl Terms {
    /// Rejects a message that would make the broker close the connection, and again after each resend.
    pub fn check(&self, message: &InboxMessage) -> BrokerResult<()> {
        let limit = self.max_frame_bytes.unwrap_or(u64::MAX);
        let size = message.body.as_bytes().len() as u64 + FRAME_OVERHEAD;
        if size > limit {
            let reason = format!("the message has {size} bytes, the broker's limit is {limit}");
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
