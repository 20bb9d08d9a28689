//! Invalid frames after the handshake. A version 1 peer gets an error and may continue, up to a limit; the connection
//! of a version 2 peer, whose receipts are numbered, is closed. Other peers are not affected.

use crate::healthy_pair::HealthyPair;
use crate::support::{Bus, Logs, Peer, Setup, TOKEN, deliver, hello, hello_v2, masked_frame};
use serde_json::{Value, json};
use toolbus_broker::ServerOptions;

const MAX_FRAME: usize = 1 << 20;

struct Case {
    what: &'static str,
    frame: Frame,
    code: &'static str,
    /// Id of the message that the error refers to.
    about: Option<&'static str>,
}

enum Frame {
    Text(String),
    Binary(Vec<u8>),
}

fn text(what: &'static str, frame: impl ToString, code: &'static str) -> Case {
    Case { what, frame: Frame::Text(frame.to_string()), code, about: None }
}

/// An invalid `deliver` of the message `m`.
fn bad_deliver(what: &'static str, code: &'static str, change: impl FnOnce(&mut Value)) -> Case {
    let mut frame = deliver("honest-recipient", "m", json!(1));
    change(&mut frame);
    Case { what, frame: Frame::Text(frame.to_string()), code, about: Some("m") }
}

fn nested(levels: usize) -> String {
    let body = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    deliver("honest-recipient", "m", json!("BODY")).to_string().replace("\"BODY\"", &body)
}

fn cases() -> Vec<Case> {
    let mut cases = unreadable();
    cases.extend(bad_names());
    cases.extend([
        Case { about: Some("m"), ..text("a body nested too deeply", nested(101), "TB0106") },
        Case { about: Some("m"), ..text("a body nested absurdly", nested(400_000), "TB0106") },
        Case { about: Some("m"), ..text("a frame over the limit", over_the_limit(), "TB0105") },
        text("a second hello", hello("other"), "TB0108"),
        text("a second hello with a wrong token", hello("x").to_string().replace(TOKEN, "wrong"), "TB0108"),
        Case { what: "a binary message", frame: Frame::Binary(vec![1, 0]), code: "TB0109", about: None },
        Case { what: "an empty binary message", frame: Frame::Binary(vec![]), code: "TB0109", about: None },
    ]);
    cases
}

fn over_the_limit() -> String {
    deliver("honest-recipient", "m", "x".repeat(MAX_FRAME).into()).to_string()
}

