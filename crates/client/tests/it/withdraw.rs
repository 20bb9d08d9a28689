//! Withdrawal of a message: its outcome, also when the connection is lost before the answer.

use crate::scripted::ScriptedBroker;
use crate::support::{Bus, request, soon, until};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::watch;
use toolbus_client::{BrokerError, CancelOutcome, SendOptions};
use toolbus_protocol::{InboxKind, MsgId};

const LONG: Duration = Duration::from_secs(600);

fn result(cancel: &Value, outcome: &str) -> Value {
    let (request_id, correlation_id) = (&cancel["request_id"], &cancel["correlation_id"]);
    json!({"kind": "cancel_result", "request_id": request_id, "correlation_id": correlation_id, "outcome": outcome})
}

#[tokio::test]
async fn a_withdrawal_reports_whether_the_recipient_may_have_the_message() {
    let bus = Bus::start();
    let (caller, observer) = (bus.client("caller").await, bus.client("observer").await);
    let withdraw = async |id: &MsgId| soon("an outcome", caller.withdraw("host", id, LONG)).await.unwrap();
    let queued = soon("a receipt", caller.deliver("host", request())).await.unwrap();
    assert_eq!(withdraw(&queued).await, CancelOutcome::Withdrawn);
    assert_eq!(bus.mailbox(&observer, "host").await, None);
    assert_eq!(withdraw(&queued).await, CancelOutcome::Withdrawn, "asked again");
    assert_eq!(withdraw(&"never".into()).await, CancelOutcome::Unknown);
    let foreign = soon("an outcome", observer.withdraw("host", &queued, LONG)).await.unwrap();
    assert_eq!(foreign, CancelOutcome::Unknown);
    let host = bus.client("host").await;
    host.subscribe().await.unwrap();
    let pushed = soon("a receipt", caller.deliver("host", request())).await.unwrap();
    let received = soon("the request", host.next_message()).await.unwrap();
    assert_eq!(received.id, pushed, "the withdrawn message is not delivered");
    assert_eq!(withdraw(&pushed).await, CancelOutcome::Running);
    assert_eq!(soon("the cancel", host.next_cancel()).await, Some(pushed.clone()));
    soon("a receipt", host.reply(&received, InboxKind::McpReply, received.body.clone())).await.unwrap();
    assert_eq!(withdraw(&pushed).await, CancelOutcome::Finished);
}

#[tokio::test]
async fn a_withdrawal_without_a_connection_is_sent_on_the_next_one() {
    let bus = Bus::start();
    let (link, is_up) = watch::channel(true);
    let caller = bus.client_over("caller", is_up).await;
    let queued = soon("a receipt", caller.deliver("host", request())).await.unwrap();
    link.send_replace(false);
    until("the link to be down", async || !caller.reader_alive()).await;
    let reconnect = async { link.send_replace(true) };
    let (outcome, _) = tokio::join!(biased; soon("an outcome", caller.withdraw("host", &queued, LONG)), reconnect);
    assert_eq!(outcome.unwrap(), CancelOutcome::Withdrawn);
}

#[tokio::test]
async fn a_withdrawal_is_repeated_if_the_connection_is_lost_before_its_answer() {
    let broker = ScriptedBroker::start().await;
    let (client, mut connection) = broker.client().await;
    let script = async {
        let first = connection.expect("cancel").await;
        drop(connection);
        let mut connection = broker.accept().await;
        let again = connection.expect("cancel").await;
        assert_eq!(again, first);
        connection.send(result(&again, "withdrawn")).await;
        connection
    };
    let id = MsgId::from("m");
    let (outcome, mut connection) = tokio::join!(client.withdraw("host", &id, LONG), script);
    assert_eq!(outcome.unwrap(), CancelOutcome::Withdrawn);
    client.publish_event("host", &id, request().body).await.unwrap();
    connection.expect("live_event").await;
}

#[tokio::test]
async fn a_withdrawal_ends_with_its_deadline_and_is_then_not_repeated() {
    let broker = ScriptedBroker::start().await;
    let (client, mut connection) = broker.client().await;
    let (id, limit) = (MsgId::from("m"), Duration::from_millis(20));
    let (outcome, _) = tokio::join!(client.withdraw("host", &id, limit), connection.expect("cancel"));
    assert!(matches!(outcome, Err(BrokerError::Timeout(waited)) if waited == limit), "{outcome:?}");
    drop(connection);
    let mut connection = broker.accept().await;
    soon("a new connection", client.next_connection(1)).await;
    client.publish_event("host", &id, request().body).await.unwrap();
    connection.expect("live_event").await;
}

#[tokio::test]
async fn a_withdrawal_ends_with_the_client() {
    let broker = ScriptedBroker::start().await;
    let (client, mut connection) = broker.client().await;
    let client = std::sync::Arc::new(client);
    let waiting = tokio::spawn({
        let client = std::sync::Arc::clone(&client);
        async move { client.withdraw("host", &"m".into(), LONG).await }
    });
    connection.expect("cancel").await;
    let revoked = json!({"kind": "error", "reason": "revoked", "id": null, "code": "TB0113"});
    connection.send(revoked).await;
    let outcome = soon("an outcome", waiting).await.unwrap();
    assert!(matches!(outcome, Err(BrokerError::Auth { .. })), "{outcome:?}");
}

/// The broker may have crashed after it pushed the message and before that was durable.
#[tokio::test]
async fn a_message_that_was_delivered_again_counts_as_running() {
    let broker = ScriptedBroker::start().await;
    let (client, mut connection) = broker.client().await;
    let id = client.deliver_nowait("host", request(), SendOptions::default()).await.unwrap();
    connection.expect("deliver").await;
    drop(connection);
    let mut connection = broker.accept().await;
    connection.expect("deliver").await;
    connection.send(json!({"kind": "receipts", "ranges": [[1, 1]]})).await;
    let script = async {
        let cancel = connection.expect("cancel").await;
        connection.send(result(&cancel, "withdrawn")).await;
    };
    let (outcome, ()) = tokio::join!(client.withdraw("host", &id, LONG), script);
    assert_eq!(outcome.unwrap(), CancelOutcome::Running);
}
