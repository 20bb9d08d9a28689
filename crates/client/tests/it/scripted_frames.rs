//! A broker that follows a script: tests see every frame of the client, and decide when connections begin and end.

use crate::support::soon;
use std::future::poll_fn;
use std::time::Duration;
use tokio::sync::mpsc;
use toolbus_client::{BrokerClient, BrokerError, ClientOptions};
use toolbus_protocol::{AgentRef, BrokerFrame, BrokerLink, ClientFrame, InboxMessage, Push, Welcome, link};

pub struct Scripted {
    links: mpsc::Receiver<BrokerLink>,
}

/// The broker's end of one connection.
pub struct Peer(BrokerLink);

impl Scripted {
    /// A client that is connected and subscribed, and its connection.
    pub async fn start() -> (Self, BrokerClient, Peer) {
        let (sender, links) = mpsc::channel(1);
        let mut broker = Self { links };
        let dial = move || {
            let (ours, theirs) = link();
            sender.try_send(theirs).map_err(|_| BrokerError::Transport("the broker accepts no connection".into()))?;
            Ok(ours)
        };
        let backoff = Duration::from_millis(5);
        let options = ClientOptions { backoff, longest_backoff: backoff, ..ClientOptions::default() };
        let connecting = BrokerClient::connect_local(dial, AgentRef::new("me"), options);
        let (client, mut peer) = tokio::join!(connecting, broker.accept());
        let client = client.unwrap();
        client.subscribe().await.unwrap();
        assert!(matches!(peer.next().await, Some(ClientFrame::Subscribe)));
        (broker, client, peer)
    }

    /// Waits until the client dials, and does not answer it yet.
    pub async fn dialled(&mut self) -> Peer {
        Peer(soon("the client to dial", self.links.recv()).await.expect("a client"))
    }

    pub async fn accept(&mut self) -> Peer {
        let mut peer = self.dialled().await;
        peer.welcome().await;
        peer
    }
}

impl Peer {
    pub fn new(link: BrokerLink) -> Self {
        Self(link)
    }

    pub async fn welcome(&mut self) {
        let (version, heartbeat_ms) = (Some(2), Some(600_000));
        let welcome = Welcome { version, framing: None, limits: None, heartbeat_ms, agent: None };
        self.send(BrokerFrame::Welcome(welcome)).await;
    }

    /// The next frame of the client, or `None` when it has closed the connection.
    pub async fn next(&mut self) -> Option<ClientFrame> {
        let frame = soon("a frame", poll_fn(|cx| self.0.poll_receive(cx))).await?;
        Some(frame.checked().expect("a valid frame"))
    }

    /// The frames up to a delivery to `marker`, without it.
    pub async fn frames_until_marker(&mut self, client: &BrokerClient) -> Vec<ClientFrame> {
        let marker = InboxMessage::new(client.me(), "marker", toolbus_protocol::Body::null());
        client.deliver_nowait("marker", marker, Default::default()).await.unwrap();
        let mut frames = Vec::new();
        loop {
            match self.next().await.expect("a frame") {
                ClientFrame::Deliver(deliver) if deliver.to == "marker" => return frames,
                frame => frames.push(frame),
            }
        }
    }

    /// Sends a frame. The client may have closed the connection.
    pub async fn send(&mut self, frame: BrokerFrame) {
        self.0.send(frame);
    }

    pub async fn push(&mut self, tag: u64, message: &InboxMessage) {
        let from = message.from.clone();
        let push = Push { tag: Some(tag), attempt: 1, from, deadline_ms: None, envelope: message.seal() };
        self.send(BrokerFrame::Message(push)).await;
    }

    /// Sends the receipt of the first delivery of this connection.
    pub async fn receipt(&mut self) {
        self.send(BrokerFrame::Receipts { ranges: vec![(1, 1)] }).await;
    }
}
