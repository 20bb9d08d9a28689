//! Floods of connections: limits and timeouts of unauthenticated peers, the connection limit, and established
//! connections that are not affected.

use crate::healthy_pair::HealthyPair;
use crate::support::{
    Bus, Credentials, Framing, HOUR, Logs, MIB, Peer, Seen, Setup, WORKER, exclusive, hello, hello_as, masked_frame,
    resident_bytes, upgrade_request, within,
};
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use toolbus_broker::ServerOptions;

async fn bus_with(server: ServerOptions) -> Bus {
    Bus::with(Setup { server, ..Setup::default() }).await
}

/// Whether a new peer can connect. It may be dropped at any point while unauthenticated peers use up their limit.
async fn can_connect(bus: &Bus) -> bool {
    let attempt = async {
        let mut socket = TcpStream::connect(bus.address).await.ok()?;
        socket.write_all(upgrade_request(bus.address, "/bus", "").as_bytes()).await.ok()?;
        socket.write_all(&masked_frame(0x81, hello("new").to_string().as_bytes())).await.ok()?;
        let mut buffer = vec![0; 4096];
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains("welcome") {
            let count = socket.read(&mut buffer).await.ok().filter(|count| *count > 0)?;
            seen.extend_from_slice(&buffer[..count]);
        }
        Some(())
    };
    within("a response or a close", attempt).await.is_some()
}

