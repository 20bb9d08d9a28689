//! The compact framing with truncated, inconsistent and hostile input.

use crate::hostile::bad_names;
use crate::samples::{self, ClientSample};
use crate::wire::{
    compact_broker, compact_client, framed, opened, read_compact_broker, read_compact_client, sealed, text, varint,
};
use bytes::Bytes;
use std::fmt::Debug;
use toolbus_protocol::{BrokerFrame, ClientFrame, DecodeError, Envelope, ErrorCode, compact};

const SUBSCRIBE: u8 = 0x01;
const DELIVER: u8 = 0x02;
const ACK_TAGS: u8 = 0x03;
const EVENT: u8 = 0x04;
const MESSAGE: u8 = 0x41;
const RECEIPTS: u8 = 0x42;

fn refused<T: Debug>(read: Result<Vec<T>, DecodeError>, code: ErrorCode) -> DecodeError {
    let error = read.expect_err("the input is invalid");
    assert_eq!(error.code(), code, "{error}");
    error
}

#[test]
fn a_frame_truncated_at_any_byte_is_refused() {
    for ClientSample { me, frame, .. } in samples::client() {
        let bytes = compact_client(&frame, &me);
        for cut in 1..bytes.len() {
            let error = refused(read_compact_client(&bytes[..cut]), ErrorCode::BadFrame);
            assert!(matches!(error, DecodeError::Truncated), "{} at {cut}: {error}", frame.kind());
        }
    }
    for (name, frame) in samples::broker() {
        let bytes = compact_broker(&frame);
        for cut in 1..bytes.len() {
            let error = refused(read_compact_broker(&bytes[..cut]), ErrorCode::BadFrame);
            assert!(matches!(error, DecodeError::Truncated), "{name} at {cut}: {error}");
        }
    }
}

#[test]
fn content_truncated_before_the_body_is_refused() {
    for ClientSample { name, me, frame } in samples::client() {
        let body = match &frame {
            ClientFrame::Deliver(deliver) => opened(&deliver.envelope).body.as_bytes().len(),
            ClientFrame::Event(event) => event.body.as_bytes().len(),
            _ => 0,
        };
        check_truncations(name, &compact_client(&frame, &me), body, |bytes| read_compact_client(bytes).map(drop));
    }
    for (name, frame) in samples::broker() {
        let body = match &frame {
            BrokerFrame::Message(push) => opened(&push.envelope).body.as_bytes().len(),
            BrokerFrame::Event(event) => event.body.as_bytes().len(),
            _ => 0,
        };
        check_truncations(name, &compact_broker(&frame), body, |bytes| read_compact_broker(bytes).map(drop));
    }
}

/// Truncates the content of a frame and adjusts its length, so that only the content is invalid. A body may have any
/// length.
fn check_truncations(name: &str, bytes: &[u8], body: usize, read: impl Fn(&[u8]) -> Result<(), DecodeError>) {
    let content = &bytes[bytes.len() - content_length(bytes)..];
    for cut in 0..content.len() {
        let result = read(&framed(bytes[0], &content[..cut]));
        if cut < content.len() - body {
            let error = result.expect_err(name);
            assert_eq!(error.code(), ErrorCode::BadFrame, "{name} at {cut}: {error}");
        } else {
            result.unwrap_or_else(|error| panic!("{name} at {cut}: {error}"));
        }
    }
}

fn content_length(bytes: &[u8]) -> usize {
    let prefix = 1 + bytes[1..].iter().take_while(|byte| **byte >= 0x80).count() + 1;
    bytes.len() - prefix
}

#[test]
fn sealed_bytes_truncated_in_the_head_are_refused() {
    for ClientSample { frame, .. } in samples::client() {
        let ClientFrame::Deliver(deliver) = frame else { continue };
        let whole = deliver.envelope.sealed();
        let head = whole.len() - opened(&deliver.envelope).body.as_bytes().len();
        for cut in 0..head {
            let error = Envelope::from_sealed(whole.slice(..cut)).expect_err("the head is truncated");
            assert!(matches!(error, DecodeError::Truncated), "{error}");
        }
        assert_eq!(Envelope::from_sealed(whole.clone()).expect("a valid envelope"), deliver.envelope);
    }
}

