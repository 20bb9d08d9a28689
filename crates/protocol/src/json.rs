//! The JSON framing: one object per text message, tagged by `kind`. This is the original's published protocol; what
//! we add are extra fields and extra frames.

mod inspect;
mod object;
mod read;
mod write;

use crate::{BrokerFrame, ClientFrame, DecodeError, MsgId};

/// Reads a client's frame. Unknown kinds come back as [`ClientFrame::Unknown`].
pub fn read_client(text: &[u8]) -> Result<ClientFrame, DecodeError> {
    read::client(text)
}

/// Reads a broker's frame. Unknown kinds come back as [`BrokerFrame::Unknown`].
pub fn read_broker(text: &[u8]) -> Result<BrokerFrame, DecodeError> {
    read::broker(text)
}

/// Best effort: the id of the message in a `deliver` frame that could not be read, so that the error can name it.
pub fn message_id_of(text: &[u8]) -> Option<MsgId> {
    read::message_id(text)
}

/// Writes a client's frame. Clients are given a message's `from` by the broker, so `deliver` needs the sender's. Bodies
/// are written as they are: one that came over the compact framing and goes on unread needs [`crate::Body::check`].
pub fn write_client(frame: &ClientFrame, me: &crate::AgentRef) -> String {
    write::client(frame, me)
}

/// Writes a broker's frame. Fails only for a message whose body is not acceptable JSON: see [`crate::Body::check`].
pub fn write_broker(frame: &BrokerFrame) -> Result<String, crate::BodyError> {
    write::broker(frame)
}
