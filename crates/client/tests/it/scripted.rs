//! A broker whose every frame the test decides, for answers that are lost or never sent.

use crate::support::soon;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_websockets::{Message, ServerBuilder, WebSocketStream};
use toolbus_client::{BrokerClient, ClientOptions, Framing};
use toolbus_protocol::AgentRef;

pub struct ScriptedBroker {
    listener: TcpListener,
}

/// The broker's side of one connection, in JSON framing.
pub struct Connection {
    socket: WebSocketStream<TcpStream>,
}

impl ScriptedBroker {
    pub async fn start() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").await.unwrap() }
    }

    /// Connects a client; returns the broker's side too.
    pub async fn client(&self) -> (BrokerClient, Connection) {
        let endpoint = format!("ws://{}", self.listener.local_addr().unwrap());
        let backoff = Duration::from_millis(1);
        let framing = Framing::Json;
        let options = ClientOptions { framing, backoff, longest_backoff: backoff, ..ClientOptions::default() };
        let connecting = BrokerClient::connect_with(&endpoint, AgentRef::new("me"), "token", options);
        let (client, connection) = tokio::join!(soon("a connection", connecting), self.accept());
        (client.unwrap(), connection)
    }

    /// The next connection of the client, after its handshake.
    pub async fn accept(&self) -> Connection {
        soon("a connection", async {
            let (stream, _) = self.listener.accept().await.unwrap();
            let (_, mut socket) = ServerBuilder::new().accept(stream).await.unwrap();
            socket.next().await.unwrap().unwrap();
            let mut connection = Connection { socket };
            connection.send(json!({"kind": "welcome", "version": 2, "framing": "json"})).await;
            connection.send(json!({"kind": "broker_identity", "id": "scripted"})).await;
            connection
        })
        .await
    }
}

impl Connection {
    pub async fn send(&mut self, frame: Value) {
        self.socket.send(Message::text(frame.to_string())).await.unwrap();
    }

    /// The next frame of the client other than `subscribe`.
    pub async fn next(&mut self) -> Value {
        soon("a frame", async {
            loop {
                let message = self.socket.next().await.unwrap().unwrap();
                let Some(text) = message.as_text() else { continue };
                let frame: Value = serde_json::from_str(text).unwrap();
                if frame["kind"] != "subscribe" {
                    return frame;
                }
            }
        })
        .await
    }

    /// The next frame, which must have that kind.
    pub async fn expect(&mut self, kind: &str) -> Value {
        let frame = self.next().await;
        assert_eq!(frame["kind"], kind, "{frame}");
        frame
    }
}
