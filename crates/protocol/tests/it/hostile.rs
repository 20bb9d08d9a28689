//! Invalid JSON frames: each is refused with the right error code, without a panic.

use crate::samples;
use serde_json::Value;
use toolbus_protocol::{ErrorCode, MAX_BODY_DEPTH, MAX_INSPECTED, MAX_NAME_BYTES, json};

fn refused_client(text: impl AsRef<[u8]>, code: ErrorCode) -> String {
    let text = text.as_ref();
    match json::read_client(text) {
        Ok(frame) => panic!("{} was read as {frame:?}", String::from_utf8_lossy(text)),
        Err(error) => check_code(text, &error, code),
    }
}

fn refused_broker(text: impl AsRef<[u8]>, code: ErrorCode) -> String {
    let text = text.as_ref();
    match json::read_broker(text) {
        Ok(frame) => panic!("{} was read as {frame:?}", String::from_utf8_lossy(text)),
        Err(error) => check_code(text, &error, code),
    }
}

fn check_code(text: &[u8], error: &toolbus_protocol::DecodeError, code: ErrorCode) -> String {
    let shown = String::from_utf8_lossy(&text[..text.len().min(300)]);
    assert_eq!(error.code(), code, "{shown}: {error}");
    error.to_string()
}

type RefusalCheck = fn(&str, ErrorCode) -> String;

/// All samples as JSON, with the refusal check for their direction.
fn written_samples() -> Vec<(String, RefusalCheck)> {
    let client = samples::client().into_iter().map(|sample| {
        let check: RefusalCheck = |text, code| refused_client(text, code);
        (json::write_client(&sample.frame, &sample.me), check)
    });
    let broker = samples::broker().into_iter().map(|(name, frame)| {
        let check: RefusalCheck = |text, code| refused_broker(text, code);
        (json::write_broker(&frame).expect(name), check)
    });
    client.chain(broker).collect()
}

fn fields(text: &str) -> serde_json::Map<String, Value> {
    serde_json::from_str(text).expect("samples are objects")
}

#[test]
fn text_other_than_one_json_object_is_a_bad_frame() {
    for text in [
        "",
        " ",
        "null",
        "7",
        "\"subscribe\"",
        "[]",
        r#"["subscribe"]"#,
        r#"["subscribe",null,null,null,null,null,null,null,null,null,null,null,null,null,null]"#,
        "{}",
        "{\"kind\":\"subscribe\"",
        "{\"kind\":\"subscribe\"}x",
        "{\"kind\":\"subscribe\"}{\"kind\":\"subscribe\"}",
        "{\"kind\":\"subscribe\",}",
        "{kind:\"subscribe\"}",
        "{'kind':'subscribe'}",
        "{\"kind\":null}",
        "{\"kind\":7}",
        "{\"kind\":[\"subscribe\"]}",
        "{\"kind\":\"later\"",
        "{\"kind\":\"later\",\"x\":nul}",
        "\u{feff}{\"kind\":\"subscribe\"}",
        "\0",
    ] {
        refused_client(text, ErrorCode::BadFrame);
        refused_broker(text, ErrorCode::BadFrame);
    }
}

#[test]
fn an_error_names_the_missing_required_field() {
    let client = [
        ("hello", &["agent", "token"][..]),
        ("deliver", &["to", "message"]),
        ("ack", &["id"]),
        ("ack_tags", &["tags"]),
        ("ack_with_receipt", &["id", "request_id"]),
        ("cancel", &["to", "correlation_id"]),
        ("list_connected", &["role"]),
        ("live_event", &["to", "correlation_id", "body"]),
        ("publish_event_batch", &["to", "correlation_id", "batch"]),
        ("status", &["request_id"]),
        ("inspect", &["request_id"]),
        ("follow", &["request_id"]),
        ("unfollow", &["request_id"]),
        ("claim", &["journal", "epoch", "instance"]),
    ];
    for sample in samples::client() {
        let text = json::write_client(&sample.frame, &sample.me);
        let (_, required) = client.iter().find(|(kind, _)| *kind == sample.frame.kind()).unwrap_or(&("", &[]));
        for field in *required {
            let error = refused_client(without(&text, field), ErrorCode::BadFrame);
            assert!(error.contains(field), "{}: {error}", sample.name);
        }
    }
    let broker = [
        ("broker_identity", &["id"][..]),
        ("message", &["message"]),
        ("delivered", &["id"]),
        ("receipts", &["ranges"]),
        ("ack_result", &["id", "request_id", "accepted"]),
        ("cancel", &["correlation_id"]),
        ("cancel_result", &["request_id", "correlation_id", "outcome"]),
        ("connected", &["ids"]),
        ("live_event", &["from", "correlation_id", "body"]),
        ("event_batch", &["correlation_id", "batch"]),
        ("status", &["request_id"]),
        ("inspected", &["request_id"]),
        ("followed", &["request_id"]),
        ("unsure", &["id"]),
        ("agents_ended", &["agents"]),
    ];
    for (name, frame) in samples::broker() {
        let text = json::write_broker(&frame).expect(name);
        let (_, required) = broker.iter().find(|(kind, _)| *kind == frame.kind()).unwrap_or(&("", &[]));
        for field in *required {
            let error = refused_broker(without(&text, field), ErrorCode::BadFrame);
            assert!(error.contains(field), "{name}: {error}");
        }
    }
}

