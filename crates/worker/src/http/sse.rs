//! Server-sent events as text.

use bytes::Bytes;
use toolbus_mcp::Message;

/// Keeps connections open that something between would close for silence.
pub const KEEPALIVE: Bytes = Bytes::from_static(b": ping\n\n");

pub fn event(message: &Message) -> Bytes {
    Bytes::from(format!("event: message\ndata: {}\n\n", message.to_json()))
}

/// An event under an id after which the client may ask for the rest.
pub fn numbered(id: &str, message: &Message) -> Bytes {
    Bytes::from(format!("id: {id}\nevent: message\ndata: {}\n\n", message.to_json()))
}

/// Nothing but an id, so that a stream can be resumed from its very start, and how long to wait before doing so.
pub fn priming(id: &str, retry_ms: u64) -> Bytes {
    Bytes::from(format!("id: {id}\nretry: {retry_ms}\ndata: \n\n"))
}
