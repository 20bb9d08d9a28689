//! A broker that follows a script: tests see every frame of the client, and decide when connections begin and end.

use crate::support::soon;
use futures_util::{SinkExt, StreamExt};
use std::time::Duration;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_websockets::{Message, ServerBuilder, WebSocketStream};
use toolbus_client::{BrokerClient, BrokerError, ClientOptions};
use toolbus_protocol::{AgentRef, BrokerFrame, ClientFrame, Framing, InboxMessage, Push, Welcome, json};

pub struct Scripted {
    pipes: mpsc::Receiver<DuplexStream>,
}

/// The broker's end of one connection.
pub struct Peer(WebSocketStream<DuplexStream>);

impl Scripted {
    /// A client that is connected and subscribed, and its connection.
    pub async fn start() -> (Self, BrokerClient, Peer) {
        let (sender, pipes) = mpsc::channel(1);
        let mut broker = Self { pipes };
        let dial = move || {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
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
        let pipe = soon("the client to dial", self.pipes.recv()).await.expect("a client");
        Peer::new(pipe)
    }

    pub async fn accept(&mut self) -> Peer {
        let mut peer = self.dialled().await;
        peer.welcome().await;
        peer
    }
}

impl Peer {
    pub fn new(pipe: DuplexStream) -> Self {
        Self(ServerBuilder::new().serve(pipe))
    }

    pub async fn welcome(&mut self) {
        assert!(matches!(self.next().await, Some(ClientFrame::Hello(_))));
        self.send_welcome().await;
    }

    pub async fn send_welcome(&mut self) {
        let (version, framing) = (Some(2), Some(Framing::Json));
        let welcome = Welcome { version, framing, limits: None, heartbeat_ms: Some(600_000), agent: None };
        self.send(BrokerFrame::Welcome(welcome)).await;
    }

    /// The next frame of the client, or `None` when it has closed the connection.
    pub async fn next(&mut self) -> Option<ClientFrame> {
        let message = soon("a frame", self.0.next()).await?.ok().filter(|message| !message.is_close())?;
        Some(json::read_client(message.as_payload()).expect("a frame"))
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
        let text = json::write_broker(&frame).expect("a JSON body");
        self.0.send(Message::text(text)).await.ok();
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
