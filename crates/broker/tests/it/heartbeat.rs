//! Heartbeats: a silent connection is dropped after 2.5 heartbeats, and one that answers pings is not.

use crate::support::{Bus, Setup, hello_v2, within};
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use toolbus_broker::ServerOptions;

const HEARTBEAT: Duration = Duration::from_millis(400);
/// Tolerance for a busy machine.
const SLACK: Duration = Duration::from_millis(600);

async fn bus_with_short_heartbeat() -> Bus {
    Bus::with(Setup { server: ServerOptions { heartbeat: HEARTBEAT, ..ServerOptions::default() }, ..Setup::default() })
        .await
}

#[tokio::test]
async fn a_peer_that_answers_no_pings_is_dropped_after_two_and_a_half_heartbeats() {
    let bus = bus_with_short_heartbeat().await;
    let subscriber = bus.subscriber("silent").await;
    let last_message = Instant::now();
    let mut socket = subscriber.into_tcp();
    let mut bytes = Vec::new();
    within("the end of the connection", socket.read_to_end(&mut bytes)).await.ok();
    let took = last_message.elapsed();
    assert!(took >= HEARTBEAT * 3 / 2, "dropped after {took:?}");
    assert!(took <= HEARTBEAT * 5 / 2 + SLACK, "dropped after {took:?}");
    assert!(bytes.starts_with(&[0x89, 0x00]), "no ping first: {bytes:?}");

    let mut observer = bus.peer("observer").await;
    observer.send(json!({"kind": "list_connected", "role": "tester"})).await;
    assert_eq!(observer.frame().await["ids"], json!([]));
}

#[tokio::test]
async fn messages_of_a_dropped_peer_are_redelivered() {
    let bus = bus_with_short_heartbeat().await;
    let mut subscriber = bus.subscriber("silent").await;
    bus.peer("sender").await.deliver("silent", "m", json!(1)).await;
    subscriber.expect_message("m").await;
    let mut socket = subscriber.into_tcp();
    let mut bytes = Vec::new();
    within("the end of the connection", socket.read_to_end(&mut bytes)).await.ok();
    let frame = bus.subscriber("silent").await.expect_message("m").await;
    assert_eq!(frame["attempt"], 2);
}

#[tokio::test]
async fn a_peer_that_only_answers_pings_stays_connected() {
    let bus = bus_with_short_heartbeat().await;
    let mut quiet = bus.subscriber("quiet").await;
    // Reading answers pings; nothing else is sent for many heartbeats.
    tokio::time::timeout(HEARTBEAT * 5, quiet.see()).await.expect_err("no frame");
    bus.peer("sender").await.deliver("quiet", "m", json!(1)).await;
    quiet.expect_message("m").await;
}

#[tokio::test]
async fn a_peer_that_only_sends_stays_connected() {
    let bus = bus_with_short_heartbeat().await;
    let mut talker = crate::support::Peer::join(bus.address, hello_v2("talker")).await;
    let started = Instant::now();
    while started.elapsed() < HEARTBEAT * 4 {
        talker.send(json!({"kind": "ack_tags", "tags": [1]})).await;
        tokio::time::sleep(HEARTBEAT / 2).await;
    }
    talker.roundtrip().await;
}
