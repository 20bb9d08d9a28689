//! Replies that the journal has no record of, on a broker that follows a script.

use crate::support::{open_host, within};
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use toolbus_client::{AgentRef, BrokerClient, BrokerError, ClientOptions};
use toolbus_host::run_host;
use toolbus_protocol::{
    Body, BrokerFrame, BrokerLink, ClientFrame, Deliver, InboxKind, InboxMessage, Push, Welcome, link,
};
use toolbus_upstream::HostConfig;

/// The broker's end of one connection.
struct Peer(BrokerLink);

impl Peer {
    /// Accepts the next connection of the host, up to its subscription.
    async fn accept(links: &mut mpsc::Receiver<BrokerLink>) -> Self {
        let peer = Self(within("the host to dial", links.recv()).await.expect("a host"));
        let (version, heartbeat_ms) = (Some(2), Some(600_000));
        let welcome = Welcome { version, framing: None, limits: None, heartbeat_ms, agent: None };
        peer.0.send(BrokerFrame::Welcome(welcome));
        peer
    }

    async fn next(&mut self) -> ClientFrame {
        let frame = within("a frame", poll_fn(|cx| self.0.poll_receive(cx))).await;
        frame.expect("a connection").checked().expect("a valid frame")
    }

    async fn next_delivery(&mut self) -> Deliver {
        loop {
            if let ClientFrame::Deliver(deliver) = self.next().await {
                return deliver;
            }
        }
    }

    fn push(&mut self, tag: u64, message: &InboxMessage) {
        let from = message.from.clone();
        let push = Push { tag: Some(tag), attempt: 1, from, deadline_ms: None, envelope: message.seal() };
        self.0.send(BrokerFrame::Message(push));
    }
}

/// Without its acknowledgement, the next host would decide about the request again.
#[tokio::test]
async fn a_refusal_is_sent_again_only_with_the_acknowledgement_of_its_request() {
    let (sender, mut links) = mpsc::channel(1);
    let dial = move || {
        let (ours, theirs) = link();
        sender.try_send(theirs).map_err(|_| BrokerError::Transport("the broker accepts no connection".into()))?;
        Ok(ours)
    };
    let options = ClientOptions { backoff: Duration::from_millis(5), ..ClientOptions::default() };
    let connecting = BrokerClient::connect_local(dial, AgentRef::new("host"), options);
    let (client, mut first) = tokio::join!(connecting, Peer::accept(&mut links));
    let stop = CancellationToken::new();
    let _stopped = stop.clone().drop_guard();
    tokio::spawn(run_host(client.expect("a connection"), open_host(HostConfig::default()), stop));

    let request = || Arc::new(InboxMessage::new(AgentRef::new("w"), InboxKind::McpRequest, unknown_server()));
    let (refused, other) = (request(), request());
    first.push(7, &refused);
    let refusal = first.next_delivery().await;
    assert_eq!((refusal.ack, &refusal.envelope.correlation_id), (Some(7), &Some(refused.id.clone().into_inner())));
    drop(first);

    let mut second = Peer::accept(&mut links).await;
    second.push(8, &other);
    assert_eq!(second.next_delivery().await.ack, Some(8), "the refusal waits for its request");
    second.push(9, &refused);
    let again = second.next_delivery().await;
    assert_eq!((again.ack, &again.envelope.id), (Some(9), &refusal.envelope.id));
}

/// A call that the host refuses.
fn unknown_server() -> Body {
    let rpc = toolbus_mcp::Rpc {
        server: "unknown".to_owned(),
        session: "s".to_owned(),
        client: toolbus_mcp::ClientHello::modern(),
        method: "tools/call".to_owned(),
        params: Some(toolbus_mcp::raw(&serde_json::json!({"name": "effect"}))),
        task: None,
        hand_back: false,
    };
    Body::parse(toolbus_mcp::HostRequest::Rpc(rpc).to_json().into_bytes()).expect("JSON")
}
