//! Peers that were let in and try to make the broker keep more than their share: questions by the thousand in one
//! message, signals for someone who does not read, crumbs in large wrappings.

use crate::support::{Bus, MIB, Peer, Setup, alone, deliver, resident_bytes};
use crate::witness::Witness;
use bytes::{BufMut, Bytes, BytesMut};
use serde_json::json;
use toolbus_broker::CoreOptions;
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

/// A subscriber of version 2 that never reads again, and whose socket is full.
async fn stuck_subscriber(bus: &Bus, sender: &mut Peer) -> Peer {
    let mut stuck = bus.compact_peer("stuck").await;
    stuck.subscribe().await;
    for n in 0..16 {
        sender.deliver("stuck", &format!("plug-{n}"), "x".repeat(MIB).into()).await;
    }
    stuck
}

/// So wide that a socket's buffers don't hold what may be pushed.
fn wide_window() -> Setup {
    let engine = EngineOptions { window_bytes: 16 << 20, ..EngineOptions::default() };
    Setup { core: CoreOptions { engine, ..CoreOptions::default() }, ..Setup::default() }
}

async fn wide_bus() -> Bus {
    Bus::with(wide_window()).await
}

#[tokio::test]
async fn a_message_full_of_questions_is_answered_as_fast_as_the_answers_are_taken() {
    let _alone = alone().await;
    let bus = Bus::start().await;
    let mut witness = Witness::join(&bus).await;
    let mut sender = bus.peer("sender").await;
    for n in 0..200 {
        sender.deliver(&format!("mailbox-with-a-rather-long-name-{n}"), "m", json!(1)).await;
    }
    let before = resident_bytes();
    let mut curious = bus.compact_peer("curious").await;
    let questions = packed(MIB, || ClientFrame::Status { request_id: "q".into() });
    curious.send_binary(questions).await;
    for _ in 0..20 {
        witness.is_served().await;
    }
    check_grown(before, 64 * MIB, "a mebibyte of questions");
    // Someone who reads gets every answer.
    let mut patient = bus.compact_peer("patient").await;
    let mut asked = 0;
    let questions = packed(10_000, || {
        asked += 1;
        ClientFrame::Status { request_id: format!("q{asked}").into() }
    });
    patient.send_binary(questions).await;
    for n in 1..=asked {
        assert_eq!(patient.next_of("status").await["request_id"], format!("q{n}"));
    }
}

#[tokio::test]
async fn live_events_for_someone_who_does_not_read_are_dropped_by_their_bytes() {
    let _alone = alone().await;
    let bus = wide_bus().await;
    let mut witness = Witness::join(&bus).await;
    let mut sender = bus.peer("sender").await;
    let _stuck = stuck_subscriber(&bus, &mut sender).await;
    let before = resident_bytes();
    let event = json!({"kind": "live_event", "to": "stuck", "correlation_id": "c", "body": "x".repeat(MIB / 2)});
    for _ in 0..200 {
        sender.send(event.clone()).await;
    }
    sender.settle().await;
    check_grown(before, 32 * MIB, "100 MiB of live events");
    witness.is_served().await;
}

#[tokio::test]
async fn cancels_for_someone_who_does_not_read_do_not_pile_up() {
    let _alone = alone().await;
    let bus = wide_bus().await;
    let mut witness = Witness::join(&bus).await;
    let mut sender = bus.peer("sender").await;
    let _stuck = stuck_subscriber(&bus, &mut sender).await;
    let before = resident_bytes();
    let mut canceller = bus.compact_peer("canceller").await;
    let cancels = packed(MIB, || ClientFrame::Cancel { to: "stuck".into(), correlation_id: "c".repeat(200).into() });
    for _ in 0..100 {
        canceller.send_binary(cancels.clone()).await;
    }
    canceller.settle().await;
    check_grown(before, 32 * MIB, "400,000 cancels");
    witness.is_served().await;
}

/// What a crumb is wrapped in: a mebibyte of it.
#[derive(Clone, Copy)]
enum Loaf {
    /// A frame of an opcode that nobody knows, skipped by its length.
    Junk,
    /// A message to someone who is not there. It is on disk soon, and then only the crumb is in memory.
    Message,
}

/// A message of a few bytes and a live event, and around them much more.
fn crumbs(to: &str, n: usize, deadline_ms: Option<u64>, loaf: Loaf) -> Bytes {
    let message = |to: &str, id: String, body: Body| {
        let mut message = InboxMessage::new(AgentRef::new("unused"), "task", body);
        message.id = id.into();
        ClientFrame::Deliver(Deliver { to: to.into(), envelope: message.seal(), deadline_ms, ack: None })
    };
    let event = Event { peer: to.into(), correlation_id: "c".into(), body: Body::null() };
    let mut frames = vec![message(to, format!("crumb-{n}"), Body::null()), ClientFrame::Event(event)];
    if matches!(loaf, Loaf::Message) {
        frames.push(message("nobody", format!("loaf-{n}"), Body::of(&"x".repeat(MIB)).expect("a body")));
    }
    let mut bytes = BytesMut::new();
    frames.iter().for_each(|frame| compact::write_client(frame, &AgentRef::new("unused"), &mut bytes));
    if matches!(loaf, Loaf::Junk) {
        bytes.put_slice(&[0x3f, 0x80, 0x80, 0x40]);
        bytes.put_bytes(b'x', MIB);
    }
    bytes.freeze()
}