fn without(text: &str, field: &str) -> String {
    let mut fields = fields(text);
    assert!(fields.remove(field).is_some(), "{text} has no {field}");
    Value::Object(fields).to_string()
}

#[test]
fn missing_fields_of_messages_and_agents_are_bad_frames() {
    let full = r#"{"kind":"message","message":{"id":"i","from":{"session_id":"s"},"kind":"task","body":{},"created_at":"2026-11-15T19:34:13Z"}}"#;
    assert!(json::read_broker(full.as_bytes()).is_ok());
    for field in ["id", "from", "kind", "body", "created_at"] {
        let mut frame: Value = serde_json::from_str(full).expect("JSON");
        frame["message"].as_object_mut().expect("an object").remove(field);
        let error = refused_broker(frame.to_string(), ErrorCode::BadFrame);
        assert!(error.contains(field), "{error}");
    }
    refused_broker(full.replace(r#""session_id":"s""#, ""), ErrorCode::BadFrame);
    refused_client(r#"{"kind":"hello","agent":{"role":"r"},"token":"t"}"#, ErrorCode::BadFrame);
}

#[test]
fn a_field_of_the_wrong_type_is_a_bad_frame_in_every_frame() {
    for (text, refused) in written_samples() {
        for field in fields(&text).keys().filter(|field| *field != "body") {
            let mut frame = fields(&text);
            // `[[]]` is not valid for any field.
            frame[field.as_str()] = serde_json::json!([[]]);
            refused(&Value::Object(frame).to_string(), ErrorCode::BadFrame);
        }
    }
}

#[test]
fn arrays_in_place_of_objects_are_bad_frames() {
    refused_client(r#"{"kind":"hello","agent":["worker-7","researcher"],"token":"t"}"#, ErrorCode::BadFrame);
    refused_client(
        r#"{"kind":"deliver","to":"n","message":["i",{"session_id":"s"},"task",{},"2026-11-15T19:34:13Z",null,null]}"#,
        ErrorCode::BadFrame,
    );
    refused_broker(r#"{"kind":"welcome","limits":[1,2,3]}"#, ErrorCode::BadFrame);
    refused_broker(r#"{"kind":"status","request_id":"r","connections":[["s",null,true,1]]}"#, ErrorCode::BadFrame);
    refused_client(r#"{"kind":"inspect","request_id":"r","messages":[["n","i"]]}"#, ErrorCode::BadFrame);
    refused_broker(r#"{"kind":"inspected","request_id":"r","rows":[["i","n",1,1,true,1]]}"#, ErrorCode::BadFrame);
    assert_eq!(json::message_id_of(br#"[["i"]]"#), None);
}

#[test]
fn a_repeated_field_is_a_bad_frame_in_every_frame() {
    for (text, refused) in written_samples() {
        let open = text.strip_suffix('}').expect("an object");
        for (field, value) in fields(&text) {
            refused(&format!("{open},\"{field}\":{value}}}"), ErrorCode::BadFrame);
        }
    }
    let message = |repeated: &str| {
        format!(
            r#"{{"kind":"deliver","to":"n","message":{{"id":"i","kind":"task","body":1,"created_at":"2026-11-15T19:34:13Z",{repeated}}}}}"#
        )
    };
    for repeated in [r#""id":"j""#, r#""body":2"#, r#""kind":"ask""#, r#""\u0069d":"j""#] {
        refused_client(message(repeated), ErrorCode::BadFrame);
    }
    refused_client(
        r#"{"kind":"hello","kind":"subscribe","agent":{"session_id":"a"},"token":"t"}"#,
        ErrorCode::BadFrame,
    );
    refused_client(r#"{"kind":"later","kind":"later still"}"#, ErrorCode::BadFrame);
}

#[test]
fn fractional_and_out_of_range_numbers_are_bad_frames() {
    let deliver = |field: &str| {
        format!(
            r#"{{"kind":"deliver","to":"n",{field},"message":{{"id":"i","kind":"task","body":1,"created_at":"2026-11-15T19:34:13Z"}}}}"#
        )
    };
    assert!(json::read_client(deliver(r#""deadline_ms":18446744073709551615"#).as_bytes()).is_ok());
    for number in ["-1", "1.0", "1e3", "18446744073709551616", "\"1\"", "true"] {
        refused_client(deliver(&format!("\"deadline_ms\":{number}")), ErrorCode::BadFrame);
        refused_client(deliver(&format!("\"ack\":{number}")), ErrorCode::BadFrame);
        refused_client(format!("{{\"kind\":\"ack_tags\",\"tags\":[1,{number}]}}"), ErrorCode::BadFrame);
        refused_broker(format!("{{\"kind\":\"receipts\",\"ranges\":[[1,{number}]]}}"), ErrorCode::BadFrame);
    }
    refused_broker(r#"{"kind":"receipts","ranges":[[1,2,3]]}"#, ErrorCode::BadFrame);
    refused_broker(r#"{"kind":"receipts","ranges":[[1]]}"#, ErrorCode::BadFrame);
    refused_broker(r#"{"kind":"receipts","ranges":[[3,2]]}"#, ErrorCode::BadFrame);
    refused_broker(r#"{"kind":"welcome","version":4294967296}"#, ErrorCode::BadFrame);
}

#[test]
fn an_invalid_time_is_a_bad_frame() {
    for time in
        ["", "now", "2026-11-15", "2026-11-15T19:34:13", "2026-13-15T19:34:13Z", "1794771253", "+99999-01-01T00:00:00Z"]
    {
        let text = format!(
            r#"{{"kind":"deliver","to":"n","message":{{"id":"i","kind":"task","body":1,"created_at":"{time}"}}}}"#
        );
        let error = refused_client(text, ErrorCode::BadFrame);
        assert!(error.contains("created_at"), "{time}: {error}");
    }
}

pub fn bad_names() -> Vec<String> {
    let names = [
        "",
        "\0",
        "a\0b",
        "a\nb",
        "\u{1b}[2J",
        "\u{7f}",
        "a\u{85}b",
        ".",
        "..",
        "/",
        "a/b",
        "../../etc/passwd",
        "a\\b",
    ];
    names.iter().map(|name| (*name).to_owned()).chain(["n".repeat(MAX_NAME_BYTES + 1), "ä".repeat(129)]).collect()
}

/// One frame for each field that holds a name, with the placeholder `NAME`.
const NAMES_FROM_CLIENTS: &[&str] = &[
    r#"{"kind":"hello","agent":{"session_id":NAME},"token":"t"}"#,
    r#"{"kind":"hello","agent":{"session_id":"a","role":NAME},"token":"t"}"#,
    r#"{"kind":"deliver","to":NAME,"message":{"id":"i","kind":"task","body":1,"created_at":"2026-11-15T19:34:13Z"}}"#,
    r#"{"kind":"deliver","to":"n","message":{"id":NAME,"kind":"task","body":1,"created_at":"2026-11-15T19:34:13Z"}}"#,
    r#"{"kind":"deliver","to":"n","message":{"id":"i","kind":NAME,"body":1,"created_at":"2026-11-15T19:34:13Z"}}"#,
    r#"{"kind":"deliver","to":"n","message":{"id":"i","kind":"task","body":1,"created_at":"2026-11-15T19:34:13Z","correlation_id":NAME}}"#,
    r#"{"kind":"ack","id":NAME}"#,
    r#"{"kind":"ack_with_receipt","id":NAME,"request_id":"r"}"#,
    r#"{"kind":"ack_with_receipt","id":"i","request_id":NAME}"#,
    r#"{"kind":"cancel","to":NAME,"correlation_id":"c"}"#,
    r#"{"kind":"cancel","to":"n","correlation_id":NAME}"#,
    r#"{"kind":"cancel","to":"n","correlation_id":"c","request_id":NAME}"#,
    r#"{"kind":"follow","request_id":NAME}"#,
    r#"{"kind":"follow","request_id":"r","peers":[NAME]}"#,
    r#"{"kind":"follow","request_id":"r","messages":[{"to":NAME,"id":"i"}]}"#,
    r#"{"kind":"follow","request_id":"r","messages":[{"to":"n","id":NAME}]}"#,
    r#"{"kind":"unfollow","request_id":NAME}"#,
    r#"{"kind":"live_event","to":NAME,"correlation_id":"c","body":1}"#,
    r#"{"kind":"live_event","to":"n","correlation_id":NAME,"body":1}"#,
    r#"{"kind":"status","request_id":NAME}"#,
    r#"{"kind":"inspect","request_id":NAME}"#,
    r#"{"kind":"inspect","request_id":"r","peers":["n",NAME]}"#,
    r#"{"kind":"inspect","request_id":"r","messages":[{"to":NAME,"id":"i"}]}"#,
    r#"{"kind":"inspect","request_id":"r","messages":[{"to":"n","id":NAME}]}"#,
    r#"{"kind":"inspect","request_id":"r","rows_of":NAME}"#,
];

const NAMES_FROM_BROKERS: &[&str] = &[
    r#"{"kind":"message","message":{"id":NAME,"from":{"session_id":"s"},"kind":"task","body":1,"created_at":"2026-11-15T19:34:13Z"}}"#,
    r#"{"kind":"message","message":{"id":"i","from":{"session_id":NAME},"kind":"task","body":1,"created_at":"2026-11-15T19:34:13Z"}}"#,
    r#"{"kind":"message","message":{"id":"i","from":{"session_id":"s","role":NAME},"kind":"task","body":1,"created_at":"2026-11-15T19:34:13Z"}}"#,
    r#"{"kind":"delivered","id":NAME}"#,
    r#"{"kind":"ack_result","id":"i","request_id":NAME,"accepted":true}"#,
    r#"{"kind":"cancel","correlation_id":NAME}"#,
    r#"{"kind":"live_event","from":NAME,"correlation_id":"c","body":1}"#,
    r#"{"kind":"inspected","request_id":NAME}"#,
    r#"{"kind":"inspected","request_id":"r","rows":[{"id":NAME,"from":"n","age_ms":1,"attempt":1,"in_flight":true}]}"#,
    r#"{"kind":"inspected","request_id":"r","rows":[{"id":"i","from":NAME,"age_ms":1,"attempt":1,"in_flight":true}]}"#,
];

#[test]
fn bad_names_are_refused_in_every_field() {
    let longest = "n".repeat(MAX_NAME_BYTES);
    let put = |template: &str, name: &str| {
        template.replace("NAME", &serde_json::to_string(name).expect("strings always serialise"))
    };
    for template in NAMES_FROM_CLIENTS {
        assert!(json::read_client(put(template, &longest).as_bytes()).is_ok(), "{template}");
        for name in bad_names() {
            refused_client(put(template, &name), ErrorCode::BadName);
        }
    }
    for template in NAMES_FROM_BROKERS {
        assert!(json::read_broker(put(template, &longest).as_bytes()).is_ok(), "{template}");
        for name in bad_names() {
            refused_broker(put(template, &name), ErrorCode::BadName);
        }
    }
}

#[test]
fn an_inspect_with_too_many_entries_is_a_bad_frame() {
    let inspect = |count: usize| {
        let peers = vec!["n"; count];
        let messages = vec![serde_json::json!({"to": "n", "id": "i"}); count];
        let nothing = serde_json::json!([]);
        let of = |peers: Value, messages: Value| {
            serde_json::json!({"kind": "inspect", "request_id": "r", "peers": peers, "messages": messages}).to_string()
        };
        [of(serde_json::json!(peers), nothing.clone()), of(nothing, serde_json::json!(messages))]
    };
    for text in inspect(MAX_INSPECTED) {
        assert!(json::read_client(text.as_bytes()).is_ok());
    }
    for text in inspect(MAX_INSPECTED + 1) {
        let error = refused_client(text, ErrorCode::BadFrame);
        assert!(error.contains("256"), "{error}");
    }
}

#[test]
fn text_that_is_not_utf_8_is_a_bad_frame() {
    for template in NAMES_FROM_CLIENTS {
        let (before, after) = template.split_once("NAME").expect("a placeholder");
        let text = [before.as_bytes(), b"\"a\xffb\"", after.as_bytes()].concat();
        refused_client(text, ErrorCode::BadFrame);
    }
    refused_client(
        b"{\"kind\":\"live_event\",\"to\":\"n\",\"correlation_id\":\"c\",\"body\":\"\xff\"}",
        ErrorCode::BadFrame,
    );
    refused_client(b"{\"kind\":\"\xc3\x28\"}", ErrorCode::BadFrame);
    refused_client(b"\xff\xfe{\x00}\x00", ErrorCode::BadFrame);
    // A lone surrogate has no UTF-8 encoding either.
    refused_client(r#"{"kind":"ack","id":"\ud83e"}"#, ErrorCode::BadFrame);
}

#[test]
fn nesting_is_limited_in_bodies_and_ignored_elsewhere() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let event = |body: &str| format!(r#"{{"kind":"live_event","to":"n","correlation_id":"c","body":{body}}}"#);
    let deliver = |body: &str| {
        format!(
            r#"{{"kind":"deliver","to":"n","message":{{"id":"i","kind":"task","body":{body},"created_at":"2026-11-15T19:34:13Z"}}}}"#
        )
    };
    assert!(json::read_client(event(&nested(MAX_BODY_DEPTH)).as_bytes()).is_ok());
    assert!(json::read_client(deliver(&nested(MAX_BODY_DEPTH)).as_bytes()).is_ok());
    for depth in [MAX_BODY_DEPTH + 1, 200, 1_000_000] {
        refused_client(event(&nested(depth)), ErrorCode::TooDeep);
        refused_client(deliver(&nested(depth)), ErrorCode::TooDeep);
        refused_client(deliver(&format!("{{\"a\":{}}}", nested(depth))), ErrorCode::TooDeep);
    }
    let million = "[".repeat(1_000_000);
    for start in ["", r#"{"kind":"#, r#"{"kind":"ack_tags","tags":"#, r#"{"kind":"hello","agent":"#, r#"{"later":"#] {
        refused_client(format!("{start}{million}"), ErrorCode::BadFrame);
        refused_broker(format!("{start}{million}"), ErrorCode::BadFrame);
    }
    let deep_unknown_field = format!(r#"{{"kind":"subscribe","later":{}}}"#, nested(1_000_000));
    assert!(json::read_client(deep_unknown_field.as_bytes()).is_ok());
}

#[test]
fn the_id_of_an_undecodable_deliver_is_found_if_present() {
    let check = |text: &str, id: Option<&str>| {
        assert_eq!(json::message_id_of(text.as_bytes()).as_ref().map(|id| id.as_str()), id, "{text}");
    };
    check(r#"{"kind":"deliver","to":"a/b","message":{"id":"i","kind":"task","body":1,"created_at":"x"}}"#, Some("i"));
    check(r#"{"kind":"deliver","message":{"id":"i","body":7,"later":[1]}}"#, Some("i"));
    check(r#"{"kind":"deliver","message":{"id":7}}"#, None);
    check(r#"{"kind":"deliver","message":{}}"#, None);
    check(r#"{"kind":"deliver"}"#, None);
    check(r#"{"kind":"deliver","message":{"id":"i""#, None);
    check(&format!(r#"{{"message":{{"id":"{}"}}}}"#, "n".repeat(MAX_NAME_BYTES + 1)), None);
    assert_eq!(json::message_id_of(b"\xff"), None);
}

#[test]
fn debug_output_does_not_contain_the_token() {
    let text = r#"{"kind":"hello","agent":{"session_id":"a"},"token":"canary-5f1e"}"#;
    let frame = json::read_client(text.as_bytes()).expect("a hello");
    assert!(!format!("{frame:?} {frame:#?}").contains("canary"), "{frame:?}");
}
