//! Both framings in both directions: what a decoder accepts can be encoded and decodes to the same frame, and decoding
//! allocates in proportion to its input.

use crate::memory::bounded;
use bytes::{Bytes, BytesMut};
use toolbus_protocol::{AgentRef, BrokerFrame, ClientFrame, DecodeError, compact, json};

/// Bytes that decoding may allocate per byte of input. An empty string in a list of JSON takes three bytes of the input,
/// and 24 bytes in each of the two lists that it passes through, which double as they grow.
const FACTOR: usize = 128;

pub fn client_json(data: &[u8]) {
    json::message_id_of(data);
    let Ok(frame) = bounded(data, FACTOR, || json::read_client(data)) else { return };
    same_in_json(&frame);
    same_in_compact(&frame);
}

pub fn broker_json(data: &[u8]) {
    let Ok(frame) = bounded(data, FACTOR, || json::read_broker(data)) else { return };
    if matches!(frame, BrokerFrame::Unknown { .. }) {
        return;
    }
    let text = json::write_broker(&frame).expect("a decoded body is valid");
    assert_eq!(json::read_broker(text.as_bytes()).expect("an encoded frame is valid"), frame);
    let mut bytes = BytesMut::new();
    compact::write_broker(&frame, &mut bytes);
    check_single(bytes.freeze(), &frame, compact::read_broker);
}

pub fn client_compact(data: &[u8]) {
    all_frames(data, compact::read_client, |frame| {
        same_in_compact(&frame);
        // A body in the compact framing is opaque, and is checked before it goes into JSON.
        let body = match &frame {
            ClientFrame::Deliver(deliver) => Some(deliver.envelope.open(AgentRef::new("me")).body),
            ClientFrame::Event(event) => Some(event.body.clone()),
            _ => None,
        };
        if body.is_none_or(|body| body.check().is_ok()) && is_exact_in_json(&frame) {
            same_in_json(&frame);
        }
    });
}

pub fn broker_compact(data: &[u8]) {
    all_frames(data, compact::read_broker, |frame| {
        if matches!(frame, BrokerFrame::Unknown { .. }) {
            return;
        }
        let mut bytes = BytesMut::new();
        compact::write_broker(&frame, &mut bytes);
        check_single(bytes.freeze(), &frame, compact::read_broker);
        if let Ok(text) = json::write_broker(&frame) {
            let again = json::read_broker(text.as_bytes()).expect("a frame with a valid body is valid JSON");
            if let (BrokerFrame::Message(one), BrokerFrame::Message(other)) = (&frame, &again) {
                assert_eq!((&one.from, one.tag, one.deadline_ms), (&other.from, other.tag, other.deadline_ms));
                assert_eq!(one.envelope.id, other.envelope.id);
            }
        }
    });
}

/// JSON removes spaces around a body.
fn is_exact_in_json(frame: &ClientFrame) -> bool {
    let trimmed = |body: &[u8]| body.trim_ascii().len() == body.len();
    match frame {
        ClientFrame::Deliver(deliver) => trimmed(deliver.envelope.open(AgentRef::new("me")).body.as_bytes()),
        ClientFrame::Event(event) => trimmed(event.body.as_bytes()),
        _ => true,
    }
}

fn same_in_json(frame: &ClientFrame) {
    if matches!(frame, ClientFrame::Unknown { .. }) {
        return;
    }
    let text = json::write_client(frame, &AgentRef::new("me").with_role("role"));
    assert_eq!(&json::read_client(text.as_bytes()).expect("an encoded frame is valid"), frame);
}

fn same_in_compact(frame: &ClientFrame) {
    if matches!(frame, ClientFrame::Unknown { .. }) {
        return;
    }
    let mut bytes = BytesMut::new();
    compact::write_client(frame, &AgentRef::new("me"), &mut bytes);
    check_single(bytes.freeze(), frame, compact::read_client);
}

type Read<F> = fn(&mut Bytes) -> Result<Option<F>, DecodeError>;

fn check_single<F: PartialEq + std::fmt::Debug>(mut bytes: Bytes, frame: &F, read: Read<F>) {
    assert_eq!(&read(&mut bytes).expect("an encoded frame is valid").expect("it is there"), frame);
    assert!(bytes.is_empty(), "decoding a frame leaves a part of it");
}

/// Reads until the end. Every step consumes input, whether it succeeds or not.
fn all_frames<F>(data: &[u8], read: Read<F>, mut each: impl FnMut(F)) {
    let mut input = Bytes::copy_from_slice(data);
    while !input.is_empty() {
        let before = input.len();
        let read = bounded(data, FACTOR, || read(&mut input));
        assert!(input.len() < before, "the decoder does not advance");
        if let Ok(Some(frame)) = read {
            each(frame);
        }
    }
}
