//! Formatting of server-sent events.

use bytes::Bytes;
use toolbus_mcp::Message;

/// A comment that keeps proxies from closing an idle connection.
pub const KEEPALIVE: Bytes = Bytes::from_static(b": ping\n\n");

pub fn event(message: &Message) -> Bytes {
    Bytes::from(format!("event: message\ndata: {}\n\n", message.to_json()))
}

/// An event with an id, from which the client can resume the stream.
pub fn numbered(id: &str, message: &Message) -> Bytes {
    Bytes::from(format!("id: {id}\nevent: message\ndata: {}\n\n", message.to_json()))
}

/// An event with no data but an id, so that a stream can be resumed from its start, and the reconnect delay.
pub fn priming(id: &str, retry_ms: u64) -> Bytes {
    Bytes::from(format!("id: {id}\nretry: {retry_ms}\ndata: \n\n"))
}
