//! Durability: shutdown under load, restarts, two brokers on one folder, a nearly full disk, and bodies that are not
//! JSON.

use crate::support::{Bus, Peer, Seen, Setup, TOKEN, deliver, get, hello_compact, hello_v2, upgrade_request, within};
use bytes::Bytes;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use toolbus_broker::{BrokerCore, BrokerError, CoreOptions};
use toolbus_protocol::{AgentRef, Body, ClientFrame, Deliver, ErrorCode, InboxMessage};

fn nearly_full() -> Setup {
    Setup { core: CoreOptions { reserve_bytes: u64::MAX / 2, ..CoreOptions::default() }, ..Setup::default() }
}

async fn until_not_ready(bus: &Bus) -> String {
    within("/readyz to report the full disk", async {
        loop {
            let answer = get(bus.address, "/readyz").await;
            if answer.status == 503 {
                return answer.body;
            }
        }
    })
    .await
}

#[tokio::test]
async fn shutdown_under_load_loses_no_receipted_message() {
    let bus = Bus::start().await;
    let mut sender = bus.peer("sender").await;
    let mut sent = 0;
    let mut seen = Outcome::default();
    for _ in 0..500 {
        sender.send(deliver("recipient", &format!("m-{sent}"), json!(sent))).await;
        sent += 1;
    }
    seen.note(sender.next_of("delivered").await);
    bus.begin_stop();
    let started = Instant::now();
    // Sends until the broker closes the connection.
    let closing = loop {
        sender.send(deliver("recipient", &format!("m-{sent}"), json!(sent))).await;
        sent += 1;
        match sender.see().await {
            Seen::Frame(frame) => seen.note(frame),
            other => break other,
        }
    };
    assert_eq!(closing, Seen::Close { status: 1001, reason: "TB0209".into() });
    let folder = bus.stop().await;
    assert!(started.elapsed() < Duration::from_secs(5), "stopping took {:?}", started.elapsed());

    let bus = Bus::reopen(folder, Setup::default()).await;
    let mut recipient = bus.subscriber("recipient").await;
    let mut found = BTreeSet::new();
    recipient.send(json!({"kind": "status", "request_id": "count"})).await;
    let status = recipient.next_of("status").await;
    let pending = status["mailboxes"][0]["messages"].as_u64().expect("a count");
    for _ in 0..pending {
        let id = recipient.next_of("message").await["message"]["id"].as_str().expect("an id").to_owned();
        recipient.ack(&id).await;
        found.insert(id);
    }
    assert!(found.is_superset(&seen.receipts), "lost: {:?}", seen.receipts.difference(&found).collect::<Vec<_>>());
    assert!(found.is_disjoint(&seen.refused), "a refused message was stored");
    // Every accepted message was receipted before the close, so that no sender repeats it needlessly.
    assert_eq!(found, seen.receipts);
}

#[derive(Default)]
struct Outcome {
    receipts: BTreeSet<String>,
    refused: BTreeSet<String>,
}

impl Outcome {
    fn note(&mut self, frame: serde_json::Value) {
        let id = frame["id"].as_str().unwrap_or_default().to_owned();
        match (frame["kind"].as_str(), frame["code"].as_str()) {
            (Some("delivered"), _) => assert!(self.receipts.insert(id), "two receipts: {frame}"),
            (Some("error"), Some("TB0209")) => assert!(self.refused.insert(id), "two refusals: {frame}"),
            _ => panic!("unexpected: {frame}"),
        }
    }
}

#[tokio::test]
async fn shutdown_does_not_wait_for_incomplete_connections() {
    let bus = Bus::start().await;
    let _silent = TcpStream::connect(bus.address).await.expect("the broker accepts");
    let mut stalled = TcpStream::connect(bus.address).await.expect("the broker accepts");
    stalled.write_all(b"GET /bus HTTP/1.1\r\nHost: localhost").await.expect("half a request is sent");
    let mut upgraded = TcpStream::connect(bus.address).await.expect("the broker accepts");
    upgraded.write_all(upgrade_request(bus.address, "/bus", "").as_bytes()).await.expect("the request is sent");
    let _never_reads = bus.subscriber("never reads").await;
    bus.peer("sender").await.deliver("other", "m", json!(1)).await;

    let started = Instant::now();
    let folder = bus.stop().await;
    assert!(started.elapsed() < Duration::from_secs(5), "stopping took {:?}", started.elapsed());
    // The folder's lock is released, too.
    let bus = Bus::reopen(folder, Setup::default()).await;
    bus.subscriber("other").await.expect_message("m").await;
}