#[test]
fn oversized_lengths_and_counts_are_refused_before_allocation() {
    let mut huge = vec![DELIVER];
    varint(&mut huge, u64::MAX);
    huge.extend([0; 16]);
    assert!(matches!(refused(read_compact_client(&huge), ErrorCode::BadFrame), DecodeError::Truncated));
    for count in [2, 1 << 20, u64::MAX] {
        let mut content = Vec::new();
        varint(&mut content, count);
        content.push(1);
        refused(read_compact_client(&framed(ACK_TAGS, &content)), ErrorCode::BadFrame);
        refused(read_compact_broker(&framed(RECEIPTS, &content)), ErrorCode::BadFrame);
    }
    let mut content = vec![0];
    varint(&mut content, u64::MAX);
    refused(read_compact_client(&framed(DELIVER, &content)), ErrorCode::BadFrame);
}

#[test]
fn numbers_out_of_range_are_bad_numbers() {
    let check = |read: Result<Vec<BrokerFrame>, DecodeError>| {
        let error = refused(read, ErrorCode::BadFrame);
        assert!(matches!(error, DecodeError::BadNumber), "{error}");
    };
    // A varint of eleven bytes, and one of ten bytes with more than 64 bits.
    check(read_compact_broker(&framed(RECEIPTS, &[0x80; 11])));
    check(read_compact_broker(&framed(RECEIPTS, &[&[0xff; 9][..], &[0x02]].concat())));
    // A range whose end exceeds 2^64.
    let mut overflow = vec![1];
    varint(&mut overflow, 2);
    varint(&mut overflow, u64::MAX);
    check(read_compact_broker(&framed(RECEIPTS, &overflow)));
    // An attempt that exceeds 2^32.
    let mut attempt = vec![0];
    varint(&mut attempt, 1 << 32);
    text(&mut attempt, "from");
    attempt.extend(sealed("i", "task", "1"));
    check(read_compact_broker(&framed(MESSAGE, &attempt)));
}

#[test]
fn overlong_varints_are_accepted() {
    let frames = read_compact_client(&[ACK_TAGS, 0x84, 0x00, 0x81, 0x00, 0x87, 0x00]).expect("a frame");
    assert_eq!(frames, [ClientFrame::AckTags { tags: vec![7] }]);
}

fn deliver(to: &[u8], sealed: &[u8]) -> Vec<u8> {
    let mut content = vec![0];
    text(&mut content, to);
    content.extend_from_slice(sealed);
    framed(DELIVER, &content)
}

fn push(from: &[u8], role: &[u8]) -> Vec<u8> {
    let mut content = vec![4, 1];
    text(&mut content, from);
    text(&mut content, role);
    content.extend(sealed("i", "task", "1"));
    framed(MESSAGE, &content)
}

fn event(peer: &[u8], correlation_id: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    text(&mut content, peer);
    text(&mut content, correlation_id);
    content.push(b'1');
    framed(EVENT, &content)
}

fn sealed_with_correlation(correlation_id: &[u8]) -> Vec<u8> {
    let mut sealed = sealed("i", "task", "");
    sealed[8] = 1;
    text(&mut sealed, correlation_id);
    sealed.push(b'1');
    sealed
}

/// One frame for each field that holds a name.
fn frames_with(name: &[u8]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let from_clients = vec![
        deliver(name, &sealed("i", "task", "1")),
        deliver(b"n", &sealed(name, "task", "1")),
        deliver(b"n", &sealed("i", name, "1")),
        deliver(b"n", &sealed_with_correlation(name)),
        event(name, b"c"),
        event(b"n", name),
    ];
    let from_brokers = vec![push(name, b"role"), push(b"from", name), event(name, b"c"), event(b"n", name)];
    (from_clients, from_brokers)
}

