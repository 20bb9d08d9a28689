//! How a connection ends when nobody did wrong: what was sent before still counts, and a close is answered by a close.

use crate::support::{Bus, Peer, Seen, deliver, hello, hello_compact, hello_v2, masked_frame};
use serde_json::{Value, json};

const CLOSE: [u8; 6] = [0x88, 0x80, 0, 0, 0, 0];

fn text_frame(frame: &Value) -> Vec<u8> {
    masked_frame(0x81, frame.to_string().as_bytes())
}

#[tokio::test]
async fn what_is_sent_right_before_a_close_counts() {
    let bus = Bus::start().await;
    for greeting in [hello("leaver"), hello_v2("leaver"), hello_compact("leaver")] {
        let id = format!("last words {}", greeting);
        let id = format!("last-{}", id.len());
        let mut peer = Peer::join(bus.address, greeting).await;
        let mut bytes = text_frame(&deliver("heir", &id, json!(1)));
        bytes.extend(CLOSE);
        peer.send_raw(&bytes).await;
        let mut heir = bus.subscriber("heir").await;
        heir.expect_message(&id).await;
        heir.ack_confirmed(&id).await;
    }
}

#[tokio::test]
async fn an_ack_right_before_a_close_counts() {
    let bus = Bus::start().await;
    bus.peer("sender").await.deliver("leaver", "m", json!(1)).await;
    let mut leaver = bus.subscriber("leaver").await;
    leaver.expect_message("m").await;
    let mut bytes = text_frame(&json!({"kind": "ack", "id": "m"}));
    bytes.extend(CLOSE);
    leaver.send_raw(&bytes).await;
    while !matches!(leaver.see().await, Seen::Gone) {}

    let mut next = bus.subscriber("leaver").await;
    bus.peer("sender").await.deliver("leaver", "n", json!(2)).await;
    next.expect_message("n").await;
}

#[tokio::test]
async fn what_is_sent_right_before_the_socket_is_shut_counts() {
    use tokio::io::AsyncWriteExt;
    let bus = Bus::start().await;
    let mut peer = bus.peer("leaver").await;
    peer.send(deliver("heir", "m", json!(1))).await;
    peer.into_tcp().shutdown().await.expect("the socket can be shut");
    bus.subscriber("heir").await.expect_message("m").await;
}

#[tokio::test]
async fn a_close_is_answered_by_a_close() {
    let bus = Bus::start().await;
    for greeting in [hello("polite"), hello_compact("polite")] {
        let mut peer = Peer::join(bus.address, greeting).await;
        peer.send_close().await;
        assert!(matches!(peer.see().await, Seen::Close { .. }));
        assert_eq!(peer.see().await, Seen::Gone);
    }
}

#[tokio::test]
async fn whoever_leaves_is_no_longer_listed_and_its_mailbox_is_free() {
    let bus = Bus::start().await;
    let mut observer = bus.peer("observer").await;
    let mut leaver = bus.subscriber("leaver").await;
    observer.send(json!({"kind": "list_connected", "role": "tester"})).await;
    assert_eq!(observer.frame().await["ids"], json!(["leaver"]));
    leaver.send_close().await;
    while !matches!(leaver.see().await, Seen::Gone) {}
    crate::support::within("the leaver to be gone", async {
        loop {
            observer.send(json!({"kind": "list_connected", "role": "tester"})).await;
            if observer.frame().await["ids"] == json!([]) {
                return;
            }
        }
    })
    .await;
}
