//! Cancels and dead letters on the wire, in all versions and framings.

use crate::support::{Bus, Peer, deliver};
use serde_json::{Value, json};
use toolbus_protocol::{AgentRef, Body, ClientFrame, Deliver, InboxMessage, MAX_NAME_BYTES};

fn cancel(to: &str, id: &str) -> Value {
    json!({"kind": "cancel", "to": to, "correlation_id": id})
}

#[tokio::test]
async fn a_queued_message_is_withdrawn_in_every_version() {
    let bus = Bus::start().await;
    let (one, two) = ("delivered", "receipts");
    for (mut sender, receipt, id) in
        [(bus.peer("a").await, one, "1"), (bus.peer_v2("b").await, two, "2"), (bus.compact_peer("c").await, two, "3")]
    {
        sender.subscribe().await;
        sender.send(deliver("host", id, json!(1))).await;
        sender.next_of(receipt).await;
        sender.send(cancel("host", id)).await;
        let error = sender.expect_error("TB0214").await;
        assert_eq!(error["id"], id, "{error}");
        let next = format!("after {id}");
        sender.send(deliver("host", &next, json!(1))).await;
        let mut host = bus.subscriber("host").await;
        host.expect_message(&next).await;
        host.ack_confirmed(&next).await;
    }
}

async fn cancel_outcome(sender: &mut Peer, id: &str) -> Value {
    let mut cancel = cancel("host", id);
    cancel["request_id"] = "r".into();
    sender.send(cancel).await;
    let result = sender.next_of("cancel_result").await;
    assert_eq!((&result["request_id"], &result["correlation_id"]), (&json!("r"), &json!(id)), "{result}");
    result["outcome"].clone()
}

#[tokio::test]
async fn a_cancel_with_a_request_id_is_answered_in_every_version() {
    let bus = Bus::start().await;
    for (mut sender, id) in
        [(bus.peer("a").await, "1"), (bus.peer_v2("b").await, "2"), (bus.compact_peer("c").await, "3")]
    {
        assert_eq!(cancel_outcome(&mut sender, id).await, "unknown");
        sender.send(deliver("host", id, json!(1))).await;
        assert_eq!(cancel_outcome(&mut sender, id).await, "withdrawn");
        let pushed = format!("pushed {id}");
        sender.send(deliver("host", &pushed, json!(1))).await;
        let mut host = bus.subscriber("host").await;
        host.expect_message(&pushed).await;
        assert_eq!(cancel_outcome(&mut sender, &pushed).await, "running");
        assert_eq!(host.next_of("cancel").await["correlation_id"], pushed);
        host.ack_confirmed(&pushed).await;
        assert_eq!(cancel_outcome(&mut sender, &pushed).await, "finished");
    }
}

/// Delivers a body that is not JSON, which only compact framing can carry.
async fn deliver_unreadable(sender: &mut Peer, to: &str, id: &str) {
    let body = Body::from_trusted(bytes::Bytes::from_static(b"\xff"));
    let mut message = InboxMessage::new(AgentRef::new("unused"), "task", body);
    message.id = id.into();
    let deliver = Deliver { to: to.into(), envelope: message.seal(), deadline_ms: None, ack: None, age_ms: None };
    sender.send_compact(&[ClientFrame::Deliver(deliver)]).await;
    sender.next_of("receipts").await;
}

#[tokio::test]
async fn a_dead_letter_that_is_not_json_stays_for_a_compact_reader() {
    let bus = Bus::start().await;
    let mut sender = bus.compact_peer("sender").await;
    deliver_unreadable(&mut sender, "bob", "m").await;
    bus.subscriber("bob").await.expect_error("TB0212").await;
    let mut reader = bus.subscriber("bob#dead").await;
    let error = reader.expect_error("TB0212").await;
    assert!(error["reason"].as_str().is_some_and(|reason| reason.contains("stays in 'bob#dead'")), "{error}");
    reader.deliver("bob#dead", "n", json!(2)).await;
    reader.expect_message("n").await;
    let mut other = bus.compact_peer("bob#dead").await;
    other.subscribe().await;
    other.expect_message("m").await;
}

#[test]
fn the_dead_letter_mailbox_of_the_longest_name_is_valid() {
    assert_eq!(toolbus_engine::MAX_MAILBOX_NAME_BYTES, MAX_NAME_BYTES);
}
