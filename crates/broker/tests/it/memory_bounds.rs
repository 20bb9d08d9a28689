//! Memory bounds against authenticated peers: thousands of requests in one message, signals for a peer that does not
//! read, small messages within large receive buffers.

use crate::healthy_pair::HealthyPair;
use crate::support::{Bus, HOUR, MIB, Peer, Setup, deliver, exclusive, resident_bytes};
use bytes::{BufMut, Bytes, BytesMut};
use serde_json::json;
use toolbus_broker::{CoreOptions, ServerOptions};
use toolbus_engine::EngineOptions;
use toolbus_protocol::{AgentRef, Body, ClientFrame, Deliver, Event, InboxMessage, compact};

/// Compact frames in one binary message, up to a size.
fn packed(size: usize, mut frame: impl FnMut() -> ClientFrame) -> Bytes {
    let mut bytes = BytesMut::new();
    while bytes.len() < size {
        compact::write_client(&frame(), &AgentRef::new("unused"), &mut bytes);
    }
    bytes.freeze()
}

fn check_grown(before: usize, limit: usize, what: &str) {
    let grown = resident_bytes().saturating_sub(before);
    println!("{what} cost {} MiB", grown / MIB);
    assert!(grown < limit, "{what} cost {} MiB", grown / MIB);
}

/// A version 2 subscriber that stops reading and whose socket buffers are full.
async fn stuck_subscriber(bus: &Bus, sender: &mut Peer) -> Peer {
    let mut stuck = bus.compact_peer("stuck").await;
    stuck.subscribe().await;
    for n in 0..16 {
        sender.deliver("stuck", &format!("plug-{n}"), "x".repeat(MIB).into()).await;
    }
    stuck
}

/// A window larger than the buffers of a socket. A peer that does not read stays, however long the test takes.
fn wide_window() -> Setup {
    let engine = EngineOptions { window_bytes: 16 << 20, ..EngineOptions::default() };
    let server = ServerOptions { heartbeat: HOUR, ..ServerOptions::default() };
    Setup { core: CoreOptions { engine, ..CoreOptions::default() }, server }
}

async fn wide_bus() -> Bus {
    Bus::with(wide_window()).await
}

#[tokio::test]
async fn packed_requests_are_answered_only_as_fast_as_the_peer_reads() {
    let _exclusive = exclusive().await;
    let bus = Bus::start().await;
    let mut healthy = HealthyPair::join(&bus).await;
    let mut sender = bus.peer("sender").await;
    for n in 0..200 {
        sender.deliver(&format!("mailbox-with-a-rather-long-name-{n}"), "m", json!(1)).await;
    }
    let before = resident_bytes();
    let mut curious = bus.compact_peer("curious").await;
    let requests = packed(MIB, || ClientFrame::Status { request_id: "q".into() });
    curious.send_binary(requests).await;
    for _ in 0..20 {
        healthy.exchange_message().await;
    }
    check_grown(before, 64 * MIB, "1 MiB of requests");
    // A peer that reads gets every response.
    let mut reader = bus.compact_peer("reader").await;
    let mut asked = 0;
    let requests = packed(10_000, || {
        asked += 1;
        ClientFrame::Status { request_id: format!("q{asked}").into() }
    });
    reader.send_binary(requests).await;
    for n in 1..=asked {
        assert_eq!(reader.next_of("status").await["request_id"], format!("q{n}"));
    }
}

#[tokio::test]
async fn live_events_for_a_peer_that_does_not_read_are_dropped() {
    let _exclusive = exclusive().await;
    let bus = wide_bus().await;
    let mut healthy = HealthyPair::join(&bus).await;
    let mut sender = bus.peer("sender").await;
    let _stuck = stuck_subscriber(&bus, &mut sender).await;
    let before = resident_bytes();
    let event = json!({"kind": "live_event", "to": "stuck", "correlation_id": "c", "body": "x".repeat(MIB / 2)});
    for _ in 0..200 {
        sender.send(event.clone()).await;
    }
    sender.roundtrip().await;
    check_grown(before, 32 * MIB, "100 MiB of live events");
    healthy.exchange_message().await;
}