/// Waits for that many numbered receipts.
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
async fn a_crumb_that_waits_for_its_reader_does_not_keep_the_loaf() {
    let _alone = alone().await;
    for loaf in [Loaf::Junk, Loaf::Message] {
        let bus = wide_bus().await;
        let mut witness = Witness::join(&bus).await;
        let mut sender = bus.peer("sender").await;
        let _stuck = stuck_subscriber(&bus, &mut sender).await;
        let before = resident_bytes();
        send_crumbs(&bus, "stuck", None, loaf).await;
        check_grown(before, 72 * MIB, "150 crumbs in a mebibyte each");
        witness.is_served().await;
    }
}

#[tokio::test]
async fn a_crumb_that_waits_for_its_deadline_does_not_keep_the_loaf() {
    let _alone = alone().await;
    for loaf in [Loaf::Junk, Loaf::Message] {
        let bus = Bus::start().await;
        let before = resident_bytes();
        send_crumbs(&bus, "nobody", Some(3_600_000), loaf).await;
        check_grown(before, 72 * MIB, "150 crumbs in a mebibyte each");
    }
}

/// A disk that is slow keeps messages in memory. They count for what they are, so that must be what they cost.
#[tokio::test]
async fn a_crumb_that_waits_for_the_disk_does_not_keep_the_loaf() {
    let _alone = alone().await;
    let engine = EngineOptions { linger: 5_000, ..EngineOptions::default() };
    let bus = Bus::with(Setup { core: CoreOptions { engine, ..CoreOptions::default() }, ..Setup::default() }).await;
    let _recipient = bus.subscriber("recipient").await;
    let mut miser = bus.compact_peer("miser").await;
    let before = resident_bytes();
    for n in 0..150 {
        miser.send_binary(crumbs("recipient", n, None, Loaf::Junk)).await;
    }
    miser.settle().await;
    check_grown(before, 72 * MIB, "150 crumbs in a mebibyte each");
}

/// Sends 150 of them and waits until they are on disk.
async fn send_crumbs(bus: &Bus, to: &str, deadline_ms: Option<u64>, loaf: Loaf) {
    let mut miser = bus.compact_peer("miser").await;
    let delivers = if matches!(loaf, Loaf::Message) { 2 } else { 1 };
    for n in 0..150 {
        miser.send_binary(crumbs(to, n, deadline_ms, loaf)).await;
        // A few at a time, so that what waits for the disk is not what is measured.
        if n % 10 == 9 {
            until_receipted(&mut miser, 10 * delivers).await;
        }
    }
}

#[tokio::test]
async fn someone_who_sends_and_never_reads_is_not_read_from_until_it_does() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let _alone = alone().await;
    let bus = Bus::start().await;
    let mut witness = Witness::join(&bus).await;
    let logs = crate::support::Logs::start();
    let before = resident_bytes();
    let mut deaf = bus.peer("deaf").await.into_tcp();
    // Every one of these is answered by an error.
    let ack = crate::support::masked_frame(0x81, json!({"kind": "ack", "id": "n".repeat(200)}).to_string().as_bytes());
    let flood = ack.repeat(MIB / ack.len());
    let mut sent = 0;
    // It comes to a halt: the broker takes no more before its answers are taken.
    while let Ok(written) = tokio::time::timeout(std::time::Duration::from_millis(500), deaf.write_all(&flood)).await {
        written.expect("the connection stands");
        sent += 1;
        assert!(sent < 60, "it could send {sent} MiB");
    }
    check_grown(before, 32 * MIB, "a peer that never reads");
    witness.is_served().await;
    let mut answers = vec![0; MIB];
    crate::support::within("the answers", deaf.read_exact(&mut answers)).await.expect("the connection stands");
    assert!(String::from_utf8_lossy(&answers).contains("TB0205"));
    assert_eq!(logs.warnings(), Vec::<String>::new());
}

#[tokio::test]
async fn a_mailbox_that_is_full_refuses_and_the_others_go_on() {
    let engine = EngineOptions { mailbox_messages: 10, mailboxes: 5, total_messages: 25, ..EngineOptions::default() };
    let core = CoreOptions { engine, ..CoreOptions::default() };
    let bus = Bus::with(Setup { core, ..Setup::default() }).await;
    let mut witness = Witness::join(&bus).await;
    let mut sender = bus.peer("sender").await;
    for n in 0..10 {
        sender.deliver("full", &format!("m-{n}"), json!(n)).await;
    }
    sender.send(deliver("full", "one-too-many", json!(1))).await;
    assert_eq!(sender.expect_error("TB0201").await["id"], "one-too-many");
    witness.is_served().await;
    // What is there already is not one too many.
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

/// Notices that nobody asked for, such as of deadlines that passed, pile up for someone who does not read. There is an
/// end to that even before its time is up.
#[tokio::test]
async fn notices_for_someone_who_does_not_read_end_its_connection() {
    let _alone = alone().await;
    let mut setup = wide_window();
    setup.server.heartbeat = std::time::Duration::from_secs(600);
    let bus = Bus::with(setup).await;
    let mut witness = Witness::join(&bus).await;
    let mut sender = bus.peer("sender").await;
    let logs = crate::support::Logs::start();
    let _stuck = stuck_subscriber(&bus, &mut sender).await;
    let mut other = bus.compact_peer("stuck").await;
    for batch in 0..100 {
        let mut n = 0;
        let doomed = packed(64 << 10, || {
            n += 1;
            let mut message = InboxMessage::new(AgentRef::new("stuck"), "task", Body::null());
            message.id = format!("doomed-{batch}-{n}").into();
            let envelope = message.seal();
            ClientFrame::Deliver(Deliver { to: "nobody".into(), envelope, deadline_ms: Some(1), ack: None })
        });
        other.send_binary(doomed).await;
        other.settle().await;
        if logs.text().contains("TB0211") {
            break;
        }
    }
    logs.line_with("TB0211").await;
    witness.is_served().await;
}
