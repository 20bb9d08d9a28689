//! What every kind of peer may use of each resource: workers their share, hosts and operators everything.

use super::{AGENTS, message};
use crate::support::{Bus, Credentials, Framing, MIB, Peer, Seen, Setup, hello_as, masked_frame, skip};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use toolbus_broker::{CoreOptions, DenyAll, Rights, ServerOptions};
use toolbus_engine::EngineOptions;

const WHOLE: usize = 40;
/// A quarter of what is left without the reserve, rounded up.
const SHARE: usize = 10;

async fn bus() -> Bus {
    bus_for(WHOLE).await
}

async fn bus_for(max_connections: usize) -> Bus {
    let credentials =
        AGENTS.into_iter().fold(Credentials::default(), |all, (name, role, rights)| all.add(name, role, rights));
    let server = ServerOptions { max_connections, max_input_bytes: 6 * MIB as u64, ..ServerOptions::default() };
    let engine = EngineOptions { total_messages: WHOLE as u64, ..EngineOptions::default() };
    let core = CoreOptions { engine, ..CoreOptions::default() };
    Bus::with_credentials(Setup { server, core }, &credentials).await
}

/// Connects, unless the broker refuses it.
async fn connect(bus: &Bus, name: &str, number: usize) -> Result<Peer, Seen> {
    let mut peer = Peer::connect(bus.address).await;
    peer.send(hello_as(name, &format!("{name}#{number}"), None, Framing::Json)).await;
    match peer.see().await {
        Seen::Frame(frame) if frame["kind"] == "welcome" => Ok(peer),
        seen => Err(seen),
    }
}

fn code(seen: &Seen) -> Option<&str> {
    match seen {
        Seen::Frame(frame) => frame["code"].as_str(),
        _ => None,
    }
}

fn expected(rights: Rights) -> usize {
    if rights.has_share() { SHARE } else { WHOLE }
}

#[tokio::test]
async fn connections() {
    for (name, _, rights) in AGENTS {
        let (bus, mut peers) = (bus().await, Vec::new());
        let refusal = loop {
            match connect(&bus, name, peers.len()).await {
                Ok(peer) => peers.push(peer),
                Err(refusal) => break refusal,
            }
        };
        assert_eq!((peers.len(), code(&refusal)), (expected(rights), Some("TB0210")), "{name}");
        if rights.has_share() {
            for other in ["w2", "h1", "op"].into_iter().filter(|other| *other != name) {
                assert!(connect(&bus, other, 0).await.is_ok(), "{other} beside {name}");
            }
        }
    }
}

#[tokio::test]
async fn stored_messages() {
    for (name, _, rights) in AGENTS {
        let bus = bus().await;
        let mut peer = connect(&bus, name, 0).await.expect("a connection");
        peer.drain().await;
        let mut accepted = 0;
        let refusal = loop {
            peer.send(message(&format!("m{accepted}"), "mcp_request", "h1", "", None)).await;
            let seen = peer.see().await;
            if code(&seen).is_some() {
                break seen;
            }
            accepted += 1;
        };
        // A host has a share of what it stores unasked.
        let is_limited = rights.has_share() || (rights.host && !rights.unrestricted);
        let expected = if is_limited { (SHARE, "TB0220") } else { (WHOLE, "TB0202") };
        assert_eq!((accepted, code(&refusal)), (expected.0, Some(expected.1)), "{name}");
    }
}

#[tokio::test]
async fn unfinished_input() {
    const PEERS: usize = 9;
    let frame = masked_frame(0x81, &vec![b' '; MIB]);
    let (begin, end) = frame.split_at(frame.len() - 1);
    for (name, _, rights) in AGENTS {
        let (bus, mut peers) = (bus().await, Vec::new());
        for number in 0..PEERS {
            let mut peer = connect(&bus, name, number).await.expect("a connection");
            peer.drain().await;
            peer.send_raw(begin).await;
            peers.push(peer);
        }
        // The last part that fits may be a whole message.
        let kept = if rights.has_share() { 1..=2 } else { 4..=6 };
        let mut waiting: FuturesUnordered<_> =
            peers.iter_mut().map(|peer| async { (peer.see().await, peer) }).collect();
        for _ in *kept.end()..PEERS {
            let (seen, peer) = waiting.next().await.expect("a peer");
            assert_eq!(code(&seen), Some("TB0220"), "{name}");
            peer.expect_close("TB0220").await;
        }
        drop(waiting);
        if rights.has_share() {
            let mut other = connect(&bus, if name == "w2" { "w1" } else { "w2" }, 0).await.expect("a connection");
            other.drain().await;
            other.send_raw(&frame).await;
            assert_eq!(code(&other.see().await), Some("TB0101"), "a complete message, though not a frame");
        }
        let mut complete = 0;
        for peer in &mut peers {
            peer.send_raw(end).await;
            complete += usize::from(code(&peer.see().await) == Some("TB0101"));
        }
        assert!(kept.contains(&complete), "{name}: {complete}");
    }
}

/// Nothing is offered to the workers at first, and they may send no messages.
#[tokio::test]
async fn an_agent_that_may_do_nothing_may_send_only_small_messages_until_something_is_offered_to_it() {
    let bus = bus_for(1_000).await;
    bus.server().set_send_rules(Arc::new(DenyAll));
    let mut host = Peer::join(bus.address, hello_as("h1", "h1", None, Framing::Compact)).await;
    let announce = |servers: Value| {
        let manifests = json!([{"manifest": {"servers": servers}}]);
        json!({"kind": "announce", "request_id": "a", "manifests": manifests})
    };
    host.send(announce(json!([]))).await;
    host.next_of("announced").await;

    let worker = async || {
        let mut peer = Peer::connect(bus.address).await;
        peer.send(hello_as("w1", "w1", None, Framing::Compact)).await;
        let largest = peer.next_of("welcome").await["limits"]["max_frame_bytes"].as_u64();
        (peer, largest.expect("a limit") as usize)
    };
    let (mut first, largest) = worker().await;
    assert!(largest < MIB / 2, "{largest}");
    // The header is enough.
    first.send_raw(&masked_frame(0x81, &vec![b'x'; largest + 1])[..14]).await;
    assert_eq!(first.next_of("error").await["code"], "TB0220");

    let (mut second, _) = worker().await;
    host.send(announce(json!([{"name": "files", "state": "starting"}]))).await;
    host.next_of("announced").await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    let ended = loop {
        // The peer is served, and learns the new limit from its next connection.
        second.send(json!({"kind": "list_connected", "role": "unused-role"})).await;
        match second.see().await {
            Seen::Frame(frame) if frame["kind"] == "error" => break frame,
            Seen::Frame(_) => assert!(tokio::time::Instant::now() < deadline, "the limit does not change"),
            other => panic!("{other:?}"),
        }
        skip(Duration::from_millis(50)).await;
    };
    assert_eq!(ended["code"], "TB0220");
    assert!(worker().await.1 > 4 * largest);
}
