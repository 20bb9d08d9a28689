//! A share for every agent: one that sends unfinished frames is refused when they use up its share of the memory for input,
//! and the others go on.

use crate::support::{Bus, Credentials, Framing, MIB, Peer, Setup, WORKER, hello_as, masked_frame};
use toolbus_broker::ServerOptions;

async fn bus() -> Bus {
    let credentials = Credentials::default().add("w", "worker", WORKER).add("v", "worker", WORKER);
    let server = ServerOptions { max_input_bytes: 8 << 20, ..ServerOptions::default() };
    Bus::with_credentials(Setup { server, ..Setup::default() }, &credentials).await
}

async fn connect(bus: &Bus, agent: &str, number: usize) -> Peer {
    let mut peer = Peer::connect(bus.address).await;
    peer.send(hello_as(agent, &format!("~#{number}"), None, Framing::Json)).await;
    for kind in ["welcome", "broker_identity"] {
        assert_eq!(peer.frame().await["kind"], kind);
    }
    peer
}

/// Sends a message of a MiB except for its last byte.
async fn begin_message(peer: &mut Peer) {
    let frame = masked_frame(0x81, &vec![b' '; MIB]);
    peer.send_raw(&frame[..frame.len() - 1]).await;
}

/// Whether the broker still accepts what the peer sends.
async fn is_open(peer: &mut Peer) -> bool {
    peer.send_raw(&masked_frame(0x89, b"ping")).await;
    !matches!(peer.see().await, crate::support::Seen::Frame(frame) if frame["code"] == "TB0220")
}

#[tokio::test]
async fn unfinished_messages_count_against_the_share_of_their_agent() {
    let bus = bus().await;
    let mut peers = Vec::new();
    for number in 0..20 {
        let mut peer = connect(&bus, "w", number).await;
        begin_message(&mut peer).await;
        peers.push(peer);
    }
    // Its share of 7.6 MiB is less than two MiB, and the message that exceeds it is not counted.
    let mut refused = 0;
    for peer in &mut peers[2..] {
        peer.expect_error("TB0220").await;
        peer.expect_close("TB0220").await;
        refused += 1;
    }
    assert_eq!(refused, 18);
    let mut other = connect(&bus, "v", 0).await;
    begin_message(&mut other).await;
    assert!(is_open(&mut other).await, "another agent has a share of its own");
    drop(peers);
}
