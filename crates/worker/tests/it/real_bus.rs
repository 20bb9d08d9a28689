//! The worker on a real broker, with a host that is a plain broker client.

use crate::support::stdio::StdioClient;
use crate::support::{eventually, host as entry, modern, request, server, soon};
use serde_json::{Value, json};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::net::TcpListener;
use toolbus_broker::{BrokerCore, BrokerServer, CoreOptions, ServerOptions, SharedToken};
use toolbus_client::BrokerClient;
use toolbus_mcp::{HostEvent, HostReply, HostRequest, Id, Outcome, raw};
use toolbus_protocol::{AgentRef, Body, InboxKind, InboxMessage, MsgId};
use toolbus_worker::{Bus, BusClient, StdioOptions, WorkerOptions};

const TOKEN: &str = "a-token-for-tests";

struct Broker {
    url: String,
    _folder: TempDir,
}

impl Broker {
    async fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let core = BrokerCore::open(folder.path(), CoreOptions::default()).unwrap();
        let server = BrokerServer::with_options(core, Box::new(SharedToken::new(TOKEN)), ServerOptions::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        tokio::spawn(server.serve(listener));
        Self { url, _folder: folder }
    }

    async fn client(&self, name: &str) -> BrokerClient {
        BrokerClient::connect(&self.url, AgentRef::new(name), TOKEN).await.unwrap()
    }

    async fn host(&self) -> Host {
        let client = self.client("host").await;
        client.subscribe().await.unwrap();
        let manifest = entry("host", vec![server("files", &["read"])]).manifest;
        client.announce(vec![(None, Body::of(&*manifest).unwrap())]).await.unwrap();
        Host { client }
    }

    async fn worker(&self) -> (StdioClient, Arc<BusClient>) {
        let bus = BusClient::start(self.client("worker").await).await.unwrap();
        let client = StdioClient::on(Arc::clone(&bus) as Arc<_>, WorkerOptions::default(), StdioOptions::default());
        (client, bus)
    }
}

struct Host {
    client: BrokerClient,
}

impl Host {
    async fn next(&self) -> (InboxMessage, HostRequest) {
        let message = soon("a message", self.client.next_message()).await.unwrap();
        let request = HostRequest::parse(message.body.text().unwrap()).unwrap();
        (message, request)
    }

    async fn reply(&self, to: &InboxMessage, result: Value) {
        let reply = HostReply::Rpc(Outcome::Result(raw(&result)));
        let body = Body::from_trusted(reply.to_json().into_bytes());
        self.client.reply_nowait(to, InboxKind::McpReply, body).await.unwrap();
    }

    /// Sends a notification as a live event, anything else as a durable message.
    async fn send_event(&self, to: &InboxMessage, correlation: &MsgId, event: HostEvent) {
        let body = Body::from_trusted(event.to_json().into_bytes());
        let to = &to.from.session_id;
        match event {
            HostEvent::Notification { .. } => self.client.publish_event(to, correlation, body).await.unwrap(),
            _ => {
                let message = InboxMessage::new(self.client.me(), InboxKind::McpEvent, body);
                self.client.deliver(to, message.correlated_to(correlation.clone())).await.unwrap();
            }
        }
    }
}

fn note(method: &str) -> HostEvent {
    HostEvent::Notification { server: "files".into(), method: method.into(), params: None }
}

#[tokio::test]
async fn a_call_and_its_events_reach_the_client() {
    let broker = Broker::start().await;
    let host = broker.host().await;
    let (mut client, _bus) = broker.worker().await;
    client.send(&crate::support::initialize(0)).await;
    let (message, _) = host.next().await;
    host.reply(&message, json!({"protocolVersion": "2025-11-25", "capabilities": {}})).await;
    client.next().await;

    client.send(&request(1, "tools/call", json!({"name": "read"}))).await;
    let (message, HostRequest::Rpc(rpc)) = host.next().await else { panic!("not a call") };
    host.send_event(&message, &message.id, note("notifications/one")).await;
    let (server, method) = ("files".to_owned(), "elicitation/create".to_owned());
    host.send_event(&message, &message.id, HostEvent::Request { server, id: Id::number(5), method, params: None })
        .await;
    assert_eq!(client.next().await["method"], "notifications/one");
    let client_request = client.next().await;
    client.send(&json!({"jsonrpc": "2.0", "id": client_request["id"], "result": {"action": "decline"}})).await;
    let (answered, HostRequest::Answer(answer)) = host.next().await else { panic!("not an answer") };
    host.client.ack(answered.id).await.unwrap();
    assert_eq!(answer.id, Id::number(5));
    host.send_event(&message, &message.id, note("notifications/two")).await;
    host.reply(&message, json!({"done": true})).await;
    assert_eq!(client.next().await["method"], "notifications/two");
    assert_eq!(client.next().await["result"], json!({"done": true}));

    // Outside of any call, as a live event and as a message.
    let session = MsgId::from(rpc.session);
    host.send_event(&message, &session, note("notifications/three")).await;
    assert_eq!(client.next().await["method"], "notifications/three");
    let (server, method) = ("files".to_owned(), "roots/list".to_owned());
    host.send_event(&message, &session, HostEvent::Request { server, id: Id::number(6), method, params: None }).await;
    assert_eq!(client.next().await["method"], "roots/list");
}

