//! A subscriber that does not read: the broker's memory stays bounded, senders get their receipts, and unread messages
//! are redelivered to the next subscriber.

use crate::healthy_pair::HealthyPair;
use crate::support::{Bus, HOUR, Logs, MIB, Peer, Seen, Setup, deliver, exclusive, hello, resident_bytes, skip};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use toolbus_broker::{CoreOptions, ServerOptions};
use toolbus_engine::EngineOptions;

/// A window larger than the socket buffers, so that writes to a peer that doesn't read block.
fn wide_window() -> Setup {
    let engine = EngineOptions { window_bytes: 24 << 20, unsettled_bytes: 8 << 20, ..EngineOptions::default() };
    let core = CoreOptions { engine, ..CoreOptions::default() };
    Setup { server: without_heartbeat(), core }
}

fn without_heartbeat() -> ServerOptions {
    ServerOptions { heartbeat: HOUR, ..ServerOptions::default() }
}

/// A subscriber with a small receive buffer.
async fn narrow_subscriber(bus: &Bus, name: &str) -> Peer {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(16 << 10).expect("a small buffer");
    let socket = socket.connect(bus.address).await.expect("the broker accepts");
    let mut peer = Peer::upgrade(socket, bus.address, b"").await;
    peer.send(hello(name)).await;
    for kind in ["welcome", "broker_identity"] {
        assert_eq!(peer.frame().await["kind"], kind);
    }
    peer.subscribe().await;
    peer
}

fn id(n: usize) -> String {
    format!("m-{n}")
}

/// Sends messages of 1 MiB without waiting for receipts in between, and returns the peak memory.
async fn flood(sender: &mut Peer, to: &str, count: usize, healthy: &mut HealthyPair) -> usize {
    let body = json!("x".repeat(MIB));
    let mut peak = 0;
    for n in 0..count {
        sender.send(deliver(to, &id(n), body.clone())).await;
        peak = peak.max(resident_bytes());
        if n % 8 == 0 {
            healthy.exchange_message().await;
        }
    }
    for n in 0..count {
        let receipt = sender.next_of("delivered").await;
        assert_eq!(receipt["id"], id(n));
    }
    peak.max(resident_bytes())
}

#[tokio::test]
async fn a_subscriber_that_never_reads_costs_bounded_memory_and_no_messages() {
    let _exclusive = exclusive().await;
    const COUNT: usize = 96;
    let bus = Bus::with(wide_window()).await;
    let mut healthy = HealthyPair::join(&bus).await;
    let mut sender = bus.peer("sender").await;
    let logs = Logs::start();
    let idle = narrow_subscriber(&bus, "idle").await;
    let before = resident_bytes();
    let peak = flood(&mut sender, "idle", COUNT, &mut healthy).await;
    let grown = peak.saturating_sub(before);
    println!("{COUNT} MiB to a peer that doesn't read cost {} MiB", grown / MIB);
    assert!(grown < 72 * MIB, "{COUNT} MiB to a peer that doesn't read cost {} MiB", grown / MIB);
    healthy.exchange_message().await;

    assert_eq!(logs.warnings(), Vec::<String>::new(), "it is closed only after the timeout");
    skip(HOUR * 2).await;
    let line = logs.line_with("TB0211").await;
    assert!(line.contains("WARN") && line.contains("idle"), "{line}");
    let mut next = bus.subscriber("idle").await;
    let mut pushed_before = 0;
    for n in 0..COUNT {
        let frame = next.expect_message(&id(n)).await;
        assert_eq!(frame["message"]["body"].as_str().map(str::len), Some(MIB));
        if frame["attempt"] == 2 {
            assert_eq!(pushed_before, n, "only messages in the window were pushed before");
            pushed_before += 1;
        }
        next.ack(&id(n)).await;
    }
    // What the buffers of the socket hold does not count in the window of a version 1 peer.
    assert!((1..32).contains(&pushed_before), "{pushed_before} MiB in a window of 24");
    next.roundtrip().await;
    drop(idle);
}