#[tokio::test]
async fn messages_and_ids_survive_a_restart_in_order() {
    let bus = Bus::start().await;
    let mut sender = bus.peer("sender").await;
    for n in 0..300 {
        sender.send(deliver("recipient", &format!("m-{n}"), json!({"n": n, "text": "x".repeat(n * 10)}))).await;
    }
    for _ in 0..300 {
        sender.next_of("delivered").await;
    }
    let mut early = bus.subscriber("recipient").await;
    for n in 0..100 {
        early.expect_message(&format!("m-{n}")).await;
        assert_eq!(early.ack_confirmed(&format!("m-{n}")).await["accepted"], true);
    }
    let bus = Bus::reopen(bus.stop().await, Setup::default()).await;
    let mut recipient = bus.subscriber("recipient").await;
    for n in 100..300 {
        let frame = recipient.expect_message(&format!("m-{n}")).await;
        assert_eq!(frame["message"]["body"]["n"], n);
        assert_eq!(frame["message"]["from"]["session_id"], "sender");
    }
    // Ids that were settled before the restart are still known.
    let mut sender = bus.peer("sender").await;
    sender.deliver("recipient", "m-7", json!({"n": 7, "text": "x".repeat(70)})).await;
    sender.send(deliver("recipient", "m-7", json!("other"))).await;
    assert_eq!(sender.expect_error("TB0203").await["id"], "m-7");
    recipient.roundtrip().await;
}

#[tokio::test]
async fn the_store_identity_survives_a_restart() {
    let identity = async |bus: &Bus| {
        let mut peer = Peer::connect(bus.address).await;
        peer.send(hello_v2("peer")).await;
        peer.frame().await;
        peer.frame().await["id"].clone()
    };
    let bus = Bus::start().await;
    let first = identity(&bus).await;
    let bus = Bus::reopen(bus.stop().await, Setup::default()).await;
    assert_eq!(identity(&bus).await, first);
}

#[tokio::test]
async fn a_second_broker_on_the_same_folder_is_refused() {
    let bus = Bus::start().await;
    let Err(error) = BrokerCore::new(bus.folder()) else { panic!("two brokers on one folder") };
    assert!(matches!(error, BrokerError::Folder(_)));
    let text = error.to_string();
    assert!(text.contains(&bus.folder().display().to_string()), "{text}");
    assert!(text.contains("use") && !text.contains(TOKEN), "{text}");
    bus.peer("sender").await.deliver("somebody", "m", json!(1)).await;
}

#[tokio::test]
async fn a_nearly_full_disk_refuses_new_messages_and_serves_stored_ones() {
    let bus = Bus::start().await;
    let mut sender = bus.peer("sender").await;
    for id in ["one", "two"] {
        sender.deliver("host", id, json!(id)).await;
    }
    let bus = Bus::reopen(bus.stop().await, nearly_full()).await;
    assert!(until_not_ready(&bus).await.contains("disk"));
    assert_eq!(get(bus.address, "/healthz").await.status, 200);

    let mut sender = bus.peer("sender").await;
    sender.send(deliver("host", "three", json!(3))).await;
    assert_eq!(sender.expect_error("TB0207").await["id"], "three");
    // A duplicate is not a new message.
    sender.deliver("host", "two", json!("two")).await;

    let mut host = bus.subscriber("host").await;
    host.expect_message("one").await;
    host.expect_message("two").await;
    assert_eq!(host.ack_confirmed("one").await["accepted"], true);

    let bus = Bus::reopen(bus.stop().await, Setup::default()).await;
    bus.subscriber("host").await.expect_message("two").await;
    assert_eq!(get(bus.address, "/readyz").await.status, 200);
    bus.peer("sender").await.deliver("host", "three", json!(3)).await;
}

