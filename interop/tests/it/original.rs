//! Shorthand for the original's types.

use crate::{TOKEN, soon};
pub use bamboo_broker::{BrokerClient, BrokerError};
pub use bamboo_subagent::{AgentRef, AskBody, AskMode, InboxKind, InboxMessage, MsgId};
use serde_json::{Value, json};
use std::future::Future;
use std::sync::Arc;

pub fn agent(name: &str) -> AgentRef {
    AgentRef { session_id: name.into(), role: None }
}

pub fn agent_in_role(name: &str, role: &str) -> AgentRef {
    AgentRef { session_id: name.into(), role: Some(role.into()) }
}

pub fn message(from: AgentRef, kind: InboxKind, body: Value) -> InboxMessage {
    InboxMessage { id: MsgId::new(), from, kind, body, created_at: chrono::Utc::now(), correlation_id: None }
}

/// A task with a number in it.
pub fn task(from: &str, number: u64) -> InboxMessage {
    message(agent(from), InboxKind::Task, json!({ "number": number }))
}

pub fn question(ask: &InboxMessage) -> String {
    assert_eq!(ask.kind, InboxKind::Ask);
    serde_json::from_value::<AskBody>(ask.body.clone()).expect("a question").question
}

pub async fn connect(endpoint: &str, agent: AgentRef) -> BrokerClient {
    soon(BrokerClient::connect(endpoint, agent, TOKEN)).await.expect("a connection")
}

/// A client whose subscription the broker has processed.
pub async fn subscriber(endpoint: &str, agent: AgentRef) -> BrokerClient {
    let mut client = connect(endpoint, agent).await;
    client.subscribe().await.expect("subscribed");
    flush(&mut client).await;
    client
}

/// Returns when the broker has processed all earlier frames of this client: it answers in order.
pub async fn flush(client: &mut BrokerClient) {
    soon(client.list_connected("nobody")).await.expect("an answer");
}

pub async fn next(client: &mut BrokerClient) -> InboxMessage {
    soon(client.next_message()).await.expect("a message")
}

pub async fn deliver(client: &mut BrokerClient, to: &str, message: InboxMessage) {
    let id = message.id.clone();
    assert_eq!(soon(client.deliver(to, message)).await.expect("a receipt"), id);
}

/// Spawns an agent of the original that answers every ask with a function of its question.
pub fn spawn_answering_agent<F, Fut>(endpoint: &str, name: &str, reply: F)
where
    F: Fn(String) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = String> + Send + 'static,
{
    let (endpoint, me) = (endpoint.to_owned(), agent(name));
    let handler = Arc::new(move |ask: InboxMessage| reply(question(&ask)));
    tokio::spawn(async move { bamboo_broker::serve_with(&endpoint, me, TOKEN, handler).await });
}
