//! What clients of the original rely on: acknowledgements that may be late and survive a kill of the broker, its batches of
//! events, an immediate error for its frames that have no counterpart, and a folder that is reopened without a shutdown.

use crate::support::{Bus, Seen, Setup, TIMEOUT, deliver, within};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use toolbus_broker::{BrokerCore, BrokerError, CoreOptions};
use toolbus_engine::EngineOptions;

#[tokio::test]
async fn list_connected_of_the_empty_role_is_answered() {
    let bus = Bus::start().await;
    let mut peer = bus.subscriber("peer").await;
    peer.send(json!({"kind": "list_connected", "role": ""})).await;
    assert_eq!(peer.frame().await, json!({"kind": "connected", "ids": []}));
}

#[tokio::test]
async fn frames_without_a_counterpart_end_the_connection_at_once() {
    let bus = Bus::start().await;
    for frame in [
        json!({"kind": "observe_host", "request_id": "r", "mailbox": "worker", "role": "gpu"}),
        json!({"kind": "subscribe_environment_lease_v1"}),
    ] {
        let mut peer = bus.peer("peer").await;
        peer.send(frame).await;
        peer.expect_error("TB0119").await;
        peer.expect_close("TB0119").await;
    }
}

#[tokio::test]
async fn batches_of_events_reach_subscribers_of_both_versions_with_their_numbers() {
    let bus = Bus::start().await;
    let mut worker = bus.peer("worker").await;
    let mut parent = bus.subscriber("parent").await;
    let mut newer = bus.peer_v2("newer").await;
    newer.send(json!({"kind": "subscribe"})).await;
    newer.roundtrip().await;
    let batch = |first: u64| {
        json!({"activation_id": "run-1", "first_seq": first, "last_seq": first + 1, "qos": "ephemeral",
            "events": [{"type": "token", "content": "a"}, {"type": "token", "content": "b"}]})
    };
    for (to, first) in [("parent", 1), ("newer", 1), ("parent", 3), ("nobody", 1)] {
        let frame = json!({"kind": "publish_event_batch", "to": to, "correlation_id": "c", "batch": batch(first)});
        worker.send(frame).await;
    }
    for first in [1, 3] {
        let expected = json!({"kind": "event_batch", "correlation_id": "c", "batch": batch(first)});
        assert_eq!(parent.frame().await, expected);
    }
    let expected = json!({"kind": "live_event", "from": "worker", "correlation_id": "c", "body": batch(1)});
    assert_eq!(newer.frame().await, expected);
    let mut durable = batch(1);
    durable["qos"] = "durable".into();
    worker.send(json!({"kind": "publish_event_batch", "to": "parent", "correlation_id": "c", "batch": durable})).await;
    worker.expect_error("TB0101").await;
}

#[tokio::test]
async fn a_confirmed_acknowledgement_of_an_id_that_is_gone_is_accepted() {
    let bus = Bus::start().await;
    let mut peer = bus.subscriber("peer").await;
    let result = peer.ack_confirmed("long-gone").await;
    assert_eq!(result["accepted"], true, "{result}");
    assert!(result["reason"].is_string(), "{result}");
}

#[tokio::test]
async fn a_subscriber_that_acknowledges_late_gets_its_whole_mailbox() {
    const MESSAGES: usize = 5_000;
    let body = json!("x".repeat(2_000));
    let bus = Bus::start().await;
    let (mut sender, mut late) = (bus.peer("sender").await, bus.subscriber("late").await);
    for round in 0..MESSAGES / 500 {
        for number in round * 500..(round + 1) * 500 {
            sender.send(deliver("late", &number.to_string(), body.clone())).await;
        }
        for _ in 0..500 {
            late.next_of("message").await;
        }
    }
}

/// Copies the files of a broker that goes on, which are what a kill at this moment would leave.
fn copied(folder: &Path) -> TempDir {
    let copy = TempDir::new().expect("a folder");
    for entry in folder.read_dir().expect("a folder") {
        let entry = entry.expect("an entry");
        if entry.file_type().expect("a type").is_file() {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("a copy");
        }
    }
    copy
}

async fn redelivered_after_a_kill(folder: &Path) -> Vec<Value> {
    let again = Bus::reopen(copied(folder), Setup::default()).await;
    let mut bob = again.peer("bob").await;
    bob.send(json!({"kind": "subscribe"})).await;
    // Behind everything that was queued before.
    bob.send(deliver("bob", "last", json!(0))).await;
    let mut seen = Vec::new();
    loop {
        let id = bob.next_of("message").await["message"]["id"].clone();
        if id == "last" {
            return seen;
        }
        seen.push(id);
    }
}

#[tokio::test]
async fn a_plain_acknowledgement_survives_a_kill_of_the_broker() {
    // So long that only a write without an fsync can be the reason.
    let engine = EngineOptions { lazy: 600_000, ..EngineOptions::default() };
    let core = CoreOptions { engine, ..CoreOptions::default() };
    let bus = Bus::with(Setup { core, ..Setup::default() }).await;
    let mut alice = bus.peer("alice").await;
    for id in ["a", "b", "c"] {
        alice.deliver("bob", id, json!(1)).await;
    }
    let mut bob = bus.subscriber("bob").await;
    for id in ["a", "b", "c"] {
        bob.expect_message(id).await;
    }
    bob.ack("a").await;
    bob.ack("b").await;
    bob.roundtrip().await;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let redelivered = redelivered_after_a_kill(bus.folder()).await;
        if redelivered == [json!("c")] {
            return;
        }
        assert!(Instant::now() < deadline, "redelivered: {redelivered:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_folder_is_reopened_right_after_its_server_was_aborted() {
    let bus = Bus::start().await;
    let mut alice = bus.peer("alice").await;
    let mut bob = bus.subscriber("bob").await;
    alice.deliver("carol", "m", json!(1)).await;
    let folder = bus.abort().await;
    let again = Bus::reopen(folder, Setup::default()).await;
    again.subscriber("carol").await.expect_message("m").await;
    within("the old connections to end", async { while !matches!(bob.see().await, Seen::Ended) {} }).await;
}

#[tokio::test]
async fn a_folder_that_is_served_is_not_given_up() {
    let bus = Bus::start().await;
    let second = BrokerCore::new(bus.folder()).err().expect("it is in use");
    assert!(matches!(second, BrokerError::Folder(_)), "{second}");
    bus.subscriber("bob").await.roundtrip().await;
}