#[tokio::test]
async fn an_absent_host_stays_listed_and_its_reconnect_is_noticed() {
    let broker = Broker::start().await;
    let host = broker.host().await;
    let (mut client, bus) = broker.worker().await;
    let is_away = |bus: &BusClient| bus.hosts().borrow().iter().any(|host| host.away_since_ms.is_some());
    assert!(!is_away(&bus));
    host.client.close().await;
    eventually("the host is away", || is_away(&bus)).await;
    client.send(&modern(1, "tools/list", json!({}))).await;
    assert_eq!(client.next().await["result"]["tools"][0]["name"], "read");
    client.send(&modern(2, "tools/call", json!({"name": "read", "_meta": {"progressToken": 1}}))).await;
    let progress = client.next().await;
    let message = progress["params"]["message"].as_str().unwrap();
    assert!(message.starts_with("queued: host host has been away since 20"), "{progress}");
    assert!(message.ends_with(", position 1"), "{progress}");
    let host = broker.host().await;
    let (message, _) = host.next().await;
    host.reply(&message, json!({"back": true})).await;
    assert_eq!(client.next().await["result"], json!({"back": true}));
}

#[tokio::test]
async fn undelivered_calls_are_distinguished_from_delivered_ones() {
    let broker = Broker::start().await;
    let host = broker.host().await;
    let (_client, bus) = broker.worker().await;
    let body = || Body::from_trusted(HostRequest::Close { session: "s".into() }.to_json().into_bytes());
    let limit = std::time::Duration::from_secs(60);
    let pushed = bus.start_call("host", body(), limit).await.unwrap();
    host.next().await;
    assert!(!bus.is_untouched("host", pushed.id()).await, "the host has received it");
    host.client.close().await;
    let mut queued = bus.start_call("host", body(), limit).await.unwrap();
    assert!(!bus.is_untouched("host", pushed.id()).await, "the host received it before it disconnected");
    assert!(bus.is_untouched("host", queued.id()).await);
    assert_eq!(bus.ahead("host", queued.id()).await, Some(1));
    queued.take_back();
    let toolbus_worker::BusItem::Reply(Err(error)) = soon("the end", queued.next()).await else { panic!("no error") };
    assert_eq!(error.code(), Some(toolbus_protocol::ErrorCode::Cancelled));
    assert_eq!(bus.ahead("host", queued.id()).await, None);
}

#[tokio::test]
async fn only_a_request_that_was_never_delivered_is_withdrawn() {
    let broker = Broker::start().await;
    let host = broker.host().await;
    let (_client, bus) = broker.worker().await;
    let body = || Body::from_trusted(HostRequest::Close { session: "s".into() }.to_json().into_bytes());
    let limit = std::time::Duration::from_secs(60);
    let pushed = bus.start_call("host", body(), limit).await.unwrap();
    let (message, _) = host.next().await;
    assert!(!soon("an answer", bus.withdraw("host", pushed.id())).await, "the host has received it");
    assert_eq!(soon("the cancellation", host.client.next_cancel()).await, Some(message.id));
    host.client.close().await;
    let queued = bus.start_call("host", body(), limit).await.unwrap();
    let id = queued.id().to_owned();
    soon("the receipt", queued.leave()).await.unwrap();
    assert_eq!(bus.waiting("host").await.unwrap().iter().filter(|waiting| waiting.id == id).count(), 1);
    assert!(soon("an answer", bus.withdraw("host", &id)).await);
    assert_eq!(bus.ahead("host", &id).await, None);
}

#[tokio::test]
async fn a_disconnected_client_cancels_its_calls() {
    let broker = Broker::start().await;
    let host = broker.host().await;
    let bus = BusClient::start(broker.client("worker").await).await.unwrap();
    let options = StdioOptions { last_answers_within: std::time::Duration::from_millis(10), ..StdioOptions::default() };
    let mut client = StdioClient::on(Arc::clone(&bus) as Arc<_>, WorkerOptions::default(), options);
    client.send(&modern(1, "tools/call", json!({"name": "read"}))).await;
    let (message, _) = host.next().await;
    client.close();
    assert_eq!(soon("the cancellation", host.client.next_cancel()).await, Some(message.id));
    assert!(matches!(host.next().await.1, HostRequest::Close { .. }));
}
