//! Segments of peers with the original's framing are acknowledged after each read, those of other peers are not.

use super::serve;
use crate::core::{BrokerCore, CoreOptions};
use crate::handshake::handshake;
use crate::prefixed::{Prefixed, Transport};
use crate::presented::PresentedCredentials;
use crate::server::BrokerServer;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use hyper::HeaderMap;
use serde_json::{Value, json};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_websockets::{ClientBuilder, Message, WebSocketStream};

/// A pipe that counts how often it is told to acknowledge.
struct Counting {
    pipe: DuplexStream,
    acknowledged: Arc<AtomicUsize>,
}

impl Transport for Counting {
    fn acknowledge(&self) {
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
    }
}

impl AsyncRead for Counting {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Counting {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}

struct Connected {
    peer: WebSocketStream<DuplexStream>,
    acknowledged: Arc<AtomicUsize>,
    _folder: TempDir,
}

async fn connect(hello: Value) -> Connected {
    let folder = TempDir::new().expect("a folder");
    let core = BrokerCore::open(folder.path(), CoreOptions::default()).expect("the folder opens");
    let server = BrokerServer::new(core, "token");
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let socket = Prefixed::new(Bytes::new(), Counting { pipe: ours, acknowledged: Arc::clone(&acknowledged) });
    tokio::spawn(async move {
        let presented = PresentedCredentials::in_request(&HeaderMap::new(), None);
        let accepted = handshake(socket, presented, server.shared()).await.expect("the token is right");
        serve(accepted, server.shared()).await;
    });
    let mut peer = ClientBuilder::new().take_over(theirs);
    peer.send(Message::text(hello.to_string())).await.expect("the broker reads");
    peer.next().await.expect("a welcome").expect("a welcome");
    Connected { peer, acknowledged, _folder: folder }
}

/// Waits for the pong, which is sent once the frame is read.
async fn send(connected: &mut Connected, frame: Message) {
    connected.peer.send(frame).await.expect("the broker reads");
    connected.peer.send(Message::ping(Bytes::new())).await.expect("the broker reads");
    while !connected.peer.next().await.expect("a pong").expect("a pong").is_pong() {}
}

#[tokio::test]
async fn each_read_from_a_peer_with_the_originals_framing_is_acknowledged() {
    let mut connected = connect(json!({"kind": "hello", "agent": {"session_id": "a"}, "token": "token"})).await;
    for _ in 0..3 {
        let before = connected.acknowledged.load(Ordering::Relaxed);
        // No frame answers it.
        send(&mut connected, Message::text(json!({"kind": "subscribe"}).to_string())).await;
        assert!(connected.acknowledged.load(Ordering::Relaxed) > before);
    }
}

#[tokio::test]
async fn the_compact_framing_costs_no_system_call_for_acknowledgements() {
    let hello = json!({
        "kind": "hello", "agent": {"session_id": "a"}, "token": "token", "version": 2, "framing": "compact",
    });
    let mut connected = connect(hello).await;
    send(&mut connected, Message::ping(Bytes::new())).await;
    assert_eq!(connected.acknowledged.load(Ordering::Relaxed), 0);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn acknowledging_ends_the_delay_of_a_tcp_socket() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let peer = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("it listens");
    let (socket, _) = listener.accept().await.expect("a connection");
    for end in [&socket, &peer] {
        end.set_quickack(false).expect("a socket option");
        end.acknowledge();
        assert!(end.quickack().expect("a socket option"));
    }
}
