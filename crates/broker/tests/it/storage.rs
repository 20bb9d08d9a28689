//! What is safe stays safe: stopping in the middle of work, two brokers on one folder, a disk that is nearly full, and a
//! body that its recipient can't be shown.

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
    within("the disk to be found full", async {
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
async fn stopping_in_the_middle_of_a_flood_loses_nothing_that_has_a_receipt() {
    let bus = Bus::start().await;
    let mut sender = bus.peer("sender").await;
    let mut sent = 0;
    let mut seen = Outcome::default();
    for _ in 0..500 {
        sender.send(deliver("heir", &format!("m-{sent}"), json!(sent))).await;
        sent += 1;
    }
    seen.note(sender.next_of("delivered").await);
    bus.begin_stop();
    let started = Instant::now();
    // It goes on sending until it is told that the broker is closing.
    let closing = loop {
        sender.send(deliver("heir", &format!("m-{sent}"), json!(sent))).await;
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
    let mut heir = bus.subscriber("heir").await;
    let mut found = BTreeSet::new();
    heir.send(json!({"kind": "status", "request_id": "how many"})).await;
    let status = heir.next_of("status").await;
    let pending = status["mailboxes"][0]["messages"].as_u64().expect("a count");
    for _ in 0..pending {
        let id = heir.next_of("message").await["message"]["id"].as_str().expect("an id").to_owned();
        heir.ack(&id).await;
        found.insert(id);
    }
    assert!(found.is_superset(&seen.receipts), "lost: {:?}", seen.receipts.difference(&found).collect::<Vec<_>>());
    assert!(found.is_disjoint(&seen.refused), "refused and yet there");
    // What was taken in was receipted before the end, so that nobody sends it once more for nothing.
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
async fn stopping_waits_for_nobody_who_stands_in_the_door() {
    let bus = Bus::start().await;
    let _silent = TcpStream::connect(bus.address).await.expect("the broker accepts");
    let mut halting = TcpStream::connect(bus.address).await.expect("the broker accepts");
    halting.write_all(b"GET /bus HTTP/1.1\r\nHost: localhost").await.expect("half a request goes out");
    let mut upgraded = TcpStream::connect(bus.address).await.expect("the broker accepts");
    upgraded.write_all(upgrade_request(bus.address, "/bus", "").as_bytes()).await.expect("a request goes out");
    let _greeted = bus.subscriber("never reads").await;
    bus.peer("sender").await.deliver("somebody", "m", json!(1)).await;

    let started = Instant::now();
    let folder = bus.stop().await;
    assert!(started.elapsed() < Duration::from_secs(5), "stopping took {:?}", started.elapsed());
    // Nobody keeps the folder either.
    let bus = Bus::reopen(folder, Setup::default()).await;
    bus.subscriber("somebody").await.expect_message("m").await;
}

#[tokio::test]
async fn everything_is_there_again_after_a_restart_and_in_order() {
    let bus = Bus::start().await;
    let mut sender = bus.peer("sender").await;
    for n in 0..300 {
        sender.send(deliver("heir", &format!("m-{n}"), json!({"n": n, "text": "x".repeat(n * 10)}))).await;
    }
    for _ in 0..300 {
        sender.next_of("delivered").await;
    }
    let mut early = bus.subscriber("heir").await;
    for n in 0..100 {
        early.expect_message(&format!("m-{n}")).await;
        assert_eq!(early.ack_confirmed(&format!("m-{n}")).await["accepted"], true);
    }
    let bus = Bus::reopen(bus.stop().await, Setup::default()).await;
    let mut heir = bus.subscriber("heir").await;
    for n in 100..300 {
        let frame = heir.expect_message(&format!("m-{n}")).await;
        assert_eq!(frame["message"]["body"]["n"], n);
        assert_eq!(frame["message"]["from"]["session_id"], "sender");
    }
    // Ids that were settled before the restart are still known.
    let mut sender = bus.peer("sender").await;
    sender.deliver("heir", "m-7", json!({"n": 7, "text": "x".repeat(70)})).await;
    sender.send(deliver("heir", "m-7", json!("other"))).await;
    assert_eq!(sender.expect_error("TB0203").await["id"], "m-7");
    heir.settle().await;
}

#[tokio::test]
async fn the_identity_of_the_store_outlives_the_broker() {
    let identity = async |bus: &Bus| {
        let mut peer = Peer::connect(bus.address).await;
        peer.send(hello_v2("somebody")).await;
        peer.frame().await;
        peer.frame().await["id"].clone()
    };
    let bus = Bus::start().await;
    let first = identity(&bus).await;
    let bus = Bus::reopen(bus.stop().await, Setup::default()).await;
    assert_eq!(identity(&bus).await, first);
}

#[tokio::test]
async fn a_second_broker_on_the_same_folder_is_told_so() {
    let bus = Bus::start().await;
    let Err(error) = BrokerCore::new(bus.folder()) else { panic!("two brokers on one folder") };
    assert!(matches!(error, BrokerError::Folder(_)));
    let told = error.to_string();
    assert!(told.contains(&bus.folder().display().to_string()), "{told}");
    assert!(told.contains("use") && !told.contains(TOKEN), "{told}");
    bus.peer("sender").await.deliver("somebody", "m", json!(1)).await;
}

#[tokio::test]
async fn a_disk_that_is_nearly_full_takes_nothing_new_but_gives_what_it_has() {
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
    // A repetition is nothing new.
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
async fn a_nearly_full_disk_is_known_before_the_first_message() {
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
    ClientFrame::Deliver(Deliver { to: to.into(), envelope: message.seal(), deadline_ms: None, ack: None })
}

#[tokio::test]
async fn a_body_that_is_not_json_goes_to_the_dead_letters_of_a_json_recipient() {
    let bus = Bus::start().await;
    let mut recipient = bus.subscriber("host").await;
    let mut sender = bus.compact_peer("sender").await;
    sender.subscribe().await;
    sender.send_compact(&[unreadable("host", "m")]).await;
    // The sender's receipt says that it is safe, though elsewhere.
    assert_eq!(sender.next_of("receipts").await["ranges"], json!([[1, 1]]));
    let error = recipient.expect_error("TB0212").await;
    assert!(error["reason"].as_str().unwrap_or_default().contains("'m'"), "{error}");
    // The recipient goes on.
    bus.peer("somebody").await.deliver("host", "next", json!(1)).await;
    recipient.expect_message("next").await;

    let mut undertaker = Peer::join(bus.address, hello_compact("host#dead")).await;
    undertaker.subscribe().await;
    undertaker.expect_message("m").await;
    assert_eq!(undertaker.ack_confirmed("m").await["accepted"], true);
}

#[tokio::test]
async fn a_compact_recipient_gets_a_body_that_is_not_json_as_it_is() {
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
async fn a_folder_of_another_format_is_called_that_and_not_a_folder_in_use() {
    let folder = tempfile::TempDir::new().expect("a folder");
    std::fs::write(folder.path().join("identity"), "toolbus log 1\nid\n7\n").expect("a file");
    let Err(error) = BrokerCore::new(folder.path()) else { panic!("it reads what it does not know") };
    assert!(error.code() == Some(ErrorCode::OtherFormat), "{error}");
    let code = error.code().expect("it has a code");
    assert!(code.hint().contains("the version that wrote it"), "{}", code.hint());
    assert!(error.to_string().contains("identity") && error.to_string().contains("a version of toolbus"), "{error}");
}
