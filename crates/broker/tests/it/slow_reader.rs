//! A subscriber that does not read: the broker's memory stays bounded, senders get their receipts, and what it did not
//! take comes again to the next one.

use crate::support::{Bus, Logs, MIB, Peer, Seen, Setup, alone, deliver, hello, resident_bytes};
use crate::witness::Witness;
use serde_json::json;
use std::time::Duration;
use tokio::net::TcpSocket;
use toolbus_broker::{CoreOptions, ServerOptions};
use toolbus_engine::EngineOptions;

const HEARTBEAT: Duration = Duration::from_millis(400);

/// A window that does not fit into the buffers of a socket, so that a peer that doesn't read is felt.
fn wide_window() -> Setup {
    let engine = EngineOptions { window_bytes: 24 << 20, unsettled_bytes: 8 << 20, ..EngineOptions::default() };
    let core = CoreOptions { engine, ..CoreOptions::default() };
    Setup { server: ServerOptions { heartbeat: HEARTBEAT, ..ServerOptions::default() }, core }
}

/// A subscriber whose socket takes little by itself.
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

/// Sends messages of a mebibyte without waiting for receipts in between, and returns the most memory seen meanwhile.
async fn flood(sender: &mut Peer, to: &str, count: usize, witness: &mut Witness) -> usize {
    let body = json!("x".repeat(MIB));
    let mut most = 0;
    for n in 0..count {
        sender.send(deliver(to, &id(n), body.clone())).await;
        most = most.max(resident_bytes());
        if n % 8 == 0 {
            witness.is_served().await;
        }
    }
    for n in 0..count {
        let receipt = sender.next_of("delivered").await;
        assert_eq!(receipt["id"], id(n));
    }
    most.max(resident_bytes())
}

#[tokio::test]
async fn a_subscriber_that_never_reads_costs_little_and_loses_nothing() {
    let _alone = alone().await;
    const COUNT: usize = 96;
    let bus = Bus::with(wide_window()).await;
    let mut witness = Witness::join(&bus).await;
    let mut sender = bus.peer("sender").await;
    let logs = Logs::start();
    let idle = narrow_subscriber(&bus, "idle").await;
    let before = resident_bytes();
    let most = flood(&mut sender, "idle", COUNT, &mut witness).await;
    let grown = most.saturating_sub(before);
    println!("{COUNT} MiB to someone who doesn't read cost {} MiB", grown / MIB);
    assert!(grown < 72 * MIB, "{COUNT} MiB to someone who doesn't read cost {} MiB", grown / MIB);
    witness.is_served().await;

    let line = logs.line_with("TB0211").await;
    assert!(line.contains("WARN") && line.contains("idle"), "{line}");
    let mut next = bus.subscriber("idle").await;
    let mut pushed_before = 0;
    for n in 0..COUNT {
        let frame = next.expect_message(&id(n)).await;
        assert_eq!(frame["message"]["body"].as_str().map(str::len), Some(MIB));
        if frame["attempt"] == 2 {
            assert_eq!(pushed_before, n, "only what was in the window came before");
            pushed_before += 1;
        }
        next.ack(&id(n)).await;
    }
    assert!((1..24).contains(&pushed_before), "{pushed_before} MiB in a window of 24");
    next.settle().await;
    drop(idle);
}

#[tokio::test]
async fn a_slow_reader_that_wakes_up_in_time_is_told_why_it_is_let_go() {
    let _alone = alone().await;
    let bus = Bus::with(wide_window()).await;
    let mut sender = bus.peer("sender").await;
    let logs = Logs::start();
    let mut witness = Witness::join(&bus).await;
    let mut idle = narrow_subscriber(&bus, "idle").await;
    flood(&mut sender, "idle", 20, &mut witness).await;
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

/// A window that fits into the socket's buffers does not block; such a peer is found out because it answers no pings.
#[tokio::test]
async fn a_subscriber_that_stops_reading_is_gone_even_if_everything_fits_into_its_buffers() {
    let bus = Bus::with(Setup {
        server: ServerOptions { heartbeat: HEARTBEAT, ..ServerOptions::default() },
        ..Setup::default()
    })
    .await;
    let idle = bus.subscriber("idle").await;
    let mut sender = bus.peer("sender").await;
    sender.deliver("idle", "m", json!(1)).await;
    crate::support::within("the idle one to be gone", async {
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

/// Slow is not the same as stuck: someone who takes bytes all the time, over a thin line, is served on.
#[tokio::test]
async fn a_reader_that_is_slow_but_steady_is_not_let_go() {
    let _alone = alone().await;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    const HEARTBEAT: Duration = Duration::from_secs(2);
    let mut setup = wide_window();
    setup.server.heartbeat = HEARTBEAT;
    let bus = Bus::with(setup).await;
    let mut sender = bus.peer("sender").await;
    let logs = Logs::start();
    let mut witness = Witness::join(&bus).await;
    let mut steady = narrow_subscriber(&bus, "steady").await.into_tcp();
    flood(&mut sender, "steady", 22, &mut witness).await;
    let started = std::time::Instant::now();
    let mut buffer = vec![0; 160 << 10];
    // For longer than a reader that stands still would be borne, at 2 MB/s: all of it would take longer still.
    while started.elapsed() < HEARTBEAT * 7 / 2 {
        let taken = crate::support::within("bytes", steady.read_exact(&mut buffer)).await;
        taken.unwrap_or_else(|error| panic!("let go after {:?}: {error}, {}", started.elapsed(), logs.text()));
        // A sign of life, so that only slowness is at stake.
        steady.write_all(&[0x8a, 0x80, 0, 0, 0, 0]).await.expect("the connection stands");
        tokio::time::sleep(Duration::from_millis(80)).await;
    }
    assert_eq!(logs.warnings(), Vec::<String>::new());
}
