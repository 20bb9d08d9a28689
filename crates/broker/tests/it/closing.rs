//! Regular ends of a connection: frames sent before the close are processed, and a close is answered with a close.

use crate::support::{Bus, MIB, Peer, Seen, Setup, deliver, hello, hello_compact, hello_v2, masked_frame};
use serde_json::{Value, json};
use toolbus_broker::CoreOptions;
use toolbus_engine::EngineOptions;

const CLOSE: [u8; 6] = [0x88, 0x80, 0, 0, 0, 0];

fn text_frame(frame: &Value) -> Vec<u8> {
    masked_frame(0x81, frame.to_string().as_bytes())
}

#[tokio::test]
async fn a_message_sent_right_before_a_close_is_delivered() {
    let bus = Bus::start().await;
    for hello_frame in [hello("leaver"), hello_v2("leaver"), hello_compact("leaver")] {
        let id = format!("last-{}", hello_frame.to_string().len());
        let mut peer = Peer::join(bus.address, hello_frame).await;
        let mut bytes = text_frame(&deliver("recipient", &id, json!(1)));
        bytes.extend(CLOSE);
        peer.send_raw(&bytes).await;
        let mut recipient = bus.subscriber("recipient").await;
        recipient.expect_message(&id).await;
        recipient.ack_confirmed(&id).await;
    }
}

#[tokio::test]
async fn an_ack_sent_right_before_a_close_is_processed() {
    let bus = Bus::start().await;
    bus.peer("sender").await.deliver("leaver", "m", json!(1)).await;
    let mut leaver = bus.subscriber("leaver").await;
    leaver.expect_message("m").await;
    let mut bytes = text_frame(&json!({"kind": "ack", "id": "m"}));
    bytes.extend(CLOSE);
    leaver.send_raw(&bytes).await;
    while !matches!(leaver.see().await, Seen::Ended) {}

    let mut next = bus.subscriber("leaver").await;
    bus.peer("sender").await.deliver("leaver", "n", json!(2)).await;
    next.expect_message("n").await;
}

#[tokio::test]
async fn a_message_sent_right_before_a_tcp_shutdown_is_delivered() {
    use tokio::io::AsyncWriteExt;
    let bus = Bus::start().await;
    let mut peer = bus.peer("leaver").await;
    peer.send(deliver("recipient", "m", json!(1))).await;
    peer.into_tcp().shutdown().await.expect("the socket can be shut down");
    bus.subscriber("recipient").await.expect_message("m").await;
}

#[tokio::test]
async fn a_close_is_answered_with_a_close() {
    let bus = Bus::start().await;
    for hello_frame in [hello("polite"), hello_compact("polite")] {
        let mut peer = Peer::join(bus.address, hello_frame).await;
        peer.send_close().await;
        assert!(matches!(peer.see().await, Seen::Close { .. }));
        assert_eq!(peer.see().await, Seen::Ended);
    }
}

#[tokio::test]
async fn a_closed_connection_is_no_longer_listed() {
    let bus = Bus::start().await;
    let mut observer = bus.peer("observer").await;
    let mut leaver = bus.subscriber("leaver").await;
    observer.send(json!({"kind": "list_connected", "role": "tester"})).await;
    assert_eq!(observer.frame().await["ids"], json!(["leaver"]));
    leaver.send_close().await;
    while !matches!(leaver.see().await, Seen::Ended) {}
    crate::support::within("the connection to end", async {
        loop {
            observer.send(json!({"kind": "list_connected", "role": "tester"})).await;
            if observer.frame().await["ids"] == json!([]) {
                return;
            }
        }
    })
    .await;
}

/// The broker closes a connection that is blocked, with receipts that became due during the shutdown.
#[tokio::test]
async fn the_last_receipts_are_sent_when_the_broker_stops() {
    // No message becomes durable before the shutdown.
    let engine = EngineOptions { linger: 3_600_000, ..EngineOptions::default() };
    let bus = Bus::with(Setup { core: CoreOptions { engine, ..CoreOptions::default() }, ..Setup::default() }).await;
    let _recipient = bus.subscriber("recipient").await;
    let mut sender = bus.piped_peer("sender").await;
    sender.subscribe().await;
    sender.send(deliver("recipient", "m", json!(1))).await;
    sender.roundtrip().await;
    // More than the pipe holds, so that the sender's connection is blocked.
    let mut other = bus.peer("other").await;
    other.send(deliver("sender", "large", json!("x".repeat(MIB)))).await;
    other.roundtrip().await;
    bus.begin_stop();
    assert_eq!(other.next_of("delivered").await["id"], "large");
    while !matches!(other.see().await, Seen::Ended) {}
    assert_eq!(sender.next_of("message").await["message"]["id"], "large");
    assert_eq!(sender.next_of("delivered").await["id"], "m");
    assert!(matches!(sender.see().await, Seen::Close { status: 1001, .. }));
}
