//! Peers that went dark: a connection without a sign of life is given up after two and a half heartbeats, and one that
//! answers is not.

use crate::support::{Bus, Setup, hello_v2, within};
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use toolbus_broker::ServerOptions;

const HEARTBEAT: Duration = Duration::from_millis(400);
/// What a busy machine may add.
const SLACK: Duration = Duration::from_millis(600);

async fn quick_bus() -> Bus {
    Bus::with(Setup { server: ServerOptions { heartbeat: HEARTBEAT, ..ServerOptions::default() }, ..Setup::default() })
        .await
}

#[tokio::test]
async fn a_peer_that_answers_no_pings_is_gone_within_two_and_a_half_heartbeats() {
    let bus = quick_bus().await;
    let subscriber = bus.subscriber("dark").await;
    let last_sign = Instant::now();
    let mut socket = subscriber.into_tcp();
    let mut bytes = Vec::new();
    within("the end", socket.read_to_end(&mut bytes)).await.ok();
    let took = last_sign.elapsed();
    assert!(took >= HEARTBEAT * 3 / 2, "given up after {took:?}");
    assert!(took <= HEARTBEAT * 5 / 2 + SLACK, "given up after {took:?}");
    assert!(bytes.starts_with(&[0x89, 0x00]), "asked for a sign of life first: {bytes:?}");

    let mut observer = bus.peer("observer").await;
    observer.send(json!({"kind": "list_connected", "role": "tester"})).await;
    assert_eq!(observer.frame().await["ids"], json!([]));
}

#[tokio::test]
async fn what_a_dark_peer_had_not_acknowledged_comes_again() {
    let bus = quick_bus().await;
    let mut subscriber = bus.subscriber("dark").await;
    bus.peer("sender").await.deliver("dark", "m", json!(1)).await;
    subscriber.expect_message("m").await;
    let mut socket = subscriber.into_tcp();
    let mut bytes = Vec::new();
    within("the end", socket.read_to_end(&mut bytes)).await.ok();
    let frame = bus.subscriber("dark").await.expect_message("m").await;
    assert_eq!(frame["attempt"], 2);
}

#[tokio::test]
async fn a_quiet_peer_that_answers_pings_stays() {
    let bus = quick_bus().await;
    let mut quiet = bus.subscriber("quiet").await;
    // Reading is what answers pings; nothing else is sent for many heartbeats.
    tokio::time::timeout(HEARTBEAT * 5, quiet.see()).await.expect_err("nothing to see");
    bus.peer("sender").await.deliver("quiet", "m", json!(1)).await;
    quiet.expect_message("m").await;
}

#[tokio::test]
async fn a_peer_that_only_sends_stays() {
    let bus = quick_bus().await;
    let mut talker = crate::support::Peer::join(bus.address, hello_v2("talker")).await;
    let started = Instant::now();
    while started.elapsed() < HEARTBEAT * 4 {
        talker.send(json!({"kind": "ack_tags", "tags": [1]})).await;
        tokio::time::sleep(HEARTBEAT / 2).await;
    }
    talker.settle().await;
}