#[test]
fn bad_names_are_refused_in_every_field() {
    let (from_clients, from_brokers) = frames_with(b"a good name");
    from_clients.iter().for_each(|bytes| assert!(read_compact_client(bytes).is_ok(), "{bytes:?}"));
    from_brokers.iter().for_each(|bytes| assert!(read_compact_broker(bytes).is_ok(), "{bytes:?}"));
    for name in bad_names() {
        let (from_clients, from_brokers) = frames_with(name.as_bytes());
        for bytes in from_clients {
            refused(read_compact_client(&bytes), ErrorCode::BadName);
        }
        for bytes in from_brokers {
            refused(read_compact_broker(&bytes), ErrorCode::BadName);
        }
    }
}

#[test]
fn text_that_is_not_utf_8_is_a_bad_frame() {
    let (from_clients, from_brokers) = frames_with(b"a\xffb");
    for bytes in from_clients {
        let error = refused(read_compact_client(&bytes), ErrorCode::BadFrame);
        assert!(matches!(error, DecodeError::NotUtf8), "{error}");
    }
    for bytes in from_brokers {
        refused(read_compact_broker(&bytes), ErrorCode::BadFrame);
    }
    let mut trace = sealed("i", "task", "");
    trace[8] = 2;
    text(&mut trace, b"\xff");
    refused(read_compact_client(&deliver(b"n", &trace)), ErrorCode::BadFrame);
}

#[test]
fn unknown_flags_are_refused() {
    let check = |error: DecodeError| assert!(matches!(error, DecodeError::UnknownFlag), "{error}");
    for bit in [2, 3, 5, 6, 7] {
        let mut bytes = deliver(b"n", &sealed("i", "task", "1"));
        bytes[2] = 1 << bit;
        check(refused(read_compact_client(&bytes), ErrorCode::BadFrame));
    }
    for bit in 2..8 {
        let mut unknown = sealed("i", "task", "1");
        unknown[8] = 1 << bit;
        check(refused(read_compact_client(&deliver(b"n", &unknown)), ErrorCode::BadFrame));
    }
    for bit in [1, 4, 5, 6, 7] {
        let mut bytes = push(b"from", b"role");
        bytes[2] |= 1 << bit;
        check(refused(read_compact_broker(&bytes), ErrorCode::BadFrame));
    }
}

#[test]
fn decoding_resumes_after_a_bad_frame_but_not_after_a_truncated_one() {
    let bad = deliver(b"../etc", &sealed("i", "task", "1"));
    let mut input = Bytes::from([bad, framed(SUBSCRIBE, b"")].concat());
    assert!(compact::read_client(&mut input).is_err());
    assert!(matches!(compact::read_client(&mut input), Ok(Some(ClientFrame::Subscribe))));
    assert!(matches!(compact::read_client(&mut input), Ok(None)));

    // Bytes after an invalid length must not be decoded as frames.
    let mut input = Bytes::from(vec![DELIVER, 9, SUBSCRIBE, 0, SUBSCRIBE, 0]);
    assert!(compact::read_client(&mut input).is_err());
    assert!(matches!(compact::read_client(&mut input), Ok(None)));
}

#[test]
fn json_inside_the_compact_framing_is_validated_like_json() {
    let json = |text: &str| framed(b'{', text.as_bytes());
    refused(read_compact_client(&json("{}")), ErrorCode::BadFrame);
    refused(read_compact_client(&json(r#"{"kind":"ack","id":"a/b"}"#)), ErrorCode::BadName);
    let deep = format!("{}{}", "[".repeat(101), "]".repeat(101));
    let event = format!(r#"{{"kind":"live_event","to":"n","correlation_id":"c","body":{deep}}}"#);
    refused(read_compact_client(&json(&event)), ErrorCode::TooDeep);
}
