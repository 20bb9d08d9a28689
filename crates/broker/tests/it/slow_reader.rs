//! A subscriber that does not read: the broker's memory stays bounded, senders get their receipts, and unread messages
//! are redelivered to the next subscriber.

use crate::healthy_pair::HealthyPair;
use crate::support::{Bus, Logs, MIB, Peer, Seen, Setup, deliver, exclusive, hello, resident_bytes};
use serde_json::json;
use std::time::Duration;
use tokio::net::TcpSocket;
use toolbus_broker::{CoreOptions, ServerOptions};
use toolbus_engine::EngineOptions;

const HEARTBEAT: Duration = Duration::from_millis(400);

/// A window larger than the socket buffers, so that writes to a peer that doesn't read block.
fn wide_window() -> Setup {
    let engine = EngineOptions { window_bytes: 24 << 20, unsettled_bytes: 8 << 20, ..EngineOptions::default() };
    let core = CoreOptions { engine, ..CoreOptions::default() };
    Setup { server: ServerOptions { heartbeat: HEARTBEAT, ..ServerOptions::default() }, core }
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
    assert!((1..24).contains(&pushed_before), "{pushed_before} MiB in a window of 24");
    next.roundtrip().await;
    drop(idle);
}

#[tokio::test]
async fn a_slow_reader_gets_the_reason_of_its_close() {
    let _exclusive = exclusive().await;
    let bus = Bus::with(wide_window()).await;
    let mut sender = bus.peer("sender").await;
    let logs = Logs::start();
    let mut healthy = HealthyPair::join(&bus).await;
    let mut idle = narrow_subscriber(&bus, "idle").await;
    flood(&mut sender, "idle", 20, &mut healthy).await;
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
    let bus = Bus::with(Setup {
        server: ServerOptions { heartbeat: HEARTBEAT, ..ServerOptions::default() },
        ..Setup::default()
    })
    .await;
    let idle = bus.subscriber("idle").await;
    let mut sender = bus.peer("sender").await;
    sender.deliver("idle", "m", json!(1)).await;
    crate::support::within("the idle subscriber to be dropped", async {
        loop {
            sender.send(json!({"kind": "list_connected", "role": "tester"})).await;
            if sender.next_of("connected").await["ids"] == json!([]) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let frame = bus.subscriber("idle").await.expect_message("m").await;
    assert_eq!(frame["attempt"], 2);
    drop(idle);
}

/// Slow is not stuck: a peer on a slow link that keeps reading stays connected.
#[tokio::test]
async fn a_slow_but_steady_reader_stays_connected() {
    let _exclusive = exclusive().await;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    const HEARTBEAT: Duration = Duration::from_secs(2);
    let mut setup = wide_window();
    setup.server.heartbeat = HEARTBEAT;
    let bus = Bus::with(setup).await;
    let mut sender = bus.peer("sender").await;
    let logs = Logs::start();
    let mut healthy = HealthyPair::join(&bus).await;
    let mut steady = narrow_subscriber(&bus, "steady").await.into_tcp();
    flood(&mut sender, "steady", 22, &mut healthy).await;
    let started = std::time::Instant::now();
    let mut buffer = vec![0; 160 << 10];
    // At 2 MB/s, for longer than the slow-reader timeout; reading all of it would take even longer.
    while started.elapsed() < HEARTBEAT * 7 / 2 {
        let taken = crate::support::within("bytes", steady.read_exact(&mut buffer)).await;
        taken.unwrap_or_else(|error| panic!("closed after {:?}: {error}, {}", started.elapsed(), logs.text()));
        // A pong, so that the heartbeat does not drop the connection.
        steady.write_all(&[0x8a, 0x80, 0, 0, 0, 0]).await.expect("the connection is open");
        tokio::time::sleep(Duration::from_millis(80)).await;
    }
    assert_eq!(logs.warnings(), Vec::<String>::new());
}