#[tokio::test]
async fn silent_sockets_block_neither_new_nor_established_connections() {
    let server =
        ServerOptions { max_unknown_peers: 16, hello_timeout: Duration::from_millis(500), ..ServerOptions::default() };
    let bus = bus_with(server).await;
    let mut healthy = HealthyPair::join(&bus).await;
    let mut silent = Vec::new();
    for n in 0..400 {
        silent.push(TcpStream::connect(bus.address).await.expect("the kernel accepts"));
        if n % 100 == 0 {
            healthy.exchange_message().await;
        }
    }
    healthy.exchange_message().await;
    // The test keeps all of them open; the broker closes them after the timeout.
    within("a free permit", async {
        while !can_connect(&bus).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    healthy.exchange_message().await;
    drop(silent);
}

#[tokio::test]
async fn unauthenticated_peers_over_the_limit_are_dropped_at_once() {
    let server = ServerOptions { max_unknown_peers: 16, hello_timeout: HOUR, ..ServerOptions::default() };
    let bus = bus_with(server).await;
    let mut unauthenticated = Vec::new();
    for _ in 0..50 {
        unauthenticated.push(TcpStream::connect(bus.address).await.expect("the kernel accepts"));
    }
    for dropped in &mut unauthenticated[16..] {
        let mut rest = Vec::new();
        within("the end of the connection", dropped.read_to_end(&mut rest)).await.ok();
    }
    for kept in &mut unauthenticated[..16] {
        kept.write_all(upgrade_request(bus.address, "/bus", "").as_bytes()).await.expect("the connection is open");
        let mut answer = [0; 12];
        within("a response", kept.read_exact(&mut answer)).await.expect("the connection is open");
        assert_eq!(&answer, b"HTTP/1.1 101");
    }
    assert!(!can_connect(&bus).await);
    unauthenticated.truncate(15);
    within("a free permit", async {
        while !can_connect(&bus).await {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn every_silent_socket_is_closed_after_the_timeout() {
    let server =
        ServerOptions { max_unknown_peers: 64, hello_timeout: Duration::from_millis(300), ..ServerOptions::default() };
    let bus = bus_with(server).await;
    let mut silent = Vec::new();
    for n in 0..60 {
        let mut socket = TcpStream::connect(bus.address).await.expect("the broker accepts");
        if n % 2 == 0 {
            socket.write_all(upgrade_request(bus.address, "/bus", "").as_bytes()).await.expect("the request is sent");
        }
        silent.push(socket);
    }
    for mut socket in silent {
        let mut rest = Vec::new();
        within("the end of the connection", socket.read_to_end(&mut rest)).await.ok();
    }
    assert!(can_connect(&bus).await);
}

#[tokio::test]
async fn a_connection_over_the_limit_is_refused_and_the_others_stay() {
    let bus = bus_with(ServerOptions { max_connections: 3, ..ServerOptions::default() }).await;
    let mut healthy = HealthyPair::join(&bus).await;
    let logs = Logs::start();
    let third = bus.peer("third").await;
    let mut fourth = Peer::connect(bus.address).await;
    fourth.send(hello("fourth")).await;
    fourth.expect_error("TB0210").await;
    fourth.expect_close("TB0210").await;
    let warnings = logs.warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("TB0210"), "{warnings:?}");
    // A health check needs no place.
    assert_eq!(crate::support::get(bus.address, "/healthz").await.status, 200);
    healthy.exchange_message().await;

    drop(third);
    within("the released permit", async {
        while !can_connect(&bus).await {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Connects an agent with a credential of its own; `false` if its connection limit is reached.
async fn is_admitted(bus: &Bus, agent: &str, mailbox: &str, kept: &mut Vec<Peer>) -> bool {
    let mut peer = Peer::connect(bus.address).await;
    peer.send(hello_as(agent, mailbox, None, Framing::Json)).await;
    match peer.frame().await {
        frame if frame["kind"] == "welcome" => kept.push(peer),
        frame => {
            assert_eq!((&frame["kind"], &frame["code"]), (&json!("error"), &json!("TB0210")), "{frame}");
            peer.expect_close("TB0210").await;
            return false;
        }
    }
    true
}

#[tokio::test]
async fn an_agent_has_its_own_connection_limit_and_gets_its_connections_back() {
    let credentials = Credentials::default().add("w", "worker", WORKER).add("v", "worker", WORKER);
    let server = ServerOptions { max_connections: 12, ..ServerOptions::default() };
    let bus = Bus::with_credentials(Setup { server, ..Setup::default() }, &credentials).await;
    let (mut of_w, mut of_v) = (Vec::new(), Vec::new());
    // Twice, because a permit that is returned once too often shows only in the second round.
    for _ in 0..2 {
        for mailbox in ["~", "~#a", "~#b"] {
            within("a free place", async {
                while !is_admitted(&bus, "w", mailbox, &mut of_w).await {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        }
        for _ in 0..3 {
            assert!(!is_admitted(&bus, "w", "~#c", &mut of_w).await, "all mailboxes of an agent count together");
        }
        assert!(is_admitted(&bus, "v", "~", &mut of_v).await, "other agents are not affected");
        of_w.clear();
        of_v.clear();
    }
}

#[tokio::test]
async fn large_frames_before_hello_are_refused_and_memory_is_bounded() {
    let _exclusive = exclusive().await;
    let bus = bus_with(ServerOptions { hello_timeout: HOUR, ..ServerOptions::default() }).await;
    let mut healthy = HealthyPair::join(&bus).await;
    let before = resident_bytes();
    let mut unauthenticated = Vec::new();
    for _ in 0..200 {
        let mut peer = Peer::connect(bus.address).await;
        // A frame of the maximum size without its last byte, kept open.
        let frame = masked_frame(0x81, &vec![b' '; 64 << 10]);
        peer.send_raw(&frame[..frame.len() - 1]).await;
        unauthenticated.push(peer);
    }
    healthy.exchange_message().await;
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 80 * MIB, "200 unauthenticated peers cost {} MiB", grown / MIB);
    for mut peer in unauthenticated.into_iter().take(20) {
        peer.send_raw(b" ").await;
        peer.expect_error("TB0101").await;
    }
    for _ in 0..50 {
        let mut peer = Peer::connect(bus.address).await;
        peer.send_raw(&masked_frame(0x81, &vec![b' '; (64 << 10) + 1])).await;
        peer.expect_error("TB0105").await;
    }
    healthy.exchange_message().await;
}

/// Each ping queues a pong, and a peer that does not read makes the broker keep them in memory.
#[tokio::test]
async fn queued_pongs_of_an_unauthenticated_peer_are_bounded() {
    let _exclusive = exclusive().await;
    let bus = Bus::start().await;
    let before = resident_bytes();
    let mut peer = Peer::connect(bus.address).await;
    let pings = masked_frame(0x89, &[b'?'; 125]).repeat(4096);
    let flood = async {
        // 128 MiB at most, far more than the socket buffers hold.
        for _ in 0..240 {
            peer.send_raw(&pings).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(3), flood).await.ok();
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 40 * MIB, "one unauthenticated peer cost {} MiB", grown / MIB);
}

#[tokio::test]
async fn a_thousand_wrong_tokens_do_not_affect_other_peers() {
    let bus = Bus::start().await;
    let mut healthy = HealthyPair::join(&bus).await;
    for n in 0..1000 {
        let mut peer = Peer::connect(bus.address).await;
        let mut frame = hello("guesser");
        frame["token"] = format!("guess-{n}").into();
        peer.send(frame).await;
        peer.expect_error("TB0103").await;
        assert!(matches!(peer.see().await, Seen::Close { .. }));
    }
    healthy.exchange_message().await;
    bus.peer("new").await.deliver("other", "m", json!(1)).await;
}
