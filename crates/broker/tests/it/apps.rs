//! HTTP applications on the broker's port: responses, streams, keep-alive, connection permits, slow bodies, shutdown.

use crate::support::{Bus, Setup, get, request, within};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Request, Response};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use toolbus_broker::{AppFuture, HttpApp, Identity, PeerAddress, PeerConnection, Rights, ServerOptions, read_body};
use toolbus_protocol::AgentRef;

/// Responds with the method, the peer's address and the body.
pub struct Echo;

impl HttpApp for Echo {
    fn call(&self, request: Request<Incoming>) -> AppFuture {
        Box::pin(async move {
            let method = request.method().clone();
            let peer = request.extensions().get::<PeerAddress>().expect("the peer address is set").0.ip();
            let text = match read_body(request.into_body(), 1000, Duration::from_millis(200)).await {
                Ok(body) => format!("{method} from {peer}: {}", String::from_utf8_lossy(&body)),
                Err(error) => format!("no body: {error}"),
            };
            Response::new(Full::new(Bytes::from(text)).boxed_unsync())
        })
    }
}

/// A stream that sends one chunk and then stays open.
struct Endless;

impl HttpApp for Endless {
    fn call(&self, request: Request<Incoming>) -> AppFuture {
        let connection = request.extensions().get::<PeerConnection>().expect("the connection is set");
        if let Err(refusal) = connection.belongs_to(&Identity::local(AgentRef::new("reader"), Rights::OPERATOR)) {
            return Box::pin(std::future::ready(*refusal));
        }
        Box::pin(async {
            let first = futures_util::stream::once(async { Ok::<_, Infallible>(Frame::data(Bytes::from("first\n"))) });
            let stream = futures_util::StreamExt::chain(first, futures_util::stream::pending());
            Response::new(StreamBody::new(stream).boxed_unsync())
        })
    }
}

async fn bus_with(app: impl HttpApp, server: ServerOptions) -> Bus {
    let bus = Bus::with(Setup { server, ..Setup::default() }).await;
    bus.server().mount("/mcp", Arc::new(app));
    bus
}

fn post(body: &str) -> String {
    format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

async fn read_until(socket: &mut TcpStream, end: &str) -> String {
    within(end, async {
        let mut text = String::new();
        while !text.ends_with(end) {
            text.push(char::from(socket.read_u8().await.expect("the connection stays open")));
        }
        text
    })
    .await
}

#[tokio::test]
async fn an_app_handles_all_methods_on_its_path_only() {
    let bus = bus_with(Echo, ServerOptions::default()).await;
    for method in ["GET", "POST", "DELETE", "OPTIONS", "PUT"] {
        let line = format!("{method} /mcp?x=1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let answer = request(bus.address, line).await;
        assert_eq!((answer.status, answer.body), (200, format!("{method} from 127.0.0.1: ")));
    }
    assert_eq!(get(bus.address, "/mcp/more").await.status, 404);
    assert_eq!(get(bus.address, "/healthz").await.status, 200);
}

#[tokio::test]
async fn a_keep_alive_connection_outlives_the_hello_timeout() {
    let server = ServerOptions { hello_timeout: Duration::from_millis(100), ..ServerOptions::default() };
    let bus = bus_with(Echo, server).await;
    let mut socket = TcpStream::connect(bus.address).await.expect("the broker accepts");
    for word in ["one", "two", "three"] {
        socket.write_all(post(word).as_bytes()).await.expect("the request is sent");
        let answer = read_until(&mut socket, &format!("127.0.0.1: {word}")).await;
        assert!(!answer.to_lowercase().contains("connection: close"), "{answer}");
        // Longer than the hello timeout, which applies to the first request only.
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_or_stalls_is_refused() {
    let bus = bus_with(Echo, ServerOptions::default()).await;
    let silent = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 10\r\n\r\nhal";
    let answer = request(bus.address, silent).await;
    assert!(answer.body.starts_with("no body: timeout"), "{}", answer.body);
    let announced = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1001\r\n\r\n";
    assert_eq!(request(bus.address, announced).await.body, "no body: the body is larger than 1000 bytes");
    let chunked = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n{}\r\n0\r\n\r\n",
        "x".repeat(1001)
    );
    assert_eq!(request(bus.address, chunked).await.body, "no body: the body is larger than 1000 bytes");
}

#[tokio::test]
async fn a_stream_ends_cleanly_when_the_broker_stops() {
    let bus = bus_with(Endless, ServerOptions::default()).await;
    let mut socket = TcpStream::connect(bus.address).await.expect("the broker accepts");
    socket.write_all(post("").as_bytes()).await.expect("the request is sent");
    read_until(&mut socket, "first\n\r\n").await;
    bus.stop().await;
    let mut rest = String::new();
    within("the end of the stream", socket.read_to_string(&mut rest)).await.expect("the stream ends cleanly");
    assert_eq!(rest, "0\r\n\r\n", "the last chunk");
}

#[tokio::test]
async fn streams_hold_connection_permits_but_none_of_unknown_peers() {
    let server = ServerOptions { max_connections: 2, max_unknown_peers: 1, ..ServerOptions::default() };
    let bus = bus_with(Endless, server).await;
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut socket = TcpStream::connect(bus.address).await.expect("the broker accepts");
        socket.write_all(post("").as_bytes()).await.expect("the request is sent");
        read_until(&mut socket, "first\n\r\n").await;
        streams.push(socket);
    }
    let third = request(bus.address, post("")).await;
    assert_eq!(third.status, 503);
    assert!(third.body.starts_with("TB0210"), "{}", third.body);
    streams.pop();
    within("the permit of the dropped stream", async {
        loop {
            let mut socket = TcpStream::connect(bus.address).await.expect("the broker accepts");
            socket.write_all(post("").as_bytes()).await.ok();
            let mut head = [0; 12];
            if socket.read_exact(&mut head).await.is_ok() && &head == b"HTTP/1.1 200" {
                break;
            }
        }
    })
    .await;
}