fn unreadable() -> Vec<Case> {
    vec![
        text("no JSON", "hello there", "TB0101"),
        text("nothing", "", "TB0101"),
        text("null", "null", "TB0101"),
        text("a list", json!([{"kind": "subscribe"}]), "TB0101"),
        text("two frames in one", r#"{"kind":"subscribe"}{"kind":"subscribe"}"#, "TB0101"),
        text("half a frame", r#"{"kind":"subscribe""#, "TB0101"),
        text("no kind", json!({"id": "m"}), "TB0101"),
        text("a kind that is a number", json!({"kind": 7}), "TB0101"),
        text("half a surrogate pair", r#"{"kind":"ack","id":"\ud800"}"#, "TB0101"),
        text("nesting instead of an id", format!(r#"{{"kind":"ack","id":{}1"#, "[".repeat(300_000)), "TB0101"),
        text("nesting and nothing else", "[".repeat(500_000), "TB0101"),
        text("objects in objects", r#"{"kind":"ack","id":"#.repeat(20_000), "TB0101"),
        text("a deliver without a message", json!({"kind": "deliver", "to": "honest-recipient"}), "TB0101"),
        text("a repeated field", r#"{"kind":"ack","id":"a","id":"b"}"#, "TB0101"),
        text("an ack without an id", json!({"kind": "ack"}), "TB0101"),
        text("tags below zero", json!({"kind": "ack_tags", "tags": [-1]}), "TB0101"),
        text("tags past 64 bits", r#"{"kind":"ack_tags","tags":[18446744073709551616]}"#, "TB0101"),
        bad_deliver("no recipient", "TB0101", |frame| frame["to"] = Value::Null),
        bad_deliver("a time that is not a time", "TB0101", |frame| frame["message"]["created_at"] = "yesterday".into()),
        bad_deliver("a deadline below zero", "TB0101", |frame| frame["deadline_ms"] = json!(-1)),
        bad_deliver("a sender that is a text", "TB0101", |frame| frame["message"]["from"] = "boss".into()),
        text("100 KB instead of a message", json!({"kind": "deliver", "message": "x".repeat(100_000)}), "TB0101"),
    ]
}

fn bad_names() -> Vec<Case> {
    let ten_kilobytes = "n".repeat(10_000);
    vec![
        bad_deliver("a recipient with a slash", "TB0107", |frame| frame["to"] = "a/b".into()),
        bad_deliver("a recipient with a parent path", "TB0107", |frame| frame["to"] = "../../etc/passwd".into()),
        bad_deliver("a recipient of two dots", "TB0107", |frame| frame["to"] = "..".into()),
        bad_deliver("a recipient of one dot", "TB0107", |frame| frame["to"] = ".".into()),
        bad_deliver("a recipient with a backslash", "TB0107", |frame| frame["to"] = "a\\b".into()),
        bad_deliver("a recipient with a NUL", "TB0107", |frame| frame["to"] = "honest-recipient\0".into()),
        bad_deliver("a recipient with a line feed", "TB0107", |frame| frame["to"] = "a\nWARN b".into()),
        bad_deliver("a recipient with a bidi override", "TB0107", |frame| frame["to"] = "a\u{202e}b".into()),
        bad_deliver("an empty recipient", "TB0107", |frame| frame["to"] = "".into()),
        bad_deliver("10 KB of recipient", "TB0107", |frame| frame["to"] = ten_kilobytes.clone().into()),
        bad_deliver("a kind with a slash", "TB0107", |frame| frame["message"]["kind"] = "a/b".into()),
        bad_deliver("10 KB of kind", "TB0107", |frame| frame["message"]["kind"] = ten_kilobytes.clone().into()),
        bad_deliver("a correlation id of two dots", "TB0107", |frame| frame["message"]["correlation_id"] = "..".into()),
        text("10 KB of id", deliver("honest-recipient", &ten_kilobytes, json!(1)), "TB0107"),
        Case { about: Some("a/b"), ..text("an id with a slash", deliver("x", "a/b", json!(1)), "TB0107") },
        Case { about: Some(".."), ..text("an id of two dots", deliver("x", "..", json!(1)), "TB0107") },
        text("an ack with a parent path", json!({"kind": "ack", "id": "../m"}), "TB0107"),
        text("an ack of 10 KB", json!({"kind": "ack", "id": ten_kilobytes}), "TB0107"),
        text("a cancel of two dots", json!({"kind": "cancel", "to": "..", "correlation_id": "m"}), "TB0107"),
        text("a role with a NUL", json!({"kind": "list_connected", "role": "a\0"}), "TB0107"),
        text("a request with a slash", json!({"kind": "status", "request_id": "a/b"}), "TB0107"),
        text(
            "an event with a parent path",
            json!({"kind": "live_event", "to": "../x", "correlation_id": "m", "body": 1}),
            "TB0107",
        ),
    ]
}

async fn small_frames() -> Bus {
    let server = ServerOptions { max_frame_bytes: MAX_FRAME, ..ServerOptions::default() };
    Bus::with(Setup { server, ..Setup::default() }).await
}

async fn send(peer: &mut Peer, frame: Frame) {
    match frame {
        Frame::Text(text) => peer.send_text(text).await,
        Frame::Binary(bytes) => peer.send_binary(bytes).await,
    }
}

fn check_log(logs: &Logs, what: &str, code: &str) {
    let warnings = logs.warnings();
    assert_eq!(warnings.len(), 1, "{what}: {warnings:#?}");
    assert!(warnings[0].contains(code), "{what}: {warnings:?}");
    assert!(warnings[0].len() < 1000, "{what}: a line of {} bytes", warnings[0].len());
    assert!(!logs.text().contains(TOKEN), "{what}: the token is in the log");
}

#[tokio::test]
async fn a_version_1_peer_gets_an_error_for_a_bad_frame_and_continues() {
    let bus = small_frames().await;
    let mut healthy = HealthyPair::join(&bus).await;
    let logs = Logs::start();
    for Case { what, frame, code, about } in cases() {
        println!("{what}");
        let mut peer = bus.peer("clumsy").await;
        logs.clear();
        send(&mut peer, frame).await;
        let error = peer.expect_error(code).await;
        assert_eq!(error["id"].as_str(), about, "{what}: {error}");
        assert!(error.to_string().len() < 1000, "{what}: an error of {} bytes", error.to_string().len());
        peer.deliver("other", &format!("after {what}"), json!(1)).await;
        check_log(&logs, what, code);
        healthy.exchange_message().await;
    }
}

#[tokio::test]
async fn a_version_2_peer_gets_an_error_for_a_bad_frame_and_is_closed() {
    let bus = small_frames().await;
    let mut healthy = HealthyPair::join(&bus).await;
    let logs = Logs::start();
    for Case { what, frame, code, .. } in cases() {
        println!("{what}");
        let mut peer = bus.peer_v2("clumsy").await;
        logs.clear();
        send(&mut peer, frame).await;
        peer.expect_error(code).await;
        peer.expect_close(code).await;
        check_log(&logs, what, code);
        healthy.exchange_message().await;
    }
}

#[tokio::test]
async fn a_websocket_protocol_error_closes_the_connection() {
    let bus = small_frames().await;
    let mut healthy = HealthyPair::join(&bus).await;
    let logs = Logs::start();
    let mut far_over = vec![0x81, 0xff];
    far_over.extend_from_slice(&(2 * MAX_FRAME as u64 + 1).to_be_bytes());
    let cases = [
        ("bytes that are not UTF-8", masked_frame(0x81, b"{\"kind\":\"ack\",\"id\":\"\xff\"}"), "TB0101"),
        ("a frame without a mask", vec![0x81, 2, b'{', b'}'], "TB0101"),
        ("an unknown opcode", masked_frame(0x83, b"{}"), "TB0101"),
        ("a reserved bit", masked_frame(0xc1, b"{}"), "TB0101"),
        ("a close of one byte", masked_frame(0x88, b"?"), "TB0101"),
        ("a frame far over the limit", far_over, "TB0105"),
    ];
    for (what, bytes, code) in cases {
        for hello_frame in [hello("rude"), hello_v2("rude")] {
            println!("{what}");
            let mut peer = Peer::join(bus.address, hello_frame).await;
            logs.clear();
            peer.send_raw(&bytes).await;
            peer.expect_error(code).await;
            peer.expect_close(code).await;
            check_log(&logs, what, code);
            healthy.exchange_message().await;
        }
    }
}

#[tokio::test]
async fn a_binary_message_has_the_same_limit_as_a_text() {
    let bus = small_frames().await;
    // A frame of an unknown kind, which is skipped by its length.
    let message = |bytes: usize| {
        let length = bytes - 4;
        let low = |bits: usize| 0x80 | (length >> bits & 0x7f) as u8;
        let mut message = vec![0x3f, low(0), low(7), (length >> 14) as u8];
        message.resize(bytes, b'x');
        message
    };
    let mut peer = bus.compact_peer("sizable").await;
    peer.send_binary(message(MAX_FRAME)).await;
    peer.roundtrip().await;
    peer.send_binary(message(MAX_FRAME + 1)).await;
    peer.expect_error("TB0105").await;
    peer.expect_close("TB0105").await;
}

#[tokio::test]
async fn the_32nd_bad_frame_closes_a_version_1_connection() {
    let bus = Bus::start().await;
    let logs = Logs::start();
    let mut peer = bus.peer("clumsy").await;
    for _ in 0..31 {
        peer.send_text("?").await;
        peer.expect_error("TB0101").await;
        peer.roundtrip().await;
    }
    peer.send_text("?").await;
    peer.expect_error("TB0101").await;
    peer.expect_close("TB0101").await;
    assert_eq!(logs.warnings().len(), 32);
}

#[tokio::test]
async fn frames_of_an_unknown_kind_are_ignored_after_the_handshake() {
    let bus = Bus::start().await;
    let logs = Logs::start();
    for hello_frame in [hello("ahead"), hello_v2("ahead")] {
        let mut peer = Peer::join(bus.address, hello_frame).await;
        peer.send(json!({"kind": "teleport", "to": ["our", "fields"], "id": {"with": "other types"}})).await;
        peer.send(json!({"kind": "x".repeat(10_000)})).await;
        peer.send_text(format!(r#"{{"kind":"deep","x":{}1{}}}"#, "[".repeat(400_000), "]".repeat(400_000))).await;
        peer.roundtrip().await;
        peer.send(json!({"kind": "list_connected", "role": "tester"})).await;
        assert_eq!(peer.frame().await, json!({"kind": "connected", "ids": []}));
    }
    assert_eq!(logs.warnings(), Vec::<String>::new());
}

#[tokio::test]
async fn frames_before_a_bad_one_are_processed() {
    let bus = small_frames().await;
    for hello_frame in [hello("hasty"), hello_v2("hasty")] {
        let mut recipient = bus.subscriber("recipient").await;
        let mut peer = Peer::join(bus.address, hello_frame.clone()).await;
        let id = format!("before-{}", hello_frame["version"]);
        let mut bytes = masked_frame(0x81, deliver("recipient", &id, json!(1)).to_string().as_bytes());
        bytes.extend(masked_frame(0x83, b"not a WebSocket opcode"));
        peer.send_raw(&bytes).await;
        recipient.expect_message(&id).await;
        recipient.ack_confirmed(&id).await;
    }
}

#[tokio::test]
async fn a_malformed_compact_message_closes_the_connection() {
    let bus = Bus::start().await;
    let mut healthy = HealthyPair::join(&bus).await;
    let logs = Logs::start();
    let cases: [(&str, &[u8], &str); 6] = [
        ("a length without an end", &[0x02, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1], "TB0101"),
        ("a length past the end", &[0x02, 0x7f, 0], "TB0101"),
        ("more tags than bytes", &[0x03, 0x05, 0xff, 0xff, 0xff, 0xff, 0x0f], "TB0101"),
        ("an unknown flag", &[0x02, 0x03, 0x80, 0x01, b'x'], "TB0101"),
        ("a recipient of two dots", &[0x02, 0x04, 0x00, 0x02, b'.', b'.'], "TB0107"),
        (
            "a hello inside",
            b"\x7b\x3b{\"kind\":\"hello\",\"agent\":{\"session_id\":\"x\"},\"token\":\"wrong\"}",
            "TB0108",
        ),
    ];
    for (what, bytes, code) in cases {
        println!("{what}");
        let mut peer = bus.compact_peer("garbled").await;
        logs.clear();
        peer.send_binary(bytes.to_vec()).await;
        peer.expect_error(code).await;
        peer.expect_close(code).await;
        check_log(&logs, what, code);
        healthy.exchange_message().await;
    }
}
