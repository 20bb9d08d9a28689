//! Input that must be accepted: fields and frames of other versions, and alternative encodings.

use crate::samples;
use crate::wire::{compact_client, framed, json_broker, json_client, read_compact_broker, read_compact_client};
use toolbus_protocol::{BrokerFrame, CancelOutcome, ClientFrame};

#[test]
fn unknown_fields_are_ignored_in_every_object_of_every_frame() {
    for sample in samples::client() {
        let text = with_unknown_fields(&toolbus_protocol::json::write_client(&sample.frame, &sample.me));
        assert_eq!(json_client(&text), sample.frame, "{}", sample.name);
    }
    for (name, frame) in samples::broker() {
        let text = with_unknown_fields(&toolbus_protocol::json::write_broker(&frame).expect(name));
        assert_eq!(json_broker(&text), frame, "{name}");
    }
}

/// Inserts an unknown field at the start of every object except the body.
fn with_unknown_fields(text: &str) -> String {
    let field = r#""later":{"kind":"ack","big":1e999,"list":[1,{"id":2}]},"#;
    assert!(text.starts_with('{'));
    let text = format!("{{{field}{}", &text[1..]);
    let text = text.replacen(r#","message":{"#, &format!(r#","message":{{{field}"#), 1);
    let text = text.replace(r#""agent":{"#, &format!(r#""agent":{{{field}"#));
    let text = text.replace(r#""from":{"#, &format!(r#""from":{{{field}"#));
    let text = text.replace(r#""limits":{"#, &format!(r#""limits":{{{field}"#));
    let text = text.replace(r#"{"connected_ms""#, &format!(r#"{{{field}"connected_ms""#));
    text.replace(r#"{"bytes""#, &format!(r#"{{{field}"bytes""#))
}

#[test]
fn frames_of_an_unknown_kind_are_not_errors() {
    let check = |text: &str, kind: &str| {
        assert_eq!(json_client(text), ClientFrame::Unknown { kind: kind.to_owned() }, "{text}");
        assert_eq!(json_broker(text), BrokerFrame::Unknown { kind: kind.to_owned() }, "{text}");
    };
    check(r#"{"kind":"later"}"#, "later");
    check(r#"{"kind":""}"#, "");
    check(r#"{"kind":"Subscribe"}"#, "Subscribe");
    check(r#"{"kind":"l\u0061ter","anything":[1,2,{"x":null}]}"#, "later");
    // An unknown frame may use known field names with other types.
    check(r#"{"kind":"later","id":7,"to":[],"message":[1],"tags":{},"version":"x","agent":0}"#, "later");
    // Extensions of the original that this broker does not support.
    check(r#"{"kind":"observe_host","request_id":"r","mailbox":"m","role":"x"}"#, "observe_host");
    check(r#"{"kind":"host_observation","request_id":"r","observation":null}"#, "host_observation");
}

#[test]
fn frames_of_the_other_direction_are_unknown() {
    assert_eq!(json_client(r#"{"kind":"welcome"}"#), ClientFrame::Unknown { kind: "welcome".to_owned() });
    assert_eq!(json_broker(r#"{"kind":"subscribe"}"#), BrokerFrame::Unknown { kind: "subscribe".to_owned() });
}

#[test]
fn null_is_equivalent_to_an_absent_field() {
    let check = |with_null: &str, without: &str| assert_eq!(json_client(with_null), json_client(without));
    check(
        r#"{"kind":"hello","agent":{"session_id":"a","role":null},"token":"t","version":null,"framing":null}"#,
        r#"{"kind":"hello","agent":{"session_id":"a"},"token":"t"}"#,
    );
    let message = r#"{"id":"i","kind":"task","body":{},"created_at":"2026-11-15T19:34:13Z""#;
    check(
        &format!(
            r#"{{"kind":"deliver","to":"n","deadline_ms":null,"ack":null,"message":{message},"correlation_id":null,"trace":null}}}}"#
        ),
        &format!(r#"{{"kind":"deliver","to":"n","message":{message}}}}}"#),
    );
    assert_eq!(
        json_broker(r#"{"kind":"error","reason":"no","id":null,"code":null}"#),
        json_broker(r#"{"kind":"error","reason":"no"}"#),
    );
}

#[test]
fn an_unknown_framing_or_error_code_is_none() {
    let text = r#"{"kind":"hello","agent":{"session_id":"a"},"token":"t","version":9,"framing":"carrier-pigeon"}"#;
    let ClientFrame::Hello(hello) = json_client(text) else { panic!("expected a hello") };
    assert_eq!((hello.version, hello.framing), (Some(9), None));
    let BrokerFrame::Error(refusal) = json_broker(r#"{"kind":"error","reason":"no","code":"TB9999"}"#) else {
        panic!("expected an error")
    };
    assert_eq!((refusal.reason.as_str(), refusal.code), ("no", None));
}

#[test]
fn an_unknown_outcome_of_a_cancel_counts_as_running() {
    let text = r#"{"kind":"cancel_result","request_id":"r","correlation_id":"c","outcome":"withdrawn_later"}"#;
    let BrokerFrame::CancelResult(result) = json_broker(text) else { panic!("expected a result") };
    assert_eq!(result.outcome, CancelOutcome::Running);
}

#[test]
fn the_from_of_a_delivered_message_is_optional_and_ignored() {
    let read = |from: &str| {
        json_client(&format!(
            r#"{{"kind":"deliver","to":"n","message":{{"id":"i",{from}"kind":"task","body":1,"created_at":"2026-11-15T19:34:13Z"}}}}"#
        ))
    };
    assert_eq!(read(""), read(r#""from":{"session_id":"boss","role":"root"},"#));
}

#[test]
fn rfc_3339_times_are_parsed_and_written_in_utc() {
    let check = |text: &str, written: &str| {
        let at = toolbus_protocol::Timestamp::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(at.to_string(), written, "{text}");
    };
    check("2026-11-15T19:34:13.123456Z", "2026-11-15T19:34:13.123456Z");
    check("2026-11-15T19:34:13.123456789+00:00", "2026-11-15T19:34:13.123456789Z");
    check("2026-11-15T20:34:13+01:00", "2026-11-15T19:34:13Z");
    check("2026-11-15t19:34:13z", "2026-11-15T19:34:13Z");
    check("0001-01-01T00:00:00Z", "1677-09-21T00:12:43.145224192Z");
    check("9999-12-30T00:00:00Z", "2262-04-11T23:47:16.854775807Z");
}

#[test]
fn whitespace_around_a_frame_is_ignored() {
    assert_eq!(json_client(" \t\r\n{ \"kind\" : \"subscribe\" } \n"), ClientFrame::Subscribe);
}

#[test]
fn unknown_opcodes_are_skipped_by_their_length() {
    for opcode in [0x00, 0x05, 0x40, 0x43, 0x7a, 0x80, 0xff] {
        let unknown = framed(opcode, &[0x02; 300]);
        let message = [framed(0x01, b""), unknown, framed(0x03, &[1, 9])].concat();
        let frames = read_compact_client(&message).expect("unknown frames are not errors");
        let [ClientFrame::Subscribe, ClientFrame::Unknown { .. }, ClientFrame::AckTags { tags }] = &frames[..] else {
            panic!("opcode {opcode:#04x} gave {frames:?}")
        };
        assert_eq!(tags, &[9]);
        let frames = read_compact_broker(&framed(opcode, b"")).expect("unknown frames are not errors");
        assert!(matches!(&frames[..], [BrokerFrame::Unknown { .. }]), "opcode {opcode:#04x} gave {frames:?}");
    }
}

#[test]
fn several_compact_frames_share_one_message() {
    let samples = samples::client();
    let bytes: Vec<u8> = samples.iter().flat_map(|sample| compact_client(&sample.frame, &sample.me)).collect();
    let frames: Vec<ClientFrame> = samples.into_iter().map(|sample| sample.frame).collect();
    assert_eq!(read_compact_client(&bytes).expect("all frames are valid"), frames);
    assert_eq!(read_compact_client(b"").expect("an empty message is valid"), []);
}

#[test]
fn bytes_after_the_last_known_field_of_a_list_are_ignored() {
    let longer = [framed(0x01, b"later"), framed(0x03, &[1, 9, 0xff, 0xff])].concat();
    let expected = [ClientFrame::Subscribe, ClientFrame::AckTags { tags: vec![9] }];
    assert_eq!(read_compact_client(&longer).expect("trailing bytes are ignored"), expected);
    let longer = framed(0x42, &[1, 5, 1, 0xff]);
    let expected = [BrokerFrame::Receipts { ranges: vec![(5, 6)] }];
    assert_eq!(read_compact_broker(&longer).expect("trailing bytes are ignored"), expected);
}

#[test]
fn every_frame_may_be_json_inside_the_compact_framing() {
    for sample in samples::client() {
        let text = toolbus_protocol::json::write_client(&sample.frame, &sample.me);
        assert_eq!(read_compact_client(&framed(b'{', text.as_bytes())).expect(sample.name), [sample.frame]);
    }
}

/// Found by the fuzz target `broker_json`: the frame was written without `attempt` and read as the first push.
#[test]
fn an_attempt_of_zero_is_the_first_push() {
    let zero = r#"{"kind":"message","tag":3,"attempt":0,"message":{"id":"m","from":{"session_id":"n"},"kind":"task","body":null,"created_at":"2026-11-15T19:34:13Z"}}"#;
    let frame = json_broker(zero);
    assert!(matches!(&frame, BrokerFrame::Message(push) if push.attempt == 1), "{frame:?}");
    let mut bytes = crate::wire::compact_broker(&frame).to_vec();
    assert_eq!(bytes[3..5], [3, 1], "tag and attempt follow opcode, length and flags");
    bytes[4] = 0;
    assert_eq!(read_compact_broker(&bytes).expect("a valid frame"), [frame]);
}
