//! One end of a WebSocket that follows the protocol as far as a test wants it to. Frames are seen as JSON values in
//! either framing, so that what is asserted is what is on the wire.

use super::{Answer, TOKEN, upgrade_request, within};
use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_websockets::{ClientBuilder, Limits, Message, WebSocketStream};
use toolbus_protocol::{AgentRef, BrokerFrame, ClientFrame, compact, json as wire};

pub struct Peer {
    socket: WebSocketStream<TcpStream>,
    /// Frames of a binary message that were not looked at yet.
    unpacked: VecDeque<Value>,
}

/// What a peer gets to see of the broker.
#[derive(Debug, PartialEq)]
pub enum Seen {
    Frame(Value),
    Close {
        status: u16,
        reason: String,
    },
    /// The connection ended.
    Gone,
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

/// A WebSocket frame as a client sends it, under a mask of zeros. The first byte is the caller's.
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
    /// A WebSocket that has not said hello.
    pub async fn connect(address: SocketAddr) -> Self {
        let socket = within("a TCP connection", TcpStream::connect(address)).await.expect("the broker accepts");
        socket.set_nodelay(true).expect("a socket");
        Self::upgrade(socket, address, b"").await
    }

    /// The same where the broker may have no room; `None` then.
    pub async fn try_connect(address: SocketAddr) -> Option<Self> {
        let mut socket = TcpStream::connect(address).await.ok()?;
        socket.set_nodelay(true).ok()?;
        socket.write_all(upgrade_request(address, "/bus", "").as_bytes()).await.ok()?;
        let head = within("the answer to an upgrade", read_head(&mut socket)).await;
        let socket = ClientBuilder::new().limits(Limits::default()).take_over(socket);
        (Answer::parse(&head).status == 101).then_some(Self { socket, unpacked: VecDeque::new() })
    }

    /// Turns a TCP connection into a WebSocket. `early` goes out in the same write as the request.
    pub async fn upgrade(socket: TcpStream, address: SocketAddr, early: &[u8]) -> Self {
        let mut request = upgrade_request(address, "/bus", "").into_bytes();
        request.extend_from_slice(early);
        Self::upgrade_by(socket, request).await
    }

    /// The same with more header lines.
    pub async fn upgrade_with(socket: TcpStream, address: SocketAddr, header: &str) -> Self {
        Self::upgrade_by(socket, upgrade_request(address, "/bus", header).into_bytes()).await
    }

    async fn upgrade_by(mut socket: TcpStream, request: Vec<u8>) -> Self {
        socket.write_all(&request).await.expect("the request goes out");
        let head = within("the answer to an upgrade", read_head(&mut socket)).await;
        assert_eq!(Answer::parse(&head).status, 101, "{}", String::from_utf8_lossy(&head));
        let limits = Limits::default().max_payload_len(Some(256 << 20));
        let socket = ClientBuilder::new().limits(limits).take_over(socket);
        Self { socket, unpacked: VecDeque::new() }
    }

    /// A peer that was let in.
    pub async fn join(address: SocketAddr, hello: Value) -> Self {
        let mut peer = Self::connect(address).await;
        peer.send(hello).await;
        assert_eq!(peer.frame().await["kind"], "welcome");
        assert_eq!(peer.frame().await["kind"], "broker_identity");
        peer
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

    /// The broker may have closed already, which a test finds out by reading.
    async fn send_message(&mut self, message: Message) {
        within("room to send", self.socket.send(message)).await.ok();
    }

    /// Bytes past the WebSocket layer.
    pub async fn send_raw(&mut self, bytes: &[u8]) {
        within("room to send", self.socket.get_mut().write_all(bytes)).await.ok();
    }

    /// The TCP connection itself, for peers that no longer care about WebSockets.
    pub fn into_tcp(self) -> TcpStream {
        self.socket.into_inner()
    }

    pub async fn see(&mut self) -> Seen {
        within("something from the broker", async {
            loop {
                if let Some(frame) = self.unpacked.pop_front() {
                    return Seen::Frame(frame);
                }
                let Some(Ok(message)) = self.socket.next().await else { return Seen::Gone };
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

    /// The next frame of that kind; others before it stay for later.
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

    /// The next frame is an error with that code.
    pub async fn expect_error(&mut self, code: &str) -> Value {
        let frame = self.frame().await;
        assert_eq!((&frame["kind"], &frame["code"]), (&json!("error"), &json!(code)), "{frame}");
        let reason = frame["reason"].as_str().unwrap_or_default();
        assert!(!reason.is_empty() && !reason.contains(TOKEN), "{frame}");
        frame
    }

    /// The broker says goodbye with that code, and then the connection ends.
    pub async fn expect_close(&mut self, code: &str) {
        let seen = self.see().await;
        assert_eq!(seen, Seen::Close { status: 1008, reason: code.to_owned() });
        assert_eq!(self.see().await, Seen::Gone);
    }

    /// Everything that the broker has sent and is going to send for what it was sent so far.
    pub async fn drain(&mut self) -> Vec<Value> {
        self.send(json!({"kind": "list_connected", "role": "nobody has this role"})).await;
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
        self.settle().await;
    }

    /// Waits until the broker has dealt with everything sent so far; a version 1 peer's frames are handled in order.
    pub async fn settle(&mut self) {
        self.send(json!({"kind": "list_connected", "role": "nobody has this role"})).await;
        self.next_of("connected").await;
    }

    /// Sends a message as a version 1 peer and waits for its receipt.
    pub async fn deliver(&mut self, to: &str, id: &str, body: Value) {
        self.send(deliver(to, id, body)).await;
        let receipt = self.next_of("delivered").await;
        assert_eq!(receipt["id"], id);
    }

    /// The next message has that id.
    pub async fn expect_message(&mut self, id: &str) -> Value {
        let frame = self.next_of("message").await;
        assert_eq!(frame["message"]["id"], id, "{frame}");
        frame
    }

    pub async fn ack(&mut self, id: &str) {
        self.send(json!({"kind": "ack", "id": id})).await;
    }

    /// Acknowledges and waits until that is on disk.
    pub async fn ack_confirmed(&mut self, id: &str) -> Value {
        self.send(json!({"kind": "ack_with_receipt", "id": id, "request_id": "the ack"})).await;
        self.next_of("ack_result").await
    }
}

/// Reads to the end of a head and not a byte further.
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
        // A body that no JSON can hold.
        Err(_) => match frame {
            BrokerFrame::Message(push) => json!({"kind": "message", "message": {"id": &*push.envelope.id}}),
            other => json!({"kind": other.kind()}),
        },
    }
}
