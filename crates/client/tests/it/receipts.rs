//! The receipt of a call: it comes without a second message, by number or implied by the reply.

use crate::scripted::ScriptedBroker;
use crate::support::{Bus, request, soon, until};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::watch;
use toolbus_client::{BrokerError, CallItem, ErrorCode};
use toolbus_protocol::InboxKind;

const LONG: Duration = Duration::from_secs(600);

fn reply(deliver: &Value) -> Value {
    let message = json!({
        "id": "r", "from": {"session_id": deliver["to"]}, "kind": "mcp_reply", "body": 1,
        "created_at": "2026-11-15T19:34:13Z", "correlation_id": deliver["message"]["id"],
    });
    json!({"kind": "message", "tag": 1, "message": message})
}

#[tokio::test]
async fn the_receipt_of_a_call_is_that_of_its_only_message() {
    let broker = ScriptedBroker::start().await;
    let (client, mut connection) = broker.client().await;
    let client = client.into_multiplexed();
    let mut call = client.start_call("host", request(), LONG).await.unwrap();
    connection.expect("deliver").await;
    {
        let mut receipt = std::pin::pin!(call.receipt());
        assert!(futures_util::poll!(receipt.as_mut()).is_pending(), "no receipt has arrived");
        connection.send(json!({"kind": "receipts", "ranges": [[1, 1]]})).await;
        soon("the receipt", receipt).await.unwrap();
    }
    soon("the receipt that is known already", call.receipt()).await.unwrap();
    call.detach();
    client.client().publish_event("host", &"e".into(), request().body).await.unwrap();
    connection.expect("live_event").await;
}

#[tokio::test]
async fn a_reply_implies_the_receipt_of_its_call_and_is_still_received() {
    let broker = ScriptedBroker::start().await;
    let (client, mut connection) = broker.client().await;
    let client = client.into_multiplexed();
    let mut call = client.start_call("host", request(), LONG).await.unwrap();
    let deliver = connection.expect("deliver").await;
    let (receipt, ()) = tokio::join!(soon("the receipt", call.receipt()), connection.send(reply(&deliver)));
    receipt.unwrap();
    soon("the receipt after the reply", call.receipt()).await.unwrap();
    assert!(matches!(soon("the reply", call.next()).await, Some(CallItem::Reply(Ok(_)))));
}

#[tokio::test]
async fn a_refused_call_has_no_receipt() {
    let broker = ScriptedBroker::start().await;
    let (client, mut connection) = broker.client().await;
    let client = client.into_multiplexed();
    let mut call = client.start_call("host", request(), LONG).await.unwrap();
    let deliver = connection.expect("deliver").await;
    let id = &deliver["message"]["id"];
    let refusal = json!({"kind": "error", "reason": "full", "id": id, "code": "TB0201"});
    let (receipt, ()) = tokio::join!(soon("a refusal", call.receipt()), connection.send(refusal));
    let code = receipt.unwrap_err().code();
    assert_eq!(code, ErrorCode::from_code("TB0201"));
    assert_eq!(soon("the same refusal", call.receipt()).await.unwrap_err().code(), code);
    let end = soon("the end", call.next()).await;
    assert!(matches!(&end, Some(CallItem::Reply(Err(error))) if error.code() == code), "{end:?}");
}

#[tokio::test]
async fn a_receipt_is_awaited_across_a_reconnect() {
    let bus = Bus::start();
    let (link, is_up) = watch::channel(true);
    let caller = bus.client_over("caller", is_up).await.into_multiplexed();
    link.send_replace(false);
    until("the link to be down", async || !caller.reader_alive()).await;
    let mut call = caller.start_call("host", request(), LONG).await.unwrap();
    let reconnect = async { link.send_replace(true) };
    let (receipt, _) = tokio::join!(biased; soon("the receipt", call.receipt()), reconnect);
    receipt.unwrap();
    call.detach();
    let host = bus.client("host").await;
    host.subscribe().await.unwrap();
    let received = soon("the request", host.next_message()).await.unwrap();
    soon("a receipt", host.reply(&received, InboxKind::McpReply, received.body.clone())).await.unwrap();
}

#[tokio::test]
async fn a_receipt_ends_with_the_client() {
    let broker = ScriptedBroker::start().await;
    let (client, mut connection) = broker.client().await;
    let client = client.into_multiplexed();
    let mut call = client.start_call("host", request(), LONG).await.unwrap();
    connection.expect("deliver").await;
    let revoked = json!({"kind": "error", "reason": "revoked", "id": null, "code": "TB0113"});
    let (receipt, ()) = tokio::join!(soon("the end", call.receipt()), connection.send(revoked));
    assert!(matches!(receipt, Err(BrokerError::Auth { .. })), "{receipt:?}");
}
