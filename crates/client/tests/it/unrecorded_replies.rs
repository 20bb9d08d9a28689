//! Replies that must not be durable without the acknowledgement of their request.

use crate::scripted_frames::{Peer, Scripted};
use crate::support::{request, soon};
use std::time::Duration;
use toolbus_client::{BrokerClient, Resend};
use toolbus_protocol::{Body, BrokerFrame, ClientFrame, Deliver, ErrorCode, InboxKind, InboxMessage, MsgId, Refusal};

/// Longer than a reply is kept whose request is not delivered again.
const LONG: Duration = Duration::from_secs(601);

async fn reply(client: &BrokerClient, request: &InboxMessage) -> MsgId {
    let reply = InboxMessage::new(client.me(), InboxKind::McpReply, Body::null()).correlated_to(request.id.clone());
    client.reply_message_nowait(request, &reply, Resend::WithRequest).await.unwrap();
    reply.id
}

/// A request that was pushed with that tag and taken by the application.
async fn received(client: &BrokerClient, peer: &mut Peer, tag: u64, request: &InboxMessage) -> InboxMessage {
    peer.push(tag, request).await;
    let message = soon("the request", client.next_message()).await.unwrap();
    assert_eq!(message.id, request.id);
    message
}

async fn next_connection(broker: &mut Scripted, peer: Peer) -> Peer {
    drop(peer);
    let mut next = broker.accept().await;
    assert!(matches!(next.next().await, Some(ClientFrame::Subscribe)));
    next
}

async fn expect_delivery(peer: &mut Peer, reply: &MsgId, tag: u64) -> Deliver {
    match peer.next().await {
        Some(ClientFrame::Deliver(deliver)) => {
            assert_eq!((&*deliver.envelope.id, deliver.ack), (reply.as_str(), Some(tag)));
            deliver
        }
        other => panic!("{other:?}"),
    }
}

async fn expect_nothing(peer: &mut Peer, client: &BrokerClient) {
    let frames = peer.frames_until_marker(client).await;
    assert!(frames.is_empty(), "{frames:?}");
}

#[tokio::test]
async fn a_reply_is_sent_again_only_with_its_request() {
    let (mut broker, client, mut first) = Scripted::start().await;
    let request = received(&client, &mut first, 7, &request()).await;
    let id = reply(&client, &request).await;
    expect_delivery(&mut first, &id, 7).await;
    let mut peer = next_connection(&mut broker, first).await;
    // Also if the next connection is lost before the broker delivers the request again.
    for _ in 0..2 {
        expect_nothing(&mut peer, &client).await;
        peer = next_connection(&mut broker, peer).await;
        assert!(matches!(peer.next().await, Some(ClientFrame::Deliver(marker)) if marker.to == "marker"));
        peer.receipt().await;
    }
    peer.push(9, &request).await;
    expect_delivery(&mut peer, &id, 9).await;
    peer.send(BrokerFrame::Delivered { id: id.into_inner() }).await;
    let next = received(&client, &mut peer, 10, &crate::support::request()).await;
    assert_ne!(next.id, request.id, "the application does not see the request again");
    expect_nothing(&mut peer, &client).await;
}

#[tokio::test]
async fn a_reply_to_a_request_of_an_earlier_connection_waits_for_the_request() {
    let (mut broker, client, mut first) = Scripted::start().await;
    let request = received(&client, &mut first, 7, &request()).await;
    let mut second = next_connection(&mut broker, first).await;
    let id = reply(&client, &request).await;
    expect_nothing(&mut second, &client).await;
    second.push(9, &request).await;
    expect_delivery(&mut second, &id, 9).await;
}

#[tokio::test]
async fn a_reply_after_its_request_was_delivered_again_is_sent_at_once() {
    let (mut broker, client, mut first) = Scripted::start().await;
    let request = received(&client, &mut first, 7, &request()).await;
    let mut second = next_connection(&mut broker, first).await;
    received(&client, &mut second, 9, &request).await;
    let id = reply(&client, &request).await;
    expect_delivery(&mut second, &id, 9).await;
}

#[tokio::test(start_paused = true)]
async fn a_reply_whose_request_is_not_delivered_again_is_dropped_after_a_while() {
    let (mut broker, client, mut first) = Scripted::start().await;
    let request = received(&client, &mut first, 7, &request()).await;
    // Time without a connection does not count.
    drop(first);
    let mut second = broker.dialled().await;
    let id = reply(&client, &request).await;
    tokio::time::advance(LONG).await;
    second.welcome().await;
    assert!(matches!(second.next().await, Some(ClientFrame::Subscribe)));
    received(&client, &mut second, 7, &crate::support::request()).await;
    second.push(8, &request).await;
    let again = expect_delivery(&mut second, &id, 8).await;
    assert_eq!(again.to, request.from.session_id);

    let mut third = next_connection(&mut broker, second).await;
    tokio::time::advance(LONG).await;
    let other = received(&client, &mut third, 9, &crate::support::request()).await;
    received(&client, &mut third, 10, &request).await;
    client.ack(other.id).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_postponed_reply_takes_the_tag_of_the_current_connection() {
    let (mut broker, client, mut first) = Scripted::start().await;
    let request = received(&client, &mut first, 7, &request()).await;
    let id = reply(&client, &request).await;
    expect_delivery(&mut first, &id, 7).await;
    let (reason, code) = ("full".to_owned(), Some(ErrorCode::DiskFull));
    first.send(BrokerFrame::Error(Refusal { reason, id: Some(id.clone().into_inner()), code })).await;
    // Another message shows that the refusal was handled.
    received(&client, &mut first, 8, &crate::support::request()).await;
    let mut second = next_connection(&mut broker, first).await;
    received(&client, &mut second, 9, &request).await;
    expect_delivery(&mut second, &id, 9).await;
}
