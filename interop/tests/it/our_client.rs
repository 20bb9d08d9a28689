//! Our client on the original's broker, which doesn't know our extensions.

use crate::brokers::OriginalBroker;
use crate::original;
use crate::ours::{
    self, AgentRef, BrokerClient, BrokerError, InboxKind, InboxMessage, MsgId, body, connect, flush, next, number,
    subscriber, subscriber_as, task,
};
use crate::{TOKEN, eventually, soon};
use futures_util::future::join_all;
use serde_json::json;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_is_refused_with_a_reason() {
    let broker = OriginalBroker::start().await;
    let refused = soon(BrokerClient::connect(&broker.endpoint(), AgentRef::new("worker"), "guessed")).await;
    let Err(BrokerError::Auth { reason, .. }) = refused.map(|_| ()) else { panic!("not an authentication error") };
    assert_eq!(reason, "invalid token");
    soon(BrokerClient::connect(&broker.endpoint(), AgentRef::new("worker"), TOKEN)).await.expect("the right token");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_arrives_with_every_field_as_it_was_sent() {
    let broker = OriginalBroker::start().await;
    let me = AgentRef::new("worker-7#mcp").with_role("researcher");
    let sender = ours::connect_as(&broker.endpoint(), me.clone()).await;
    let receiver = subscriber(&broker.endpoint(), "desktop").await;
    let content = json!({"text": "grüße \"🙂\"\n", "list": [1, -2.5, null, {"deep": true}]});
    for kind in [InboxKind::Task, InboxKind::Handoff, InboxKind::Event, InboxKind::Steer, InboxKind::ApprovalRequest] {
        let sent = InboxMessage::new(me.clone(), kind, body(&content)).correlated_to(MsgId::new());
        assert_eq!(soon(sender.deliver("desktop", sent.clone())).await.expect("a receipt"), sent.id);
        let received = next(&receiver).await;
        assert_eq!(ours::value(&received), content);
        // The original parses and reserialises bodies, so the JSON value is kept but not its text.
        assert_eq!(InboxMessage { body: sent.body.clone(), ..received.clone() }, sent);
        receiver.ack(received.id).await.expect("acknowledged");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_deliveries_get_their_receipts_and_arrive_at_the_originals_client() {
    let broker = OriginalBroker::start().await;
    let sender = &connect(&broker.endpoint(), "sender").await;
    let mut receiver = original::subscriber(&broker.endpoint(), original::agent("receiver")).await;
    let deliveries = (0..64).map(|number| sender.deliver("receiver", task("sender", number)));
    for outcome in soon(join_all(deliveries)).await {
        outcome.expect("a receipt");
    }
    let mut numbers = Vec::new();
    for _ in 0..64 {
        let message = original::next(&mut receiver).await;
        assert_eq!(message.from, original::agent("sender"));
        numbers.push(message.body["number"].as_u64().expect("a number"));
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (0..64).collect::<Vec<u64>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_reconnect_only_unacknowledged_messages_are_redelivered() {
    let broker = OriginalBroker::start().await;
    let sender = connect(&broker.endpoint(), "sender").await;
    let receiver = subscriber(&broker.endpoint(), "receiver").await;
    for number in 0..3 {
        soon(sender.deliver("receiver", task("sender", number))).await.expect("a receipt");
    }
    let received = [next(&receiver).await, next(&receiver).await, next(&receiver).await];
    assert_eq!(received.each_ref().map(number), [0, 1, 2]);
    receiver.ack(received[0].id.clone()).await.expect("acknowledged");
    soon(receiver.ack_confirmed(received[2].id.clone())).await.expect("confirmed");
    soon(receiver.close()).await;

    let again = subscriber(&broker.endpoint(), "receiver").await;
    assert_eq!(next(&again).await, received[1]);
    soon(sender.deliver("receiver", task("sender", 3))).await.expect("a receipt");
    assert_eq!(number(&next(&again).await), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_subscribers_of_the_role_are_listed_as_connected() {
    let broker = OriginalBroker::start().await;
    let coder = subscriber_as(&broker.endpoint(), AgentRef::new("ours").with_role("coder")).await;
    let _original = original::subscriber(&broker.endpoint(), original::agent_in_role("theirs", "coder")).await;
    let observer = connect(&broker.endpoint(), "observer").await;
    let mut coders = soon(observer.list_connected("coder")).await.expect("an answer");
    coders.sort();
    assert_eq!(coders, ["ours", "theirs"]);
    soon(coder.close()).await;
    eventually(async || soon(observer.list_connected("coder")).await.expect("an answer") == ["theirs"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancels_are_delivered_in_both_directions() {
    let broker = OriginalBroker::start().await;
    let ours = subscriber(&broker.endpoint(), "ours").await;
    let mut theirs = original::subscriber(&broker.endpoint(), original::agent("theirs")).await;
    let (down, up) = (MsgId::new(), original::MsgId::new());
    ours.cancel("theirs", &down).await.expect("sent");
    assert_eq!(soon(theirs.next_cancel()).await.expect("a cancel").as_str(), down.as_str());
    theirs.cancel("ours", &up).await.expect("sent");
    assert_eq!(soon(ours.next_cancel()).await.expect("a cancel").as_str(), up.as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_delivery_fails_with_the_brokers_reason() {
    let broker = OriginalBroker::start_with_mailbox_limit(1).await;
    let sender = connect(&broker.endpoint(), "sender").await;
    soon(sender.deliver("receiver", task("sender", 1))).await.expect("a receipt");
    let second = task("sender", 2);
    match soon(sender.deliver("receiver", second.clone())).await {
        Err(BrokerError::Rejected { reason, id, code: None }) => {
            assert!(reason.contains("is full"), "{reason}");
            assert_eq!(id, Some(second.id));
        }
        other => panic!("not a rejection: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_duplicate_deliveries_get_two_receipts() {
    let broker = OriginalBroker::start().await;
    let sender = connect(&broker.endpoint(), "sender").await;
    let message = task("sender", 1);
    let twice = [sender.deliver("receiver", message.clone()), sender.deliver("receiver", message.clone())];
    for outcome in soon(join_all(twice)).await {
        assert_eq!(outcome.expect("a receipt"), message.id);
    }
}

/// The original closes a connection on an unknown frame, so our extensions must not reach it.
#[tokio::test(flavor = "multi_thread")]
async fn our_extensions_are_not_sent_to_the_original() {
    let broker = OriginalBroker::start().await;
    let mut theirs = original::subscriber(&broker.endpoint(), original::agent("theirs")).await;
    let ours = subscriber(&broker.endpoint(), "ours").await;
    ours.publish_event("theirs", &MsgId::new(), body(&json!({"progress": 1}))).await.expect("not an error");
    let status = soon(ours.status()).await;
    assert!(matches!(status, Err(BrokerError::Protocol(_))), "{status:?}");
    original::deliver(&mut theirs, "ours", original::task("theirs", 1)).await;
    ours.ack(next(&ours).await.id).await.expect("acknowledged");
    flush(&ours).await;
    assert!(ours.reader_alive());
    assert_eq!(soon(theirs.list_connected("nobody")).await.expect("an answer"), Vec::<String>::new());
}

/// Three of our default heartbeats in real time: `cargo test -- --ignored`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute"]
async fn an_idle_connection_to_the_original_stays_open() {
    let broker = OriginalBroker::start().await;
    let idle = subscriber(&broker.endpoint(), "idle").await;
    let sender = connect(&broker.endpoint(), "sender").await;
    soon(sender.deliver("idle", task("sender", 1))).await.expect("a receipt");
    let unacknowledged = next(&idle).await;
    assert_eq!(number(&unacknowledged), 1);
    // After a reconnect it would be redelivered.
    let silence = tokio::time::timeout(Duration::from_secs(32), idle.next_message()).await;
    assert!(silence.is_err(), "{silence:?}");
    assert!(idle.reader_alive());
}