#[tokio::test]
async fn cancels_for_a_peer_that_does_not_read_are_dropped() {
    let _exclusive = exclusive().await;
    let bus = wide_bus().await;
    let mut healthy = HealthyPair::join(&bus).await;
    let mut sender = bus.peer("sender").await;
    let _stuck = stuck_subscriber(&bus, &mut sender).await;
    let before = resident_bytes();
    let mut canceller = bus.compact_peer("canceller").await;
    let cancels = packed(MIB, || ClientFrame::Cancel {
        to: "stuck".into(),
        correlation_id: "c".repeat(200).into(),
        request_id: None,
    });
    for _ in 0..100 {
        canceller.send_binary(cancels.clone()).await;
    }
    canceller.roundtrip().await;
    check_grown(before, 32 * MIB, "400,000 cancels");
    healthy.exchange_message().await;
}

/// 1 MiB of padding in the same WebSocket message as a small one.
#[derive(Clone, Copy)]
enum Padding {
    /// A frame with an unknown opcode, skipped by its length.
    UnknownFrame,
    /// A message without a subscriber. Once it is durable, only the small message stays in memory.
    Message,
}

/// A small message and a live event, with padding in the same WebSocket message.
fn padded(to: &str, n: usize, deadline_ms: Option<u64>, padding: Padding) -> Bytes {
    let message = |to: &str, id: String, body: Body| {
        let mut message = InboxMessage::new(AgentRef::new("unused"), "task", body);
        message.id = id.into();
        ClientFrame::Deliver(Deliver { to: to.into(), envelope: message.seal(), deadline_ms, ack: None, age_ms: None })
    };
    let event = Event { peer: to.into(), correlation_id: "c".into(), body: Body::null() };
    let mut frames = vec![message(to, format!("small-{n}"), Body::null()), ClientFrame::Event(event)];
    if matches!(padding, Padding::Message) {
        frames.push(message("absent", format!("padding-{n}"), Body::of(&"x".repeat(MIB)).expect("a body")));
    }
    let mut bytes = BytesMut::new();
    frames.iter().for_each(|frame| compact::write_client(frame, &AgentRef::new("unused"), &mut bytes));
    if matches!(padding, Padding::UnknownFrame) {
        bytes.put_slice(&[0x3f, 0x80, 0x80, 0x40]);
        bytes.put_bytes(b'x', MIB);
    }
    bytes.freeze()
}

/// Waits for `open` numbered receipts.
async fn until_receipted(peer: &mut Peer, mut open: u64) {
    while open > 0 {
        let receipts = peer.next_of("receipts").await;
        for range in receipts["ranges"].as_array().expect("a list of ranges") {
            let end = |n: usize| range[n].as_u64().expect("a number");
            open -= end(1) - end(0) + 1;
        }
    }
}

#[tokio::test]
async fn a_message_queued_for_a_slow_reader_does_not_keep_its_receive_buffer() {
    let _exclusive = exclusive().await;
    for padding in [Padding::UnknownFrame, Padding::Message] {
        let bus = wide_bus().await;
        let mut healthy = HealthyPair::join(&bus).await;
        let mut sender = bus.peer("sender").await;
        let _stuck = stuck_subscriber(&bus, &mut sender).await;
        let before = resident_bytes();
        send_padded(&bus, "stuck", None, padding).await;
        check_grown(before, 72 * MIB, "150 small messages with 1 MiB of padding each");
        healthy.exchange_message().await;
    }
}

#[tokio::test]
async fn a_message_with_a_deadline_does_not_keep_its_receive_buffer() {
    let _exclusive = exclusive().await;
    for padding in [Padding::UnknownFrame, Padding::Message] {
        let bus = Bus::start().await;
        let before = resident_bytes();
        send_padded(&bus, "absent", Some(3_600_000), padding).await;
        check_grown(before, 72 * MIB, "150 small messages with 1 MiB of padding each");
    }
}

/// Messages that are not durable yet stay in memory. Congestion counts their own size, so they must not keep more.
#[tokio::test]
async fn a_message_that_is_not_durable_does_not_keep_its_receive_buffer() {
    let _exclusive = exclusive().await;
    let engine = EngineOptions { linger: 5_000, ..EngineOptions::default() };
    let bus = Bus::with(Setup { core: CoreOptions { engine, ..CoreOptions::default() }, ..Setup::default() }).await;
    let _recipient = bus.subscriber("recipient").await;
    let mut sender = bus.compact_peer("sender").await;
    let before = resident_bytes();
    for n in 0..150 {
        sender.send_binary(padded("recipient", n, None, Padding::UnknownFrame)).await;
    }
    sender.roundtrip().await;
    check_grown(before, 72 * MIB, "150 small messages with 1 MiB of padding each");
}

