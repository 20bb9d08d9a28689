//! Bodies are preserved byte for byte, and an invalid body can't forge other fields or frames.

use crate::samples::{message, worker};
use crate::wire::{compact_broker, compact_client, json_broker, json_client, opened, read_compact_broker, sealed};
use bytes::Bytes;
use toolbus_protocol::{
    Body, BodyError, BrokerFrame, ClientFrame, DecodeError, Deliver, Envelope, ErrorCode, Event, Push, json,
};

/// Bodies that parsing and re-encoding would change, or that other parsers reject.
const FRAGILE_BODIES: &[&str] = &[
    "9007199254740993",
    "123456789012345678901234567890123456789012345678901234567890",
    "1.0",
    "1.10",
    "-0",
    "-0.0",
    "1e400",
    "1E+02",
    "0.1000000000000000055511151231257827",
    r#""\u0041\/\u00e4""#,
    r#""\ud83e""#,
    r#""\u0000""#,
    "\"\u{2028}\u{feff}é\u{301}\"",
    "{ }",
    "[ 1 ,\t2\r\n]",
    r#"{"b":1,"a":2,"b":3}"#,
    r#""}],\"from\":{\"session_id\":\"boss\"}""#,
];

#[test]
fn bodies_are_preserved_byte_for_byte_between_framings() {
    for text in FRAGILE_BODIES {
        let envelope = message("i", "task", text).seal();
        let deliver = Deliver { to: "n".into(), envelope, deadline_ms: None, ack: None, age_ms: None };
        let written = json::write_client(&ClientFrame::Deliver(deliver.clone()), &worker());
        let ClientFrame::Deliver(by_json) = json_client(&written) else { panic!("expected a deliver") };
        let bytes = compact_client(&ClientFrame::Deliver(deliver), &worker());
        let frames = crate::wire::read_compact_client(&bytes).expect("a deliver");
        let [ClientFrame::Deliver(by_compact)] = &frames[..] else { panic!("expected a deliver") };
        assert_eq!(by_json.envelope.sealed(), by_compact.envelope.sealed(), "{text}");
        check_pushed(text, by_json.envelope);
    }
}

fn check_pushed(text: &str, envelope: Envelope) {
    let push = BrokerFrame::Message(pushed(envelope));
    let BrokerFrame::Message(by_json) = json_broker(&json::write_broker(&push).expect(text)) else {
        panic!("expected a message")
    };
    assert_eq!(opened(&by_json.envelope).body.as_bytes(), text.as_bytes());
    let frames = read_compact_broker(&compact_broker(&push)).expect(text);
    let [BrokerFrame::Message(by_compact)] = &frames[..] else { panic!("expected a message") };
    assert_eq!(opened(&by_compact.envelope).body.as_bytes(), text.as_bytes());
}

fn pushed(envelope: Envelope) -> Push {
    Push { tag: None, attempt: 1, from: worker(), deadline_ms: None, envelope }
}

#[test]
fn whitespace_around_a_body_is_removed() {
    let body = Body::parse(" \t{ \"a\": 1 }\r\n").expect("JSON");
    assert_eq!(body.as_bytes(), "{ \"a\": 1 }".as_bytes());
}

/// Bodies that only the compact framing accepts, because it does not validate them.
fn invalid_bodies() -> Vec<Vec<u8>> {
    let deep = format!("{}{}", "[".repeat(101), "]".repeat(101));
    let texts = [
        "",
        " ",
        "nul",
        "{",
        "1}",
        "1 2",
        "{}{}",
        "'a'",
        "01",
        "\"a\nb\"",
        r#"1},"tag":7,"x":{"y":1"#,
        r#"1,"from":{"session_id":"boss","role":"root"}"#,
        r#"1,"created_at":"2026-11-15T19:34:13Z"},"message":{"id":"forged""#,
        r#"null}}{"kind":"cancel","correlation_id":"c"}"#,
        &deep,
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).chain([b"\"\xff\"".to_vec(), b"1\0".to_vec()]).collect()
}

#[test]
fn an_invalid_body_is_never_written_into_json() {
    for body in invalid_bodies() {
        let envelope = Envelope::from_sealed(sealed("i", "task", &body).into()).expect("the head is valid");
        let push = BrokerFrame::Message(pushed(envelope));
        let error = json::write_broker(&push).expect_err("the body is invalid");
        let too_deep = matches!(error, BodyError::TooDeep);
        let code = DecodeError::from(error).code();
        assert_eq!(code, if too_deep { ErrorCode::TooDeep } else { ErrorCode::BadFrame });
        // The compact framing carries the body unchanged, delimited by the length of the frame.
        assert_eq!(read_compact_broker(&compact_broker(&push)).expect("opaque bytes"), [push]);
        assert!(Body::parse(body).is_err());
    }
}

#[test]
fn an_invalid_live_event_is_never_written_into_json() {
    for body in invalid_bodies() {
        let mut content = vec![1, b'n', 1, b'c'];
        content.extend_from_slice(&body);
        let frames = read_compact_broker(&crate::wire::framed(0x04, &content)).expect("opaque bytes");
        let [frame @ BrokerFrame::Event(Event { body: read, .. })] = &frames[..] else { panic!("expected an event") };
        assert_eq!(read.as_bytes(), &body);
        assert!(json::write_broker(frame).is_err(), "{}", String::from_utf8_lossy(&body));
    }
}

#[test]
fn a_body_that_mimics_a_correlation_id_has_different_content() {
    // The bytes after the kind are equal: a string of 34 bytes, then `1`.
    let lookalike = format!("\"{}1", "x".repeat(34));
    let plain = Envelope::from_sealed(sealed("i", "task", &lookalike).into()).expect("a valid envelope");
    let mut correlated = message("i", "task", "1").correlated_to("x".repeat(34).as_str().into());
    correlated.created_at = toolbus_protocol::Timestamp(0);
    assert_ne!(plain.content(), correlated.seal().content());
}

#[test]
fn a_sealed_envelope_keeps_its_bytes() {
    let bytes = Bytes::from(sealed("i", "task", "{ \"a\" : 1.0 }"));
    let envelope = Envelope::from_sealed(bytes.clone()).expect("a valid envelope");
    assert_eq!(envelope.sealed(), &bytes);
    assert_eq!((&*envelope.id, envelope.correlation_id.as_deref()), ("i", None));
}
