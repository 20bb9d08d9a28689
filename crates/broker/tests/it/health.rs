//! Plain HTTP on the bus's port: health endpoints, wrong paths, wrong methods, and requests that never complete.

use crate::healthy_pair::HealthyPair;
use crate::support::{Bus, HttpResponse, Peer, Setup, get, request, upgrade_request, within};
use std::future::poll_fn;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use toolbus_broker::ServerOptions;
use toolbus_protocol::{AgentRef, BrokerFrame, ClientFrame};

#[tokio::test]
async fn health_endpoints_respond_and_other_paths_are_404() {
    let bus = Bus::start().await;
    let health = get(bus.address, "/healthz").await;
    assert_eq!((health.status, health.body.as_str()), (200, "ok\n"));
    let ready = get(bus.address, "/readyz").await;
    assert_eq!((ready.status, ready.body.as_str()), (200, "ready\n"));
    for path in ["/nothing", "/bus/", "/bus/..", "//", "/healthz/x", "/HEALTHZ", "/%2e%2e/etc/passwd", "/.."] {
        assert_eq!(get(bus.address, path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn unknown_metadata_is_a_404_in_json() {
    let bus = Bus::start().await;
    let address = bus.address;
    for path in [
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/oauth-authorization-server",
        "/.well-known/openid-configuration?x=1",
        "/mcp/.well-known/openid-configuration",
        "/.well-known/",
        "/.well-known/anything/else",
    ] {
        for method in ["GET", "POST", "OPTIONS"] {
            let response = request(address, format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n\r\n")).await;
            assert_eq!(response.status, 404, "{method} {path}");
            let body: serde_json::Value = serde_json::from_str(&response.body).expect("JSON");
            assert_eq!(body["error"], "not_found", "{method} {path}");
            assert_eq!(response.header("content-type"), Some("application/json"), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_draining_broker_is_not_ready_and_refuses_new_connections_but_serves_the_others() {
    let bus = Bus::start().await;
    let mut healthy = HealthyPair::join(&bus).await;
    bus.server().drain();
    let ready = get(bus.address, "/readyz").await;
    assert_eq!((ready.status, ready.body.as_str()), (503, "stopping\n"));
    assert_eq!(get(bus.address, "/healthz").await.status, 200);
    let mut refused = Peer::connect(bus.address).await;
    refused.send(crate::support::hello("late")).await;
    refused.expect_error("TB0209").await;
    healthy.exchange_message().await;
    // The applications of the broker's own process still open connections.
    let inside = bus.server().attach(AgentRef::new("inside")).expect("a permit");
    inside.send(ClientFrame::ListConnected { role: "tester".into() });
    let is_answered =
        async { while !matches!(poll_fn(|cx| inside.poll_receive(cx)).await, Some(BrokerFrame::Connected { .. })) {} };
    within("the answer to a peer in the broker's process", is_answered).await;
    bus.stop().await;
}

#[tokio::test]
async fn other_methods_get_405_with_the_allowed_one() {
    let bus = Bus::start().await;
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        for path in ["/", "/bus", "/healthz", "/readyz"] {
            let answer = request(bus.address, format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
            assert_eq!(answer.status, 405, "{method} {path}");
            assert_eq!(answer.header("allow"), Some("GET"), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn the_bus_is_at_its_path_and_at_the_root_for_old_clients() {
    let bus = Bus::start().await;
    for path in ["/", "/bus", "/bus?x=1", "/?token=ignored"] {
        let mut socket = TcpStream::connect(bus.address).await.expect("the broker accepts");
        socket.write_all(upgrade_request(bus.address, path, "").as_bytes()).await.expect("the request is sent");
        let mut head = vec![0; 4096];
        let count = within("a response", socket.read(&mut head)).await.expect("a response");
        let answer = HttpResponse::parse(&head[..count]);
        assert_eq!(answer.status, 101, "{path}");
        assert_eq!(answer.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{path}");
        assert_eq!(answer.header("upgrade"), Some("websocket"), "{path}");
    }
}

#[tokio::test]
async fn a_request_without_upgrade_headers_gets_426() {
    let bus = Bus::start().await;
    let good = upgrade_request(bus.address, "/bus", "");
    for missing in ["Connection: Upgrade\r\n", "Upgrade: websocket\r\n", "Sec-WebSocket-Version: 13\r\n"] {
        let answer = request(bus.address, good.replace(missing, "")).await;
        assert_eq!(answer.status, 426, "without {missing}");
        assert_eq!(answer.header("upgrade"), Some("websocket"), "without {missing}");
    }
    let keyless = good.replace("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "");
    assert_eq!(request(bus.address, keyless).await.status, 426);
    assert_eq!(request(bus.address, good.replace("Version: 13", "Version: 8")).await.status, 426);
    assert_eq!(get(bus.address, "/bus").await.status, 426);
}

#[tokio::test]
async fn a_hello_sent_with_the_upgrade_request_is_not_lost() {
    let bus = Bus::start().await;
    let hello = crate::support::hello("impatient").to_string();
    let mut early = crate::support::masked_frame(0x81, hello.as_bytes());
    early.extend(crate::support::masked_frame(0x81, b"{\"kind\":\"list_connected\",\"role\":\"x\"}"));
    let socket = TcpStream::connect(bus.address).await.expect("the broker accepts");
    let mut peer = Peer::upgrade(socket, bus.address, &early).await;
    for kind in ["welcome", "broker_identity", "connected"] {
        assert_eq!(peer.frame().await["kind"], kind);
    }
}

#[tokio::test]
async fn a_head_of_more_than_64_kib_is_refused() {
    let bus = Bus::start().await;
    let mut healthy = HealthyPair::join(&bus).await;
    let long_header = upgrade_request(bus.address, "/bus", &format!("X-Long: {}\r\n", "x".repeat(70 << 10)));
    let long_path = upgrade_request(bus.address, &format!("/{}", "x".repeat(70 << 10)), "");
    let many_headers = upgrade_request(bus.address, "/bus", &"X: y\r\n".repeat(12_000));
    for bytes in [long_header, long_path, many_headers] {
        let answer = request(bus.address, bytes).await;
        assert!([0, 400, 414, 431].contains(&answer.status), "{}", answer.head);
        healthy.exchange_message().await;
    }
}

#[tokio::test]
async fn bytes_that_are_not_http_end_the_connection() {
    let bus = Bus::start().await;
    let mut healthy = HealthyPair::join(&bus).await;
    for bytes in [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], b"\0\0\0\0", b"hello\r\n\r\n", b"GET\r\n\r\n"] {
        let answer = request(bus.address, bytes).await;
        assert!([0, 400].contains(&answer.status), "{}", answer.head);
        healthy.exchange_message().await;
    }
}

/// Reads until the broker closes the connection, and returns how long that took.
async fn until_closed(mut socket: TcpStream) -> Duration {
    let started = Instant::now();
    let mut answer = Vec::new();
    within("the broker to close", socket.read_to_end(&mut answer)).await.ok();
    started.elapsed()
}

#[tokio::test]
async fn incomplete_requests_are_closed_after_the_hello_timeout() {
    let hello_timeout = Duration::from_millis(400);
    let server = ServerOptions { hello_timeout, ..ServerOptions::default() };
    let bus = Bus::with(Setup { server, ..Setup::default() }).await;
    let mut healthy = HealthyPair::join(&bus).await;
    for beginning in ["", "GET /bus HTT", "GET /bus HTTP/1.1\r\nHost: localhost\r\nX-Slow: "] {
        let mut socket = TcpStream::connect(bus.address).await.expect("the broker accepts");
        socket.write_all(beginning.as_bytes()).await.expect("the beginning is sent");
        let took = until_closed(socket).await;
        assert!(took >= hello_timeout / 2 && took < Duration::from_secs(5), "{beginning:?} was closed after {took:?}");
    }
    healthy.exchange_message().await;
}

#[tokio::test]
async fn a_trickle_of_header_bytes_does_not_extend_the_timeout() {
    let server = ServerOptions { hello_timeout: Duration::from_millis(400), ..ServerOptions::default() };
    let bus = Bus::with(Setup { server, ..Setup::default() }).await;
    let mut socket = TcpStream::connect(bus.address).await.expect("the broker accepts");
    socket.write_all(b"GET /bus HTTP/1.1\r\nX-Slow: ").await.expect("the beginning is sent");
    let (mut reading, mut writing) = socket.split();
    let trickle = async {
        while writing.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let mut answer = Vec::new();
    let closed = async { reading.read_to_end(&mut answer).await.ok() };
    within("the broker to close", async {
        tokio::select! {
            () = trickle => {}
            _ = closed => {}
        }
    })
    .await;
}

#[tokio::test]
async fn a_missing_body_does_not_keep_the_connection_open() {
    let server = ServerOptions { hello_timeout: Duration::from_millis(400), ..ServerOptions::default() };
    let bus = Bus::with(Setup { server, ..Setup::default() }).await;
    for head in [
        "POST /bus HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST /bus HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
    ] {
        let mut socket = TcpStream::connect(bus.address).await.expect("the broker accepts");
        socket.write_all(head.as_bytes()).await.expect("the request is sent");
        assert!(until_closed(socket).await < Duration::from_secs(5), "{head}");
    }
}

/// An upgrade happens at the end of the request; a request whose body never arrives must not hold a connection permit.
#[tokio::test]
async fn an_upgrade_that_never_completes_releases_its_permit() {
    let hello_timeout = Duration::from_millis(400);
    let server = ServerOptions { hello_timeout, max_connections: 1, ..ServerOptions::default() };
    let bus = Bus::with(Setup { server, ..Setup::default() }).await;
    for more in
        ["Content-Length: 10\r\n", "Transfer-Encoding: chunked\r\n", "Content-Length: 1\r\nExpect: 100-continue\r\n"]
    {
        let mut socket = TcpStream::connect(bus.address).await.expect("the broker accepts");
        socket.write_all(upgrade_request(bus.address, "/bus", more).as_bytes()).await.expect("the request is sent");
        let took = until_closed(socket).await;
        assert!(took < Duration::from_secs(5), "{more:?} was closed after {took:?}");
        within("the released permit", async {
            while request(bus.address, upgrade_request(bus.address, "/bus", "")).await.status == 503 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }
}
