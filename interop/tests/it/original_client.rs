//! The original's client on our broker: connecting, delivering, receiving, and presence.

use crate::brokers::OurBroker;
use crate::original::{
    self, BrokerClient, BrokerError, InboxKind, InboxMessage, MsgId, agent, agent_in_role, connect, deliver, flush,
    message, next, subscriber, task,
};
use crate::{eventually, soon};
use serde_json::json;
use std::time::Duration;
use toolbus_broker::ServerOptions;

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_is_refused_with_a_reason() {
    let broker = OurBroker::start().await;
    let refused = soon(BrokerClient::connect(&broker.endpoint(), agent("worker"), "guessed")).await;
    let Err(BrokerError::Auth(reason)) = refused.map(|_| ()) else { panic!("not an authentication error") };
    assert_eq!(reason, "invalid token");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_arrives_with_every_field_as_it_was_sent() {
    let broker = OurBroker::start().await;
    let worker = agent_in_role("worker-7#mcp", "researcher");
    let mut sender = connect(&broker.endpoint(), worker.clone()).await;
    let mut receiver = subscriber(&broker.endpoint(), agent("desktop")).await;
    let body =
        json!({"text": "grüße \"🙂\"\n", "list": [1, -2.5, null, {"deep": true}], "big": 9_007_199_254_740_993_u64});
    for kind in [InboxKind::Task, InboxKind::Handoff, InboxKind::Event, InboxKind::Steer, InboxKind::ApprovalRequest] {
        let plain = message(worker.clone(), kind, body.clone());
        let sent = InboxMessage { correlation_id: Some(MsgId::new()), ..plain };
        deliver(&mut sender, "desktop", sent.clone()).await;
        assert_eq!(next(&mut receiver).await, sent);
        receiver.ack(sent.id).await.expect("acknowledged");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_is_pushed_in_the_order_of_delivery() {
    let broker = OurBroker::start().await;
    let mut sender = connect(&broker.endpoint(), agent("sender")).await;
    let sent: Vec<InboxMessage> = (0..100).map(|number| task("sender", number)).collect();
    for message in &sent {
        deliver(&mut sender, "offline", message.clone()).await;
    }
    let mut receiver = connect(&broker.endpoint(), agent("offline")).await;
    receiver.subscribe().await.expect("subscribed");
    for message in &sent {
        assert_eq!(next(&mut receiver).await, *message);
        receiver.ack(message.id.clone()).await.expect("acknowledged");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_identity_and_the_backlog_survive_a_restart_of_the_broker() {
    let mut broker = OurBroker::start().await;
    let mut sender = connect(&broker.endpoint(), agent("sender")).await;
    let identity = soon(sender.durable_broker_identity()).await.expect("an identity");
    uuid::Uuid::parse_str(&identity).expect("a UUID");
    let sent: Vec<InboxMessage> = (0..50).map(|number| task("sender", number)).collect();
    for message in &sent {
        deliver(&mut sender, "offline", message.clone()).await;
    }

    broker.restart().await;
    let mut receiver = connect(&broker.endpoint(), agent("offline")).await;
    assert_eq!(soon(receiver.durable_broker_identity()).await.expect("an identity"), identity);
    receiver.subscribe().await.expect("subscribed");
    for message in &sent {
        assert_eq!(next(&mut receiver).await, *message);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_delivery_gets_another_receipt_and_arrives_once() {
    let broker = OurBroker::start().await;
    let mut sender = connect(&broker.endpoint(), agent("sender")).await;
    let mut receiver = subscriber(&broker.endpoint(), agent("receiver")).await;
    let (repeated, last) = (task("sender", 1), task("sender", 2));
    for message in [&repeated, &repeated, &last] {
        deliver(&mut sender, "receiver", message.clone()).await;
    }
    assert_eq!(next(&mut receiver).await, repeated);
    assert_eq!(next(&mut receiver).await, last);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_delivery_fails_with_the_brokers_reason_and_the_next_one_works() {
    let broker = OurBroker::start().await;
    let mut sender = connect(&broker.endpoint(), agent("sender")).await;
    let first = task("sender", 1);
    let conflicting = InboxMessage { body: json!("something else"), ..first.clone() };
    deliver(&mut sender, "receiver", first).await;
    match soon(sender.deliver("receiver", conflicting)).await {
        Err(BrokerError::Rejected(reason)) => assert!(reason.contains("already used"), "{reason}"),
        other => panic!("not a rejection: {other:?}"),
    }
    deliver(&mut sender, "receiver", task("sender", 2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_subscribers_of_the_role_are_listed_as_connected() {
    let broker = OurBroker::start().await;
    let endpoint = broker.endpoint();
    let first = subscriber(&endpoint, agent_in_role("first", "coder")).await;
    let second = subscriber(&endpoint, agent_in_role("second", "coder")).await;
    let _of_another_role = subscriber(&endpoint, agent_in_role("third", "writer")).await;
    let _not_subscribed = connect(&endpoint, agent_in_role("fourth", "coder")).await;
    let mut observer = connect(&endpoint, agent("observer")).await;
    let mut coders = soon(observer.list_connected("coder")).await.expect("an answer");
    coders.sort();
    assert_eq!(coders, ["first", "second"]);

    soon(first.close()).await.expect("closed");
    drop(second);
    eventually(async || soon(observer.list_connected("coder")).await.expect("an answer").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_a_connected_subscriber_and_is_not_kept_for_an_absent_one() {
    let broker = OurBroker::start().await;
    let mut boss = connect(&broker.endpoint(), agent("boss")).await;
    let (lost, delivered) = (MsgId::new(), MsgId::new());
    boss.cancel("worker", &lost).await.expect("sent");
    flush(&mut boss).await;
    let mut worker = subscriber(&broker.endpoint(), agent("worker")).await;
    boss.cancel("worker", &delivered).await.expect("sent");
    assert_eq!(soon(worker.next_cancel()).await, Some(delivered));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_latest_subscriber_gets_the_messages_and_the_displaced_one_can_still_deliver() {
    let broker = OurBroker::start().await;
    let mut displaced = subscriber(&broker.endpoint(), agent("worker")).await;
    let mut latest = subscriber(&broker.endpoint(), agent("worker")).await;
    let sent = task("worker", 1);
    deliver(&mut displaced, "worker", sent.clone()).await;
    assert_eq!(next(&mut latest).await, sent);
    assert!(displaced.reader_alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_client_answers_pings_and_stays_connected() {
    let heartbeat = Duration::from_millis(100);
    let options = ServerOptions { heartbeat, ..ServerOptions::default() };
    let broker = OurBroker::start_with(options).await;
    let mut idle = subscriber(&broker.endpoint(), agent("idle")).await;
    let silence = tokio::time::timeout(heartbeat * 10, idle.next_message()).await;
    assert!(silence.is_err(), "no message arrives, and the connection stays open");
    assert!(idle.reader_alive());
    let mut sender = connect(&broker.endpoint(), agent("sender")).await;
    let sent = task("sender", 1);
    original::deliver(&mut sender, "idle", sent.clone()).await;
    assert_eq!(next(&mut idle).await, sent);
}
