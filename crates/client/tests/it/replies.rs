//! Deadlines of replies: a reply to a caller that never returns expires.

use crate::support::{Bus, request, soon};
use std::time::Duration;
use tokio::time::Instant;
use toolbus_client::SendOptions;
use toolbus_protocol::{InboxKind, InboxMessage};

/// Sends a request with that deadline, lets the host reply, and returns the time left until the reply's deadline when
/// the caller receives it.
async fn deadline_of_reply(deadline: Option<Duration>, with_message: bool) -> Option<Duration> {
    let bus = Bus::start();
    let (caller, host) = (bus.client("caller").await, bus.client("host").await);
    host.subscribe().await.unwrap();
    soon("a receipt", caller.deliver_with("host", request(), SendOptions { deadline })).await.unwrap();
    let received = soon("the request", host.next_message()).await.unwrap();
    if with_message {
        let reply = InboxMessage::new(host.me(), InboxKind::McpReply, received.body.clone());
        soon("a receipt", host.reply_message(&received, &reply)).await.unwrap();
    } else {
        soon("a receipt", host.reply(&received, InboxKind::McpReply, received.body.clone())).await.unwrap();
    }
    caller.subscribe().await.unwrap();
    let reply = soon("the reply", caller.next_message()).await.unwrap();
    caller.deadline_of(&reply.id).map(|at| at - Instant::now())
}

#[tokio::test]
async fn a_reply_expires_an_hour_after_the_deadline_of_its_request() {
    for with_message in [false, true] {
        let left = deadline_of_reply(Some(Duration::from_secs(600)), with_message).await.expect("a deadline");
        assert!((Duration::from_secs(4100)..=Duration::from_secs(4200)).contains(&left), "{left:?}");
    }
}

#[tokio::test]
async fn a_reply_shortly_before_the_deadline_is_kept_for_an_hour() {
    let left = deadline_of_reply(Some(Duration::from_secs(25)), false).await.expect("a deadline");
    assert!((Duration::from_secs(3590)..=Duration::from_secs(3625)).contains(&left), "{left:?}");
}

#[tokio::test]
async fn a_reply_to_a_request_without_a_deadline_has_none() {
    assert_eq!(deadline_of_reply(None, false).await, None);
}

#[tokio::test]
async fn a_reply_counts_as_the_receipt_of_its_request() {
    let bus = Bus::start();
    let host = bus.client("host").await;
    host.subscribe().await.unwrap();
    let answering = async {
        for _ in 0..2 {
            let received = soon("the request", host.next_message()).await.unwrap();
            host.reply(&received, InboxKind::McpReply, received.body.clone()).await.unwrap();
        }
    };
    let asking = async {
        let single = bus.client("single").await;
        single.subscribe().await.unwrap();
        soon("a receipt", single.deliver("host", request())).await.unwrap();
        soon("the reply", single.next_message()).await.unwrap();
        let many = bus.client("many").await.into_multiplexed();
        soon("a receipt", many.client().deliver("host", request())).await.unwrap();
    };
    tokio::join!(answering, asking);
}
