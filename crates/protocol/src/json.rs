//! The JSON framing: one object per text message, tagged by `kind`. This is the original's published protocol with
//! additional fields and frames.

mod events;
mod fields;
mod hosts;
mod inspect;
mod object;
mod read;
mod write;

use crate::{BrokerFrame, ClientFrame, DecodeError, MsgId};

/// Decodes a client frame. An unknown kind is [`ClientFrame::Unknown`].
pub fn read_client(text: &[u8]) -> Result<ClientFrame, DecodeError> {
    read::client(text)
}

/// Decodes a broker frame. An unknown kind is [`BrokerFrame::Unknown`].
pub fn read_broker(text: &[u8]) -> Result<BrokerFrame, DecodeError> {
    read::broker(text)
}

/// Best effort: returns the message id of a `deliver` frame that could not be decoded, for the error frame.
pub fn message_id_of(text: &[u8]) -> Option<MsgId> {
    read::message_id(text)
}

/// Encodes a client frame. `me` becomes the `from` of a `deliver`, which the broker overwrites. Bodies are not checked:
/// forwarding a body that was received over the compact framing requires [`crate::Body::check`] first.
pub fn write_client(frame: &ClientFrame, me: &crate::AgentRef) -> String {
    write::client(frame, me)
}

/// Encodes a broker frame. Fails only for a message or event whose body is invalid; see [`crate::Body::check`].
pub fn write_broker(frame: &BrokerFrame) -> Result<String, crate::BodyError> {
    write::broker(frame)
}
