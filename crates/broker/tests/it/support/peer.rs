//! A WebSocket client that can violate the protocol. Frames are JSON values in either framing, so that tests assert on
//! the wire format.

use super::{HttpResponse, TOKEN, upgrade_request, within};
use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio_websockets::{ClientBuilder, Limits, Message, WebSocketStream};
use toolbus_protocol::{AgentRef, BrokerFrame, ClientFrame, compact, json as wire};

pub struct Peer<S = TcpStream> {
    socket: WebSocketStream<S>,
    /// Received frames that are not read yet.
    unpacked: VecDeque<Value>,
}

/// What a peer receives from the broker.
#[derive(Debug, PartialEq)]
pub enum Seen {
    Frame(Value),
    Close {
        status: u16,
        reason: String,
    },
    /// The connection ended.
    Ended,
}

pub fn hello(name: &str) -> Value {
    json!({"kind": "hello", "agent": {"session_id": name, "role": "tester"}, "token": TOKEN})
}

pub fn hello_v2(name: &str) -> Value {
    let mut value = hello(name);
    value["version"] = 2.into();
    value
}

pub fn hello_compact(name: &str) -> Value {
    let mut value = hello_v2(name);
    value["framing"] = "compact".into();
    value
}

pub fn deliver(to: &str, id: &str, body: Value) -> Value {
    let message = json!({"id": id, "kind": "task", "body": body, "created_at": "2026-11-15T19:34:13Z"});
    json!({"kind": "deliver", "to": to, "message": message})
}

/// A WebSocket client frame with a mask of zeros and the given first byte.
pub fn masked_frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        short @ 0..=125 => frame.push(0x80 | short as u8),
        medium @ 126..=0xffff => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(medium as u16).to_be_bytes());
        }
        long => {
            frame.push(0x80 | 127);
            frame.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(payload);
    frame
}

impl Peer {
    /// Opens a WebSocket without sending `hello`.
    pub async fn connect(address: SocketAddr) -> Self {
        let socket = within("a TCP connection", TcpStream::connect(address)).await.expect("the broker accepts");
        socket.set_nodelay(true).expect("a socket");
        Self::upgrade(socket, address, b"").await
    }

    /// Like [`connect`](Self::connect), but returns `None` if the broker refuses the connection.
    pub async fn try_connect(address: SocketAddr) -> Option<Self> {
        let mut socket = TcpStream::connect(address).await.ok()?;
        socket.set_nodelay(true).ok()?;
        socket.write_all(upgrade_request(address, "/bus", "").as_bytes()).await.ok()?;
        let head = within("the upgrade response", read_head(&mut socket)).await;
        let socket = ClientBuilder::new().limits(Limits::default()).take_over(socket);
        (HttpResponse::parse(&head).status == 101).then_some(Self { socket, unpacked: VecDeque::new() })
    }

    /// Upgrades a TCP connection to a WebSocket. `early` is sent in the same write as the request.
    pub async fn upgrade(socket: TcpStream, address: SocketAddr, early: &[u8]) -> Self {
        let mut request = upgrade_request(address, "/bus", "").into_bytes();
        request.extend_from_slice(early);
        Self::upgrade_by(socket, request).await
    }

    /// Like [`upgrade`](Self::upgrade), with additional header lines.
    pub async fn upgrade_with(socket: TcpStream, address: SocketAddr, header: &str) -> Self {
        Self::upgrade_by(socket, upgrade_request(address, "/bus", header).into_bytes()).await
    }

    async fn upgrade_by(mut socket: TcpStream, request: Vec<u8>) -> Self {
        socket.write_all(&request).await.expect("the request is sent");
        let head = within("the upgrade response", read_head(&mut socket)).await;
        assert_eq!(HttpResponse::parse(&head).status, 101, "{}", String::from_utf8_lossy(&head));
        let limits = Limits::default().max_payload_len(Some(256 << 20));
        let socket = ClientBuilder::new().limits(limits).take_over(socket);
        Self { socket, unpacked: VecDeque::new() }
    }

    /// Connects and completes the handshake.
    pub async fn join(address: SocketAddr, hello: Value) -> Self {
        let mut peer = Self::connect(address).await;
        peer.send(hello).await;
        peer.expect_welcome().await;
        peer
    }

    /// The TCP connection, for peers that stop speaking WebSocket.
    pub fn into_tcp(self) -> TcpStream {
        self.socket.into_inner()
    }
}

impl Peer<DuplexStream> {
    /// A peer in the broker's process, on a pipe whose buffer is small.
    pub async fn on_pipe(pipe: DuplexStream, hello: Value) -> Self {
        let mut peer = Self { socket: ClientBuilder::new().take_over(pipe), unpacked: VecDeque::new() };
        peer.send(hello).await;
        peer.expect_welcome().await;
        peer
    }