/// On pipes, so that the time that the broker grants for the close reason does not depend on the machine.
#[tokio::test]
async fn a_slow_reader_gets_the_reason_of_its_close() {
    let bus = Bus::with(wide_window()).await;
    let mut idle = bus.piped_peer("idle").await;
    idle.subscribe().await;
    let mut sender = bus.piped_peer("sender").await;
    for n in 0..3 {
        sender.deliver("idle", &id(n), json!("x".repeat(MIB))).await;
    }
    let logs = Logs::start();
    tokio::time::pause();
    tokio::time::advance(HOUR * 2).await;
    logs.line_with("TB0211").await;
    let mut messages = 0;
    let error = loop {
        match idle.see().await {
            Seen::Frame(frame) if frame["kind"] == "message" => messages += 1,
            Seen::Frame(frame) => break frame,
            other => panic!("after {messages} messages: {other:?}"),
        }
    };
    assert_eq!((&error["kind"], &error["code"]), (&json!("error"), &json!("TB0211")), "{error}");
    idle.expect_close("TB0211").await;
}

/// Writes of a window that fits into the socket buffers do not block; such a peer is detected by the heartbeat.
#[tokio::test]
async fn a_subscriber_that_stops_reading_is_dropped_even_if_its_buffers_have_room() {
    let bus = Bus::with(Setup { server: without_heartbeat(), ..Setup::default() }).await;
    let idle = bus.subscriber("idle").await;
    let mut sender = bus.peer("sender").await;
    sender.deliver("idle", "m", json!(1)).await;
    let mut ticks = 0;
    loop {
        sender.send(json!({"kind": "list_connected", "role": "tester"})).await;
        if sender.next_of("connected").await["ids"] == json!([]) {
            break;
        }
        // One tick of the heartbeat, in which the sender is not silent.
        skip(HOUR / 2).await;
        ticks += 1;
        assert!(ticks < 50, "the idle subscriber is still connected");
    }
    assert!(ticks >= 5, "dropped after {ticks} of 5 ticks");
    let frame = bus.subscriber("idle").await.expect_message("m").await;
    assert_eq!(frame["attempt"], 2);
    drop(idle);
}

/// Slow is not stuck: a peer on a slow link that keeps reading stays connected.
#[tokio::test]
async fn a_slow_but_steady_reader_stays_connected() {
    const COUNT: usize = 3;
    let bus = Bus::with(wide_window()).await;
    let mut steady = bus.piped_peer("steady").await;
    steady.subscribe().await;
    let mut sender = bus.piped_peer("sender").await;
    for n in 0..COUNT {
        sender.deliver("steady", &id(n), json!("x".repeat(MIB))).await;
    }
    let logs = Logs::start();
    tokio::time::pause();
    let mut steady = steady.into_pipe();
    let mut read = Vec::new();
    // Much longer than the slow-reader timeout of two heartbeats, in which it does not read everything.
    for _ in 0..40 {
        let mut buffer = vec![0; 16 << 10];
        let taken = crate::support::within("bytes", steady.read_exact(&mut buffer)).await;
        taken.unwrap_or_else(|error| panic!("closed after {} bytes: {error}, {}", read.len(), logs.text()));
        read.extend(buffer);
        // A pong, so that the heartbeat does not drop the connection.
        steady.write_all(&[0x8a, 0x80, 0, 0, 0, 0]).await.expect("the connection is open");
        tokio::time::advance(HOUR / 2).await;
    }
    assert_eq!(logs.warnings(), Vec::<String>::new());
    assert!(read.len() < MIB, "it was blocked all the time");
    let mut rest = vec![0; COUNT * MIB - read.len()];
    crate::support::within("the rest", steady.read_exact(&mut rest)).await.expect("the connection is open");
}
