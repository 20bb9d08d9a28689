//! Follows on the wire, in both framings: reports of connections and of collected messages, their end and their limit.

use crate::support::{Bus, Peer, Setup, deliver};
use serde_json::{Value, json};
use toolbus_broker::CoreOptions;
use toolbus_engine::EngineOptions;

async fn follow(peer: &mut Peer, request_id: &str, peers: Value, messages: Value) -> Value {
    peer.send(json!({"kind": "follow", "request_id": request_id, "peers": peers, "messages": messages})).await;
    peer.next_of("followed").await
}

fn followed(request_id: &str, peers: Value, uncollected: Value) -> Value {
    json!({"kind": "followed", "request_id": request_id, "peers": peers, "uncollected": uncollected})
}

#[tokio::test]
async fn connections_and_collected_messages_are_reported_in_both_framings() {
    let bus = Bus::start().await;
    for (mut host, id) in [(bus.peer_v2("a").await, "1"), (bus.compact_peer("b").await, "2")] {
        host.send(deliver("caller", id, json!(1))).await;
        let messages = json!([{"to": "caller", "id": id}]);
        let first = follow(&mut host, "f", json!(["caller"]), messages).await;
        assert_eq!(first, followed("f", json!([false]), json!([true])));
        let mut caller = bus.subscriber("caller").await;
        assert_eq!(host.next_of("followed").await, followed("f", json!([true]), json!([true])));
        caller.expect_message(id).await;
        caller.ack_confirmed(id).await;
        assert_eq!(host.next_of("followed").await, followed("f", json!([true]), json!([false])));
        drop(caller);
        assert_eq!(host.next_of("followed").await, followed("f", json!([false]), json!([false])));
    }
}

#[tokio::test]
async fn an_ended_follow_is_not_reported_and_one_of_another_connection_is_not_ended() {
    let bus = Bus::start().await;
    let (mut host, mut other) = (bus.peer_v2("host").await, bus.peer_v2("other").await);
    follow(&mut host, "kept", json!(["caller"]), json!([])).await;
    follow(&mut host, "ended", json!(["caller"]), json!([])).await;
    host.send(json!({"kind": "unfollow", "request_id": "ended"})).await;
    other.send(json!({"kind": "unfollow", "request_id": "kept"})).await;
    host.roundtrip().await;
    other.roundtrip().await;
    // It sends no frame after its handshake, so the connection itself is reported.
    let _caller = bus.peer("caller").await;
    assert_eq!(host.next_of("followed").await, followed("kept", json!([true]), json!([])));
    assert_eq!((host.drain().await, other.drain().await), (vec![], vec![]));
}

#[tokio::test]
async fn too_many_follows_are_refused_and_the_connection_stays() {
    let engine = EngineOptions { followed_items: 2, ..EngineOptions::default() };
    let setup = Setup { core: CoreOptions { engine, ..CoreOptions::default() }, ..Setup::default() };
    let bus = Bus::with(setup).await;
    let mut host = bus.peer_v2("host").await;
    follow(&mut host, "1", json!(["a", "b"]), json!([])).await;
    host.send(json!({"kind": "follow", "request_id": "2", "peers": ["c"]})).await;
    assert_eq!(host.expect_error("TB0219").await["id"], "2");
    host.send(json!({"kind": "unfollow", "request_id": "1"})).await;
    follow(&mut host, "2", json!(["c"]), json!([])).await;
}

#[tokio::test]
async fn more_than_256_peers_or_messages_in_one_follow_are_a_bad_frame() {
    let bus = Bus::start().await;
    let message = json!({"to": "n", "id": "i"});
    for (peers, messages) in [(vec![json!("n"); 257], vec![]), (vec![], vec![message; 257])] {
        let mut host = bus.peer_v2("host").await;
        host.send(json!({"kind": "follow", "request_id": "f", "peers": peers, "messages": messages})).await;
        host.expect_error("TB0101").await;
        host.expect_close("TB0101").await;
    }
}