/// Sends 150 padded messages and waits until they are durable.
async fn send_padded(bus: &Bus, to: &str, deadline_ms: Option<u64>, padding: Padding) {
    let mut sender = bus.compact_peer("padding-sender").await;
    let delivers = if matches!(padding, Padding::Message) { 2 } else { 1 };
    for n in 0..150 {
        sender.send_binary(padded(to, n, deadline_ms, padding)).await;
        // Few at a time, so that messages that are not durable yet do not distort the measurement.
        if n % 10 == 9 {
            until_receipted(&mut sender, 10 * delivers).await;
        }
    }
}

#[tokio::test]
async fn a_peer_that_never_reads_is_not_read_from() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let _exclusive = exclusive().await;
    let bus = Bus::start().await;
    let mut healthy = HealthyPair::join(&bus).await;
    let logs = crate::support::Logs::start();
    let before = resident_bytes();
    let mut socket = bus.peer("never-reads").await.into_tcp();
    // Each of these is answered with an error.
    let ack = crate::support::masked_frame(0x81, json!({"kind": "ack", "id": "n".repeat(200)}).to_string().as_bytes());
    let flood = ack.repeat(MIB / ack.len());
    let mut sent = 0;
    // Sending stalls: the broker reads no more until the peer has read its responses.
    while let Ok(written) = tokio::time::timeout(std::time::Duration::from_millis(500), socket.write_all(&flood)).await
    {
        written.expect("the connection is open");
        sent += 1;
        assert!(sent < 60, "the broker read {sent} MiB");
    }
    check_grown(before, 32 * MIB, "a peer that never reads");
    healthy.exchange_message().await;
    let mut responses = vec![0; MIB];
    crate::support::within("the responses", socket.read_exact(&mut responses)).await.expect("the connection is open");
    assert!(String::from_utf8_lossy(&responses).contains("TB0205"));
    assert_eq!(logs.warnings(), Vec::<String>::new());
}

#[tokio::test]
async fn limits_of_mailboxes_and_messages_are_enforced() {
    let engine = EngineOptions { mailbox_messages: 10, mailboxes: 5, total_messages: 25, ..EngineOptions::default() };
    let core = CoreOptions { engine, ..CoreOptions::default() };
    let bus = Bus::with(Setup { core, ..Setup::default() }).await;
    let mut healthy = HealthyPair::join(&bus).await;
    let mut sender = bus.peer("sender").await;
    for n in 0..10 {
        sender.deliver("full", &format!("m-{n}"), json!(n)).await;
    }
    sender.send(deliver("full", "one-too-many", json!(1))).await;
    assert_eq!(sender.expect_error("TB0201").await["id"], "one-too-many");
    healthy.exchange_message().await;
    // A duplicate is accepted: it adds nothing.
    sender.deliver("full", "m-3", json!(3)).await;

    for mailbox in ["b", "c", "d"] {
        sender.deliver(mailbox, "m", json!(1)).await;
    }
    sender.send(deliver("e", "m", json!(1))).await;
    assert_eq!(sender.expect_error("TB0208").await["id"], "m");
    for n in 0..9 {
        sender.deliver("b", &format!("m-{n}"), json!(n)).await;
    }
    for n in 0..3 {
        sender.deliver("c", &format!("m-{n}"), json!(n)).await;
    }
    sender.send(deliver("c", "m-4", json!(1))).await;
    assert_eq!(sender.expect_error("TB0202").await["id"], "m-4");
}

/// Unsolicited notices, such as of expired messages, accumulate for a peer that does not read. Their limit closes the
/// connection even before the slow-reader timeout.
#[tokio::test]
async fn too_many_notices_close_the_connection_of_a_peer_that_does_not_read() {
    let _exclusive = exclusive().await;
    let bus = wide_bus().await;
    let mut healthy = HealthyPair::join(&bus).await;
    let mut sender = bus.peer("sender").await;
    let logs = crate::support::Logs::start();
    let _stuck = stuck_subscriber(&bus, &mut sender).await;
    let mut other = bus.compact_peer("stuck").await;
    for batch in 0..100 {
        let mut n = 0;
        let expiring = packed(64 << 10, || {
            n += 1;
            let mut message = InboxMessage::new(AgentRef::new("stuck"), "task", Body::null());
            message.id = format!("expiring-{batch}-{n}").into();
            let envelope = message.seal();
            ClientFrame::Deliver(Deliver {
                to: "absent".into(),
                envelope,
                deadline_ms: Some(1),
                ack: None,
                age_ms: None,
            })
        });
        other.send_binary(expiring).await;
        other.roundtrip().await;
        if logs.text().contains("TB0211") {
            break;
        }
    }
    logs.line_with("TB0211").await;
    healthy.exchange_message().await;
}
