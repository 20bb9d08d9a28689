//! Our client across restarts of the original's broker on the same port and folder: no message is lost, and a repeated
//! message keeps its id.

use crate::brokers::OriginalBroker;
use crate::ours::{
    self, AgentRef, BrokerClient, BrokerError, InboxKind, InboxMessage, MsgId, body, connect, mux, next, number,
    subscriber, subscriber_as, task, value,
};
use crate::relay::Relay;
use crate::{STEP_TIMEOUT, eventually, soon};
use futures_util::future::join_all;
use serde_json::json;
use std::collections::BTreeSet;

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_and_the_subscription_survive_a_restart_of_the_broker() {
    let mut broker = OriginalBroker::start().await;
    let sender = &connect(&broker.endpoint(), "sender").await;
    let receiver = subscriber(&broker.endpoint(), "receiver").await;
    soon(sender.deliver("receiver", task("sender", 0))).await.expect("a receipt");

    broker.stop().await;
    let deliveries = join_all((1..=50).map(|number| sender.deliver("receiver", task("sender", number))));
    let (outcomes, ()) = tokio::join!(soon(deliveries), broker.start_again());
    for outcome in outcomes {
        outcome.expect("a receipt");
    }
    assert_eq!(numbers_until(&receiver, 51).await, (0..=50).collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_receipt_was_lost_is_sent_again_under_the_same_id() {
    let mut broker = OriginalBroker::start().await;
    let relay = Relay::start(broker.port()).await;
    let sender = connect(&relay.endpoint(), "sender").await;
    let receiver = subscriber(&broker.endpoint(), "receiver").await;
    relay.mute_broker();
    let sent = task("sender", 1);
    let message = sent.clone();
    let delivering = tokio::spawn(async move { sender.deliver("receiver", message).await.map(|id| (id, sender)) });
    // The message is stored and acknowledged, but the sender has no receipt.
    let received = next(&receiver).await;
    assert_eq!(received.id, sent.id);
    soon(receiver.ack_confirmed(received.id)).await.expect("confirmed");
    assert!(!delivering.is_finished());

    broker.restart().await;
    relay.cut();
    let (id, sender) = soon(delivering).await.expect("no panic").expect("a receipt");
    assert_eq!(id, sent.id);
    // The original forgot the id with the acknowledgement, so the message arrives again, under the same id. It can
    // arrive twice if its recipient subscribes at the same moment.
    assert_eq!(next(&receiver).await.id, sent.id);
    soon(sender.deliver("receiver", task("sender", 2))).await.expect("a receipt");
    assert_eq!(number(&next_other_than(&receiver, &sent).await), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_without_a_connection_fail_immediately_and_later_ones_get_their_own_answers() {
    let mut broker = OriginalBroker::start().await;
    let observer = connect(&broker.endpoint(), "observer").await;
    broker.stop().await;
    eventually(async || !observer.reader_alive()).await;
    let listed = soon(observer.list_connected("coder")).await;
    assert!(matches!(listed, Err(BrokerError::Transport(_))), "{listed:?}");
    let confirmed = soon(observer.ack_confirmed(MsgId::new())).await;
    assert!(matches!(confirmed, Err(BrokerError::Transport(_))), "{confirmed:?}");

    broker.start_again().await;
    eventually(async || observer.reader_alive()).await;
    let _coder = subscriber_as(&broker.endpoint(), AgentRef::new("coder-1").with_role("coder")).await;
    assert_eq!(soon(observer.list_connected("coder")).await.expect("an answer"), ["coder-1"]);
    assert_eq!(soon(observer.list_connected("writer")).await.expect("an answer"), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unacknowledged_message_is_redelivered_after_a_restart() {
    let mut broker = OriginalBroker::start().await;
    let sender = connect(&broker.endpoint(), "sender").await;
    let receiver = subscriber(&broker.endpoint(), "receiver").await;
    soon(sender.deliver("receiver", task("sender", 1))).await.expect("a receipt");
    let first = next(&receiver).await;
    broker.restart().await;
    let again = next(&receiver).await;
    assert_eq!(again, first);
    soon(receiver.ack_confirmed(again.id)).await.expect("confirmed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_answered_across_a_restart_of_the_broker() {
    let mut broker = OriginalBroker::start().await;
    let host = subscriber(&broker.endpoint(), "host").await;
    let worker = mux(&broker.endpoint(), "worker").await;
    let requesting = tokio::spawn(async move {
        let reply = worker.request("host", InboxKind::McpRequest, body(&json!("ping")), STEP_TIMEOUT).await;
        reply.map(|reply| (value(&reply), worker))
    });
    let request = next(&host).await;
    broker.stop().await;
    let (replied, ()) =
        tokio::join!(soon(host.reply(&request, InboxKind::McpReply, body(&json!("pong")))), broker.start_again(),);
    replied.expect("a receipt");
    let (reply, worker) = soon(requesting).await.expect("no panic").expect("a reply");
    assert_eq!(reply, json!("pong"));

    // Both continue to work.
    let replying = async {
        // The first request may be redelivered: it was not acknowledged when the broker stopped.
        let fresh = next_other_than(&host, &request).await;
        soon(host.reply(&fresh, InboxKind::McpReply, body(&json!("pong 2")))).await.expect("a receipt");
    };
    let requesting = worker.request("host", InboxKind::McpRequest, body(&json!("ping 2")), STEP_TIMEOUT);
    let (reply, ()) = tokio::join!(requesting, replying);
    assert_eq!(value(&reply.expect("a reply")), json!("pong 2"));
}

/// Receives and acknowledges messages until it has the numbers of `count` different ones.
async fn numbers_until(receiver: &BrokerClient, count: usize) -> BTreeSet<u64> {
    let mut numbers = BTreeSet::new();
    while numbers.len() < count {
        let message = ours::next(receiver).await;
        numbers.insert(number(&message));
        receiver.ack(message.id).await.expect("acknowledged");
    }
    numbers
}

async fn next_other_than(receiver: &BrokerClient, known: &InboxMessage) -> InboxMessage {
    loop {
        let message = next(receiver).await;
        if message.id != known.id {
            return message;
        }
    }
}