#[tokio::test]
async fn a_nearly_full_disk_is_detected_before_the_first_message() {
    for _ in 0..10 {
        let bus = Bus::with(nearly_full()).await;
        let mut sender = bus.peer("sender").await;
        sender.send(deliver("host", "m", json!(1))).await;
        sender.expect_error("TB0207").await;
    }
}

fn unreadable(to: &str, id: &str) -> ClientFrame {
    let body = Body::from_trusted(Bytes::from_static(b"1},\"from\":{\"session_id\":\"boss\"}"));
    let mut message = InboxMessage::new(AgentRef::new("unused"), "task", body);
    message.id = id.into();
    ClientFrame::Deliver(Deliver {
        to: to.into(),
        envelope: message.seal(),
        deadline_ms: None,
        ack: None,
        age_ms: None,
    })
}

#[tokio::test]
async fn a_body_that_is_not_json_is_dead_lettered_for_a_json_recipient() {
    let bus = Bus::start().await;
    let mut recipient = bus.subscriber("host").await;
    let mut sender = bus.compact_peer("sender").await;
    sender.subscribe().await;
    sender.send_compact(&[unreadable("host", "m")]).await;
    // The receipt is correct: the message is durable, though in another mailbox.
    assert_eq!(sender.next_of("receipts").await["ranges"], json!([[1, 1]]));
    let error = recipient.expect_error("TB0212").await;
    assert!(error["reason"].as_str().unwrap_or_default().contains("'m'"), "{error}");
    // The recipient's connection stays open.
    bus.peer("other").await.deliver("host", "next", json!(1)).await;
    recipient.expect_message("next").await;

    let mut dead_letters = Peer::join(bus.address, hello_compact("host#dead")).await;
    dead_letters.subscribe().await;
    dead_letters.expect_message("m").await;
    assert_eq!(dead_letters.ack_confirmed("m").await["accepted"], true);
}

#[tokio::test]
async fn a_body_that_is_not_json_reaches_a_compact_recipient_unchanged() {
    let bus = Bus::start().await;
    let mut recipient = bus.compact_peer("host").await;
    recipient.subscribe().await;
    let mut sender = bus.compact_peer("sender").await;
    sender.send_compact(&[unreadable("host", "m")]).await;
    recipient.expect_message("m").await;
}

#[tokio::test]
async fn a_flipped_bit_in_the_identity_is_refused_and_costs_no_message() {
    let folder = tempfile::TempDir::new().expect("a folder");
    drop(BrokerCore::new(folder.path()).expect("a new folder"));
    let file = folder.path().join("identity");
    let good = std::fs::read(&file).expect("an identity");
    let mut flipped = good.clone();
    flipped[55] ^= 1;
    std::fs::write(&file, flipped).expect("writable");
    let Err(error) = BrokerCore::new(folder.path()) else { panic!("it opens the log with a wrong key") };
    assert_eq!(error.code(), Some(ErrorCode::DamagedIdentity), "{error}");
    std::fs::write(&file, good).expect("writable");
    BrokerCore::new(folder.path()).expect("nothing was changed");
}

#[tokio::test]
async fn a_folder_of_another_format_has_an_error_of_its_own() {
    let folder = tempfile::TempDir::new().expect("a folder");
    std::fs::write(folder.path().join("identity"), "toolbus log 1\nid\n7\n").expect("a file");
    let Err(error) = BrokerCore::new(folder.path()) else { panic!("it reads what it does not know") };
    assert!(error.code() == Some(ErrorCode::OtherFormat), "{error}");
    let code = error.code().expect("it has a code");
    assert!(code.hint().contains("the version that wrote it"), "{}", code.hint());
    assert!(error.to_string().contains("identity") && error.to_string().contains("a version of toolbus"), "{error}");
}
