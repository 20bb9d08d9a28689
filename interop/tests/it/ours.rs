//! Shorthand for our client.

use crate::{TOKEN, soon};
use serde_json::{Value, json};
pub use toolbus_client::{
    AgentRef, Ask, Body, BrokerClient, BrokerError, InboxKind, InboxMessage, MsgId, MultiplexedClient,
};

pub async fn connect(endpoint: &str, name: &str) -> BrokerClient {
    connect_as(endpoint, AgentRef::new(name)).await
}

pub async fn connect_as(endpoint: &str, agent: AgentRef) -> BrokerClient {
    soon(BrokerClient::connect(endpoint, agent, TOKEN)).await.expect("a connection")
}

/// A client whose subscription the broker has processed.
pub async fn subscriber(endpoint: &str, name: &str) -> BrokerClient {
    subscriber_as(endpoint, AgentRef::new(name)).await
}

pub async fn subscriber_as(endpoint: &str, agent: AgentRef) -> BrokerClient {
    let client = connect_as(endpoint, agent).await;
    client.subscribe().await.expect("subscribed");
    flush(&client).await;
    client
}

/// Returns when the broker has processed all earlier frames of this client: it answers in order.
pub async fn flush(client: &BrokerClient) {
    soon(client.list_connected("nobody")).await.expect("an answer");
}

pub async fn mux(endpoint: &str, name: &str) -> MultiplexedClient {
    connect(endpoint, name).await.into_multiplexed()
}

pub async fn next(client: &BrokerClient) -> InboxMessage {
    soon(client.next_message()).await.expect("a message")
}

pub fn body(value: &Value) -> Body {
    Body::of(value).expect("a body")
}

pub fn value(message: &InboxMessage) -> Value {
    message.body.to().expect("JSON")
}

pub fn question(ask: &InboxMessage) -> String {
    assert_eq!(ask.kind, InboxKind::Ask);
    ask.body.to::<Ask>().expect("a question").question
}

/// A task with a number in it.
pub fn task(from: &str, number: u64) -> InboxMessage {
    InboxMessage::new(AgentRef::new(from), InboxKind::Task, body(&json!({ "number": number })))
}

pub fn number(message: &InboxMessage) -> u64 {
    value(message)["number"].as_u64().expect("a number")
}
