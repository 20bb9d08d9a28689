//! What a client sends on its next connection, and when it dials again.

use crate::scripted_frames::{Peer, Scripted};
use crate::support::{request, soon};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use toolbus_client::{BrokerClient, BrokerError, ClientOptions, SendOptions};
use toolbus_protocol::{AgentRef, Body, ClientFrame, Deliver, InboxKind, InboxMessage};

/// A request that was pushed with tag 7 and taken by the application.
async fn received(client: &BrokerClient, peer: &mut Peer) -> InboxMessage {
    peer.push(7, &request()).await;
    soon("the request", client.next_message()).await.unwrap()
}

async fn next_connection(broker: &mut Scripted, peer: Peer) -> Peer {
    drop(peer);
    let mut next = broker.accept().await;
    assert!(matches!(next.next().await, Some(ClientFrame::Subscribe)));
    next
}

async fn next_delivery(peer: &mut Peer) -> Deliver {
    match peer.next().await {
        Some(ClientFrame::Deliver(deliver)) => deliver,
        other => panic!("{other:?}"),
    }
}

fn assert_ack_by_id(frames: &[ClientFrame], request: &InboxMessage) {
    assert!(matches!(frames, [ClientFrame::Ack { id }] if *id == *request.id.as_str()), "{frames:?}");
}

#[tokio::test]
async fn a_reply_on_the_next_connection_acknowledges_its_request_once_and_by_id() {
    let (mut broker, client, mut first) = Scripted::start().await;
    let request = received(&client, &mut first).await;
    let mut second = next_connection(&mut broker, first).await;
    client.reply_nowait(&request, InboxKind::McpReply, Body::null()).await.unwrap();
    assert_eq!(next_delivery(&mut second).await.ack, None, "the tag belongs to another connection");
    assert!(second.frames_until_marker(&client).await.is_empty(), "no acknowledgement before the receipt");
    second.receipt().await;
    // The receipt has no effect that the application sees, so another message shows that it was handled.
    let next = received(&client, &mut second).await;
    assert_ack_by_id(&second.frames_until_marker(&client).await, &request);
    client.ack(next.id).await.unwrap();
    let frames = second.frames_until_marker(&client).await;
    assert!(matches!(&frames[..], [ClientFrame::AckTags { tags }] if *tags == [7]), "{frames:?}");
}

#[tokio::test]
async fn a_reply_that_is_sent_again_acknowledges_its_request_once_and_by_id() {
    let (mut broker, client, mut first) = Scripted::start().await;
    let request = received(&client, &mut first).await;
    client.reply_nowait(&request, InboxKind::McpReply, Body::null()).await.unwrap();
    let sent = next_delivery(&mut first).await;
    assert_eq!((sent.ack, sent.age_ms), (Some(7), None));
    let mut second = next_connection(&mut broker, first).await;
    let again = next_delivery(&mut second).await;
    assert_eq!((again.ack, &again.envelope.id), (None, &sent.envelope.id));
    assert!(again.age_ms.is_some(), "it may have reached its recipient before");
    second.receipt().await;
    received(&client, &mut second).await;
    assert_ack_by_id(&second.frames_until_marker(&client).await, &request);
}

#[tokio::test]
async fn a_reply_with_its_acknowledgement_in_the_same_frame_sends_no_other() {
    let (_broker, client, mut peer) = Scripted::start().await;
    let request = received(&client, &mut peer).await;
    client.reply_nowait(&request, InboxKind::McpReply, Body::null()).await.unwrap();
    assert_eq!(next_delivery(&mut peer).await.ack, Some(7));
    peer.receipt().await;
    received(&client, &mut peer).await;
    assert!(peer.frames_until_marker(&client).await.is_empty());
}

#[tokio::test]
async fn a_message_of_an_earlier_connection_is_acknowledged_by_id() {
    let (mut broker, client, mut first) = Scripted::start().await;
    let request = received(&client, &mut first).await;
    let mut second = next_connection(&mut broker, first).await;
    client.ack(request.id.clone()).await.unwrap();
    assert_ack_by_id(&second.frames_until_marker(&client).await, &request);
}

#[tokio::test]
async fn a_tag_that_was_not_sent_in_time_is_not_sent_on_the_next_connection() {
    let (mut broker, client, mut first) = Scripted::start().await;
    let request = received(&client, &mut first).await;
    client.ack(request.id).await.unwrap();
    // The client's task has not run since, so the acknowledgement is still queued.
    let mut second = next_connection(&mut broker, first).await;
    let frames = second.frames_until_marker(&client).await;
    assert!(frames.is_empty(), "{frames:?}");
}

