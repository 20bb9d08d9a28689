//! Helpers of the tests to encode and decode frames.

use bytes::{Bytes, BytesMut};
use toolbus_protocol::{AgentRef, BrokerFrame, ClientFrame, DecodeError, Envelope, InboxMessage, compact, json};

pub fn compact_client(frame: &ClientFrame, me: &AgentRef) -> Bytes {
    let mut out = BytesMut::new();
    compact::write_client(frame, me, &mut out);
    out.freeze()
}

pub fn compact_broker(frame: &BrokerFrame) -> Bytes {
    let mut out = BytesMut::new();
    compact::write_broker(frame, &mut out);
    out.freeze()
}

/// Decodes all frames of one binary message.
pub fn read_compact_client(bytes: &[u8]) -> Result<Vec<ClientFrame>, DecodeError> {
    let mut input = Bytes::copy_from_slice(bytes);
    std::iter::from_fn(|| compact::read_client(&mut input).transpose()).collect()
}

/// Decodes all frames of one binary message.
pub fn read_compact_broker(bytes: &[u8]) -> Result<Vec<BrokerFrame>, DecodeError> {
    let mut input = Bytes::copy_from_slice(bytes);
    std::iter::from_fn(|| compact::read_broker(&mut input).transpose()).collect()
}

pub fn json_client(text: &str) -> ClientFrame {
    json::read_client(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub fn json_broker(text: &str) -> BrokerFrame {
    json::read_broker(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Opens an envelope with a fixed sender.
pub fn opened(envelope: &Envelope) -> InboxMessage {
    envelope.open(AgentRef::new("sender"))
}

/// Encodes a compact frame with the correct length.
pub fn framed(opcode: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![opcode];
    varint(&mut out, content.len() as u64);
    out.extend_from_slice(content);
    out
}

/// A varint encoder that is independent of the one under test.
pub fn varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

pub fn text(out: &mut Vec<u8>, text: impl AsRef<[u8]>) {
    varint(out, text.as_ref().len() as u64);
    out.extend_from_slice(text.as_ref());
}

/// Encodes a sealed message with exactly these fields, without validation.
pub fn sealed(id: impl AsRef<[u8]>, kind: impl AsRef<[u8]>, body: impl AsRef<[u8]>) -> Vec<u8> {
    let mut out = 0i64.to_le_bytes().to_vec();
    out.push(0);
    text(&mut out, id);
    text(&mut out, kind);
    out.extend_from_slice(body.as_ref());
    out
}
