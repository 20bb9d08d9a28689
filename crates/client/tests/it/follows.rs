//! Follows: peers and messages are reported without polling, also across reconnects.

use crate::scripted::ScriptedBroker;
use crate::support::{Bus, request, soon, until};
use bytestring::ByteString;
use serde_json::{Value, json};
use tokio::sync::watch;
use toolbus_client::{BrokerError, ErrorCode, Follow, FollowState, MAX_INSPECTED, MessageRef};

fn state(peers: &[bool], uncollected: &[bool]) -> FollowState {
    let known = |values: &[bool]| values.iter().copied().map(Some).collect();
    FollowState { peers: known(peers), uncollected: known(uncollected) }
}

fn followed(follow: &Value, peers: &[bool]) -> Value {
    json!({"kind": "followed", "request_id": follow["request_id"], "peers": peers, "uncollected": []})
}

async fn next(follow: &mut Follow) -> FollowState {
    soon("a change", follow.changed()).await.expect("a running follow")
}

#[tokio::test]
async fn a_follower_is_notified_when_a_caller_is_gone_and_when_it_has_collected_its_reply() {
    let bus = Bus::start();
    let (host, caller) = (bus.client("host").await, bus.client("caller").await);
    let reply = soon("a receipt", host.deliver("caller", request())).await.unwrap();
    let messages = vec![MessageRef { to: "caller".into(), id: reply.clone().into_inner() }];
    let mut follow = soon("an answer", host.follow(vec!["caller".into()], messages)).await.unwrap();
    assert_eq!(next(&mut follow).await, state(&[true], &[true]));
    caller.subscribe().await.unwrap();
    let received = soon("the message", caller.next_message()).await.unwrap();
    soon("a receipt", caller.ack_confirmed(received.id)).await.unwrap();
    assert_eq!(next(&mut follow).await, state(&[true], &[false]));
    caller.close().await;
    assert_eq!(next(&mut follow).await, state(&[false], &[false]));
    let _caller = bus.client("caller").await;
    assert_eq!(next(&mut follow).await, state(&[true], &[false]));
}

#[tokio::test]
async fn a_follow_is_unknown_while_the_connection_is_lost_and_renewed_afterwards() {
    let bus = Bus::start();
    let (link, is_up) = watch::channel(true);
    let host = bus.client_over("host", is_up).await;
    let caller = bus.client("caller").await;
    let mut follow = soon("an answer", host.follow(vec!["caller".into()], vec![])).await.unwrap();
    assert_eq!(next(&mut follow).await, state(&[true], &[]));
    link.send_replace(false);
    assert_eq!(next(&mut follow).await, FollowState { peers: vec![None], uncollected: vec![] });
    caller.close().await;
    link.send_replace(true);
    assert_eq!(next(&mut follow).await, state(&[false], &[]));
    let _caller = bus.client("caller").await;
    assert_eq!(next(&mut follow).await, state(&[true], &[]));
}

#[tokio::test]
async fn only_the_latest_state_is_reported() {
    let broker = ScriptedBroker::start().await;
    let (client, mut connection) = broker.client().await;
    let script = async {
        let frame = connection.expect("follow").await;
        connection.send(followed(&frame, &[true])).await;
        frame
    };
    let (follow, frame) = tokio::join!(client.follow(vec!["w".into()], vec![]), script);
    let mut follow = follow.unwrap();
    for is_connected in [false, true, false] {
        connection.send(followed(&frame, &[is_connected])).await;
    }
    // Frames are handled in order, so the answer to this query follows the changes.
    let answer = json!({"kind": "connected", "ids": []});
    let script = async {
        connection.expect("list_connected").await;
        connection.send(answer).await;
    };
    let (listed, ()) = tokio::join!(client.list_connected("r"), script);
    listed.unwrap();
    assert_eq!(next(&mut follow).await, state(&[false], &[]));
    assert!(futures_util::poll!(std::pin::pin!(follow.changed())).is_pending());
}

#[tokio::test]
async fn a_dropped_follow_is_ended_and_not_renewed() {
    let broker = ScriptedBroker::start().await;
    let (client, mut connection) = broker.client().await;
    let mut kept = None;
    for is_dropped in [true, false] {
        let script = async {
            let frame = connection.expect("follow").await;
            connection.send(followed(&frame, &[true])).await;
            frame
        };
        let (follow, frame) = tokio::join!(client.follow(vec!["w".into()], vec![]), script);
        if is_dropped {
            drop(follow.unwrap());
            assert_eq!(connection.expect("unfollow").await["request_id"], frame["request_id"]);
        } else {
            kept = Some((follow.unwrap(), frame));
        }
    }
    drop(connection);
    let mut connection = broker.accept().await;
    let (_follow, frame) = kept.expect("a follow");
    assert_eq!(connection.expect("follow").await, frame);
    client.publish_event("host", &"e".into(), request().body).await.unwrap();
    connection.expect("live_event").await;
}

#[tokio::test]
async fn a_refused_follow_is_an_error_and_one_refused_after_a_reconnect_ends() {
    let broker = ScriptedBroker::start().await;
    let (client, mut connection) = broker.client().await;
    let refusal = |frame: &Value| json!({"kind": "error", "reason": "no", "id": frame["request_id"], "code": "TB0218"});
    let script = async {
        let frame = connection.expect("follow").await;
        connection.send(refusal(&frame)).await;
    };
    let (refused, ()) = tokio::join!(client.follow(vec!["w".into()], vec![]), script);
    assert_eq!(refused.err().and_then(|error| error.code()), Some(ErrorCode::OperatorOnly));
    let script = async {
        let frame = connection.expect("follow").await;
        connection.send(followed(&frame, &[true])).await;
    };
    let (follow, ()) = tokio::join!(client.follow(vec!["w".into()], vec![]), script);
    let mut follow = follow.unwrap();
    drop(connection);
    let mut connection = broker.accept().await;
    let frame = connection.expect("follow").await;
    connection.send(refusal(&frame)).await;
    let end = async { while follow.changed().await.is_some() {} };
    soon("the end", end).await;
}

#[tokio::test]
async fn a_follow_ends_with_the_client() {
    let bus = Bus::start();
    let host = bus.client("host").await;
    let mut follow = soon("an answer", host.follow(vec!["caller".into()], vec![])).await.unwrap();
    until("the client to be connected", async || host.reader_alive()).await;
    host.close().await;
    let end = async { while follow.changed().await.is_some() {} };
    soon("the end", end).await;
}

#[tokio::test]
async fn a_follow_over_the_limit_is_refused_before_it_is_sent() {
    let client = Bus::start().client("host").await;
    let peers = vec![ByteString::from("n"); MAX_INSPECTED + 1];
    assert!(matches!(client.follow(peers, vec![]).await, Err(BrokerError::Rejected { .. })));
    assert!(client.reader_alive());
}
