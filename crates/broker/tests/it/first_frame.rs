//! The first frame of a connection: anything but a valid `hello` closes it, with an error code and one log line, and
//! the token appears nowhere.

use crate::healthy_pair::HealthyPair;
use crate::support::{
    Bus, Logs, Peer, Seen, Setup, TOKEN, hello, hello_v2, masked_frame, request, skip, upgrade_request,
};
use serde_json::{Value, json};
use std::time::Duration;
use toolbus_broker::ServerOptions;

enum Input {
    Text(String),
    Binary(Vec<u8>),
    Raw(Vec<u8>),
}

struct Case(&'static str, Input, &'static str);

fn text(what: &'static str, frame: impl ToString, code: &'static str) -> Case {
    Case(what, Input::Text(frame.to_string()), code)
}

fn hello_with(change: impl FnOnce(&mut Value)) -> Value {
    let mut frame = hello("intruder");
    change(&mut frame);
    frame
}

fn named(name: &str) -> Value {
    hello_with(|frame| frame["agent"]["session_id"] = name.into())
}

/// A `hello` whose token has one changed byte.
fn token_wrong_at(index: usize) -> Value {
    let mut token = TOKEN.as_bytes().to_vec();
    token[index] ^= 1;
    hello_with(|frame| frame["token"] = String::from_utf8(token).expect("ASCII stays ASCII").into())
}