    /// The pipe, for peers that stop speaking WebSocket.
    pub fn into_pipe(self) -> DuplexStream {
        self.socket.into_inner()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    async fn expect_welcome(&mut self) {
        for kind in ["welcome", "broker_identity"] {
            assert_eq!(self.frame().await["kind"], kind);
        }
    }

    pub async fn send(&mut self, frame: Value) {
        self.send_text(frame.to_string()).await;
    }

    pub async fn send_text(&mut self, text: impl Into<String>) {
        self.send_message(Message::text(text.into())).await;
    }

    pub async fn send_binary(&mut self, bytes: impl Into<Bytes>) {
        self.send_message(Message::binary(bytes.into())).await;
    }

    /// Several compact frames in one binary message.
    pub async fn send_compact(&mut self, frames: &[ClientFrame]) {
        let mut bytes = BytesMut::new();
        frames.iter().for_each(|frame| compact::write_client(frame, &AgentRef::new("unused"), &mut bytes));
        self.send_binary(bytes.freeze()).await;
    }

    pub async fn send_close(&mut self) {
        self.send_message(Message::close(None, "")).await;
    }

    /// Ignores errors: the broker may have closed already, which the test notices by reading.
    async fn send_message(&mut self, message: Message) {
        within("room to send", self.socket.send(message)).await.ok();
    }

    /// Sends bytes below the WebSocket layer.
    pub async fn send_raw(&mut self, bytes: &[u8]) {
        within("room to send", self.socket.get_mut().write_all(bytes)).await.ok();
    }

    pub async fn see(&mut self) -> Seen {
        within("a frame from the broker", async {
            loop {
                if let Some(frame) = self.unpacked.pop_front() {
                    return Seen::Frame(frame);
                }
                let Some(Ok(message)) = self.socket.next().await else { return Seen::Ended };
                if let Some((status, reason)) = message.as_close() {
                    return Seen::Close { status: status.into(), reason: reason.to_owned() };
                }
                if let Some(text) = message.as_text() {
                    return Seen::Frame(serde_json::from_str(text).expect("the broker sends JSON"));
                }
                if message.is_binary() {
                    self.unpack(Bytes::from(message.into_payload()));
                }
            }
        })
        .await
    }

    fn unpack(&mut self, mut bytes: Bytes) {
        while let Some(frame) = compact::read_broker(&mut bytes).expect("the broker sends readable frames") {
            self.unpacked.push_back(as_json(&frame));
        }
    }

    /// The next frame; fails the test if the connection ends.
    pub async fn frame(&mut self) -> Value {
        match self.see().await {
            Seen::Frame(frame) => frame,
            other => panic!("expected a frame, got {other:?}"),
        }
    }

    /// The next frame of that kind; frames before it stay queued.
    pub async fn next_of(&mut self, kind: &str) -> Value {
        let mut passed = VecDeque::new();
        let found = loop {
            let frame = self.frame().await;
            if frame["kind"] == kind {
                break frame;
            }
            passed.push_back(frame);
        };
        passed.extend(self.unpacked.drain(..));
        self.unpacked = passed;
        found
    }

    /// Asserts that the next frame is an error with that code.
    pub async fn expect_error(&mut self, code: &str) -> Value {
        let frame = self.frame().await;
        assert_eq!((&frame["kind"], &frame["code"]), (&json!("error"), &json!(code)), "{frame}");
        let reason = frame["reason"].as_str().unwrap_or_default();
        assert!(!reason.is_empty() && !reason.contains(TOKEN), "{frame}");
        frame
    }

    /// Asserts that a close frame with that code follows, and then the end of the connection.
    pub async fn expect_close(&mut self, code: &str) {
        let seen = self.see().await;
        assert_eq!(seen, Seen::Close { status: 1008, reason: code.to_owned() });
        assert_eq!(self.see().await, Seen::Ended);
    }

    /// All frames that the broker sends in response to the frames so far.
    pub async fn drain(&mut self) -> Vec<Value> {
        self.send(json!({"kind": "list_connected", "role": "unused-role"})).await;
        let mut frames = Vec::new();
        loop {
            match self.frame().await {
                frame if frame["kind"] == "connected" && frame["ids"] == json!([]) => return frames,
                frame => frames.push(frame),
            }
        }
    }

    pub async fn subscribe(&mut self) {
        self.send(json!({"kind": "subscribe"})).await;
        self.roundtrip().await;
    }

    /// Waits until the broker has processed all frames sent so far: the frames of a version 1 peer are processed in
    /// order.
    pub async fn roundtrip(&mut self) {
        self.send(json!({"kind": "list_connected", "role": "unused-role"})).await;
        self.next_of("connected").await;
    }

    /// Sends a message as a version 1 peer and waits for its receipt.
    pub async fn deliver(&mut self, to: &str, id: &str, body: Value) {
        self.send(deliver(to, id, body)).await;
        let receipt = self.next_of("delivered").await;
        assert_eq!(receipt["id"], id);
    }

    /// Asserts that the next message has that id.
    pub async fn expect_message(&mut self, id: &str) -> Value {
        let frame = self.next_of("message").await;
        assert_eq!(frame["message"]["id"], id, "{frame}");
        frame
    }

    pub async fn ack(&mut self, id: &str) {
        self.send(json!({"kind": "ack", "id": id})).await;
    }

    /// Acknowledges and waits until the acknowledgement is durable.
    pub async fn ack_confirmed(&mut self, id: &str) -> Value {
        self.send(json!({"kind": "ack_with_receipt", "id": id, "request_id": "ack"})).await;
        self.next_of("ack_result").await
    }
}

/// Reads exactly to the end of the response head.
async fn read_head(socket: &mut TcpStream) -> Vec<u8> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match socket.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    head
}

fn as_json(frame: &BrokerFrame) -> Value {
    match wire::write_broker(frame) {
        Ok(text) => serde_json::from_str(&text).expect("a frame is JSON"),
        // The body is not JSON.
        Err(_) => match frame {
            BrokerFrame::Message(push) => json!({"kind": "message", "message": {"id": &*push.envelope.id}}),
            other => json!({"kind": other.kind()}),
        },
    }
}