#[tokio::test(start_paused = true)]
async fn an_expired_message_is_not_sent_again_and_the_others_keep_their_order_and_deadline() {
    let (mut broker, client, mut first) = Scripted::start().await;
    let send = |to: &'static str, seconds: Option<u64>| {
        let send = SendOptions { deadline: seconds.map(Duration::from_secs) };
        client.deliver_nowait(to, request(), send)
    };
    send("without", None).await.unwrap();
    let brief = client.deliver_with("brief", request(), SendOptions { deadline: Some(Duration::from_secs(2)) });
    let rest = async {
        send("long", Some(60)).await.unwrap();
        for to in ["without", "brief", "long"] {
            assert_eq!(next_delivery(&mut first).await.to, to);
        }
        drop(first);
        let mut second = broker.dialled().await;
        tokio::time::advance(Duration::from_secs(5)).await;
        second.welcome().await;
        assert!(matches!(second.next().await, Some(ClientFrame::Subscribe)));
        let (one, two) = (next_delivery(&mut second).await, next_delivery(&mut second).await);
        assert_eq!((&*one.to, one.deadline_ms), ("without", None));
        assert!(*two.to == *"long" && two.deadline_ms.is_some_and(|left| (54_000..=55_000).contains(&left)), "{two:?}");
        assert!(second.frames_until_marker(&client).await.is_empty());
    };
    let (outcome, ()) = tokio::join!(brief, rest);
    assert!(matches!(outcome, Err(BrokerError::Timeout(_))), "{outcome:?}");
}

/// The client is closed while the broker has not answered its `hello`. Another client may have subscribed meanwhile.
#[tokio::test]
async fn a_client_closed_during_a_reconnect_does_not_subscribe() {
    let (mut broker, client, first) = Scripted::start().await;
    drop(first);
    let mut second = broker.dialled().await;
    drop(client);
    assert!(matches!(second.next().await, Some(ClientFrame::Hello(_)) | None));
    second.welcome().await;
    assert!(second.next().await.is_none(), "the connection is given up");
}

#[tokio::test(start_paused = true)]
async fn closing_during_a_reconnect_does_not_wait_for_the_broker() {
    let (mut broker, client, first) = Scripted::start().await;
    drop(first);
    let _second = broker.dialled().await;
    let started = Instant::now();
    client.close().await;
    assert_eq!(started.elapsed().as_secs(), 0);
}

/// Dials a broker that refuses connections or closes them after a time, and returns the times between the attempts.
async fn times_between_attempts(stable_after: Duration, script: &'static [Option<Duration>]) -> Vec<u64> {
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let times = Arc::clone(&attempts);
    let dial = move || {
        let mut times = times.lock().unwrap();
        times.push(Instant::now());
        let next = script.get(times.len() - 1).copied().flatten();
        let lasts = next.ok_or_else(|| BrokerError::Transport("refused".into()))?;
        let (ours, theirs) = toolbus_protocol::link();
        tokio::spawn(async move {
            let mut peer = Peer::new(theirs);
            peer.welcome().await;
            tokio::time::sleep(lasts).await;
        });
        Ok(ours)
    };
    let reconnect_attempts = std::num::NonZeroU32::new(4);
    let (backoff, longest_backoff) = (Duration::from_millis(100), Duration::from_secs(3));
    let options =
        ClientOptions { backoff, longest_backoff, stable_after, reconnect_attempts, ..ClientOptions::default() };
    let client = BrokerClient::connect_local(dial, AgentRef::new("me"), options).await.unwrap();
    client.closed().await;
    let times = attempts.lock().unwrap();
    times.windows(2).map(|pair| (pair[1] - pair[0]).as_millis() as u64 / 10 * 10).collect()
}

#[tokio::test(start_paused = true)]
async fn the_backoff_doubles_up_to_its_limit_and_is_reset_by_a_stable_connection() {
    const BRIEF: Option<Duration> = Some(Duration::from_millis(10));
    const STABLE: Option<Duration> = Some(Duration::from_secs(2));
    // Delays are up to a fifth shorter, by chance.
    let check = async |stable_after, script, expected: &[u64]| {
        let times = times_between_attempts(stable_after, script).await;
        let fits = |(time, expected): (&u64, &u64)| (expected * 4 / 5 - 10..=*expected).contains(time);
        assert!(times.len() == expected.len() && times.iter().zip(expected).all(fits), "{times:?} {expected:?}");
    };
    let usual = ClientOptions::default().stable_after;
    check(usual, &[BRIEF, None, None, None, None], &[110, 200, 400, 800]).await;
    check(usual, &[BRIEF, None, BRIEF, None, None, None, None], &[110, 200, 410, 800, 1600, 3000]).await;
    check(usual, &[BRIEF, None, None, STABLE, None, None, None, None], &[110, 200, 400, 2100, 200, 400, 800]).await;
    let longer = Duration::from_secs(10);
    check(longer, &[STABLE, None, STABLE, None, None, None, None], &[2100, 200, 2400, 800, 1600, 3000]).await;
}