fn cases() -> Vec<Case> {
    vec![
        text("no JSON", "hello there", "TB0101"),
        text("nothing", "", "TB0101"),
        text("a list", json!(["hello"]), "TB0101"),
        text("half a frame", &hello("intruder").to_string()[..40], "TB0101"),
        text("no kind", json!({"token": TOKEN}), "TB0101"),
        text("no agent", json!({"kind": "hello", "token": TOKEN}), "TB0101"),
        text("no token", json!({"kind": "hello", "agent": {"session_id": "intruder"}}), "TB0101"),
        text("two tokens", r#"{"kind":"hello","agent":{"session_id":"a"},"token":"a","token":"b"}"#, "TB0101"),
        text("a version below zero", hello_with(|frame| frame["version"] = json!(-1)), "TB0101"),
        text("an agent that is a list", hello_with(|frame| frame["agent"] = json!(["intruder"])), "TB0101"),
        text("deep nesting", "[".repeat(60_000), "TB0101"),
        text("another frame", json!({"kind": "subscribe"}), "TB0102"),
        text("an unknown kind", json!({"kind": "hullo", "token": TOKEN}), "TB0102"),
        text("a broker's frame", json!({"kind": "welcome"}), "TB0102"),
        Case("a binary message", Input::Binary(vec![1, 0]), "TB0102"),
        text("a wrong first byte", token_wrong_at(0), "TB0103"),
        text("a wrong last byte", token_wrong_at(TOKEN.len() - 1), "TB0103"),
        text("a byte too few", hello_with(|frame| frame["token"] = TOKEN[1..].into()), "TB0103"),
        text("a byte too many", hello_with(|frame| frame["token"] = format!("{TOKEN} ").into()), "TB0103"),
        text("the token in capitals", hello_with(|frame| frame["token"] = TOKEN.to_uppercase().into()), "TB0103"),
        text("an empty token", hello_with(|frame| frame["token"] = "".into()), "TB0103"),
        text("a name with a slash", named("a/b"), "TB0107"),
        text("a name with a parent path", named("../../etc/passwd"), "TB0107"),
        text("two dots", named(".."), "TB0107"),
        text("a NUL", named("a\0b"), "TB0107"),
        text("no name", named(""), "TB0107"),
        text("10 KB of name", named(&"n".repeat(10_000)), "TB0107"),
        text("a role with a slash", hello_with(|frame| frame["agent"]["role"] = "a/b".into()), "TB0107"),
        text("more than 64 KiB", named(&"n".repeat(65 << 10)), "TB0105"),
        Case("half of more than 64 KiB", Input::Raw(long_frame_that_only_begins()), "TB0105"),
        Case("more than 64 KiB in fragments", Input::Raw(endless_fragments()), "TB0105"),
        Case("bytes that are not UTF-8", Input::Raw(masked_frame(0x81, b"{\"kind\":\"\xff\xfe\"}")), "TB0101"),
        Case("a frame without a mask", Input::Raw(vec![0x81, 2, b'{', b'}']), "TB0101"),
        Case("an unknown opcode", Input::Raw(masked_frame(0x83, b"{}")), "TB0101"),
        Case("a reserved bit", Input::Raw(masked_frame(0xc1, b"{}")), "TB0101"),
        Case("a long ping", Input::Raw(masked_frame(0x89, &[0; 126])), "TB0101"),
        Case("a ping in pieces", Input::Raw(masked_frame(0x09, b"?")), "TB0101"),
        Case("a continuation of nothing", Input::Raw(masked_frame(0x80, b"{}")), "TB0101"),
    ]
}

/// The header of a frame of 1 GiB; enough for the broker to refuse it.
fn long_frame_that_only_begins() -> Vec<u8> {
    let mut frame = vec![0x81, 0xff];
    frame.extend_from_slice(&(1u64 << 30).to_be_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame
}

fn endless_fragments() -> Vec<u8> {
    let mut frames = masked_frame(0x01, &[b' '; 30_000]);
    for _ in 0..3 {
        frames.extend(masked_frame(0x00, &[b' '; 30_000]));
    }
    frames
}

#[tokio::test]
async fn an_invalid_first_frame_gets_an_error_and_a_close() {
    let logs = Logs::start();
    for Case(what, input, code) in cases() {
        // A broker of its own, because the lines about refused connections are limited.
        let bus = Bus::start().await;
        let mut healthy = HealthyPair::join(&bus).await;
        logs.clear();
        let mut peer = Peer::connect(bus.address).await;
        match input {
            Input::Text(frame) => peer.send_text(frame).await,
            Input::Binary(bytes) => peer.send_binary(bytes).await,
            Input::Raw(bytes) => peer.send_raw(&bytes).await,
        }
        println!("{what}");
        let error = peer.expect_error(code).await;
        assert_eq!(error["id"], Value::Null, "{what}");
        peer.expect_close(code).await;
        let warnings = logs.warnings();
        assert_eq!(warnings.len(), 1, "{what}: {warnings:#?}");
        assert!(warnings[0].contains(code), "{what}: {warnings:?}");
        assert!(!logs.text().contains(TOKEN), "{what}: the token is in the log");
        healthy.exchange_message().await;
    }
}

#[tokio::test]
async fn secrets_in_the_wrong_field_are_not_logged() {
    let bus = Bus::start().await;
    let logs = Logs::start();
    let number = 4_815_162_342_u64;
    let misplaced = [
        hello_with(|frame| frame["token"] = number.into()),
        hello_with(|frame| frame["agent"] = number.to_string().into()),
        hello_with(|frame| frame["version"] = number.to_string().into()),
        hello_with(|frame| frame["agent"]["role"] = json!({ number.to_string(): 1 })),
    ];
    for frame in misplaced {
        let mut peer = Peer::connect(bus.address).await;
        peer.send(frame.clone()).await;
        peer.expect_error("TB0101").await;
        peer.expect_close("TB0101").await;
        assert!(!logs.text().contains(&number.to_string()), "{frame}: {}", logs.text());
    }
}

#[tokio::test]
async fn a_log_line_about_an_unauthenticated_peer_is_short() {
    let bus = Bus::start().await;
    let logs = Logs::start();
    let mut peer = Peer::connect(bus.address).await;
    peer.send(hello_with(|frame| frame["agent"] = "n\n".repeat(20_000).into())).await;
    let error = peer.expect_error("TB0101").await;
    assert!(error.to_string().len() < 1000, "an error of {} bytes", error.to_string().len());
    peer.expect_close("TB0101").await;
    let warnings = logs.warnings();
    assert!(warnings.len() == 1 && warnings[0].len() < 1000, "{} lines of log", warnings.len());
    assert_eq!(logs.text().matches("n\\n").count(), 0);
}

#[tokio::test]
async fn a_flood_of_refused_connections_causes_few_log_lines() {
    let bus = Bus::start().await;
    let logs = Logs::start();
    let started = std::time::Instant::now();
    for n in 0..60 {
        let mut peer = Peer::connect(bus.address).await;
        peer.send(hello_with(|frame| frame["token"] = format!("guess-{n}").into())).await;
        peer.expect_error("TB0103").await;
    }
    for headers in ["Origin: https://evil.example\r\n", "Host: evil.example\r\n"].repeat(20) {
        let answer = request(bus.address, upgrade_request(bus.address, "/bus", headers)).await;
        assert_eq!(answer.status, 403);
    }
    // Ten lines in ten seconds, if the machine is that slow.
    let most = 10 * (1 + started.elapsed().as_secs() as usize / 10);
    assert!(logs.warnings().len() <= most, "{:#?}", logs.warnings());
    assert!(logs.warnings().len() >= 10, "the first ones are logged");
    skip(Duration::from_secs(10)).await;
    let mut peer = Peer::connect(bus.address).await;
    peer.send(hello_with(|frame| frame["token"] = "guess".into())).await;
    peer.expect_error("TB0103").await;
    let counted = |line: &String| line.split_once("suppressed=").map(|(_, count)| count.to_owned());
    let counts: Vec<String> = logs.warnings().iter().filter_map(counted).collect();
    let suppressed = |text: &String| text.split(' ').next().and_then(|count| count.parse::<usize>().ok());
    let suppressed: usize = counts.iter().filter_map(suppressed).sum();
    assert_eq!(logs.warnings().len() + suppressed, 101, "{:#?}", logs.warnings());
}

#[tokio::test]
async fn a_peer_without_hello_is_closed_after_the_timeout() {
    let hello_timeout = Duration::from_millis(300);
    let server = ServerOptions { hello_timeout, ..ServerOptions::default() };
    let bus = Bus::with(Setup { server, ..Setup::default() }).await;
    let mut healthy = HealthyPair::join(&bus).await;
    let logs = Logs::start();
    let started = std::time::Instant::now();

    let mut silent = Peer::connect(bus.address).await;
    let mut stalled = Peer::connect(bus.address).await;
    stalled.send_raw(&masked_frame(0x81, hello("stalled").to_string().as_bytes())[..20]).await;
    for peer in [&mut silent, &mut stalled] {
        peer.expect_error("TB0104").await;
        peer.expect_close("TB0104").await;
    }
    assert!(started.elapsed() >= hello_timeout, "closed after {:?}", started.elapsed());
    assert_eq!(logs.warnings().len(), 2, "{:?}", logs.warnings());
    healthy.exchange_message().await;
}

#[tokio::test]
async fn pings_do_not_extend_the_hello_timeout() {
    let server = ServerOptions { hello_timeout: Duration::from_millis(300), ..ServerOptions::default() };
    let bus = Bus::with(Setup { server, ..Setup::default() }).await;
    let mut peer = Peer::connect(bus.address).await;
    let ended = async {
        loop {
            peer.send_raw(&masked_frame(0x89, b"still here")).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            match tokio::time::timeout(Duration::from_millis(1), peer.see()).await {
                Ok(Seen::Frame(frame)) => return frame,
                Ok(other) => panic!("closed without an error: {other:?}"),
                Err(_) => {}
            }
        }
    };
    let error = crate::support::within("the timeout", ended).await;
    assert!(["TB0104", "TB0102"].contains(&error["code"].as_str().unwrap_or_default()), "{error}");
}

#[tokio::test]
async fn pings_before_hello_are_answered_up_to_their_limit() {
    let bus = Bus::start().await;
    let ping = masked_frame(0x89, b"?");
    let mut patient = Peer::connect(bus.address).await;
    patient.send_raw(&ping.repeat(32)).await;
    patient.send(hello("patient")).await;
    assert_eq!(patient.frame().await["kind"], "welcome");
    let mut pinging = Peer::connect(bus.address).await;
    pinging.send_raw(&ping.repeat(33)).await;
    pinging.expect_error("TB0102").await;
    pinging.expect_close("TB0102").await;
    let mut ponging = Peer::connect(bus.address).await;
    ponging.send_raw(&masked_frame(0x8a, b"!").repeat(33)).await;
    ponging.expect_error("TB0102").await;
}

#[tokio::test]
async fn closing_before_hello_is_not_a_warning() {
    let bus = Bus::start().await;
    let logs = Logs::start();
    let mut polite = Peer::connect(bus.address).await;
    polite.send_close().await;
    assert!(matches!(polite.see().await, Seen::Close { .. }), "the close is answered");
    drop(Peer::connect(bus.address).await);
    bus.peer("the next one").await.roundtrip().await;
    assert_eq!(logs.warnings(), Vec::<String>::new());
}

#[tokio::test]
async fn welcome_comes_first_with_version_and_limits() {
    let bus = Bus::start().await;
    for (frame, framing) in [(hello("old"), "json"), (hello_v2("new"), "json")] {
        let mut peer = Peer::connect(bus.address).await;
        peer.send(frame).await;
        let welcome = peer.frame().await;
        assert_eq!(welcome["kind"], "welcome");
        assert_eq!((&welcome["version"], &welcome["framing"]), (&json!(2), &json!(framing)));
        assert_eq!(welcome["limits"]["max_frame_bytes"], 16 << 20);
        assert_eq!(welcome["heartbeat_ms"], 10_000);
        assert_eq!(peer.frame().await["kind"], "broker_identity");
    }
}
