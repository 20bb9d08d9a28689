//! The client library against a real broker, in both framings.

use crate::support::{Cutter, TestBus, connect, message, soon};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use toolbus::{Body, BrokerError, ErrorCode, InboxKind, InboxMessage, MsgId, SendOptions};
use toolbus_protocol::Framing;

const FRAMINGS: [Framing; 2] = [Framing::Compact, Framing::Json];

#[tokio::test]
async fn a_message_is_kept_for_its_recipient_until_it_is_acknowledged() {
    for framing in FRAMINGS {
        let bus = TestBus::start().await;
        let sender = connect(&bus.url(), "alice", framing).await;
        let id = soon("receipt", sender.deliver("bob", message(7))).await.expect("accepted");
        let receiver = connect(&bus.url(), "bob", framing).await;
        receiver.subscribe().await.expect("open");
        let received = soon("message", receiver.next_message()).await.expect("open");
        assert_eq!((received.id.clone(), received.body.to::<u64>().expect("a number")), (id.clone(), 7));
        assert_eq!(&*received.from.session_id, "alice", "the broker stamps the sender");
        soon("confirmation", receiver.ack_confirmed(id)).await.expect("a message of this mailbox");
        let status = soon("status", receiver.status()).await.expect("version 2");
        assert!(status.mailboxes.iter().all(|mailbox| mailbox.messages == 0), "{status:?}");
        bus.stop().await;
    }
}

#[tokio::test]
async fn concurrent_requests_on_one_connection_get_their_own_replies() {
    for framing in FRAMINGS {
        let bus = TestBus::start().await;
        let host = connect(&bus.url(), "host", framing).await;
        host.subscribe().await.expect("open");
        let hosting = tokio::spawn(async move {
            // Answers each group of eight in reverse, so that replies can't be matched by order.
            let mut group = Vec::new();
            while let Some(request) = host.next_message().await {
                group.push(request);
                if group.len() == 8 {
                    for request in group.drain(..).rev() {
                        let body = request.body.clone();
                        host.reply_nowait(&request, InboxKind::Reply, body).await.expect("open");
                    }
                }
            }
        });
        let caller = Arc::new(connect(&bus.url(), "caller", framing).await.into_multiplexed());
        let mut calls = JoinSet::new();
        for number in 0..256u64 {
            let caller = Arc::clone(&caller);
            calls.spawn(async move {
                let body = Body::of(&number).expect("a number");
                let reply = caller.request("host", "mcp_request", body, Duration::from_secs(20)).await;
                assert_eq!(reply.expect("answered").body.to::<u64>().expect("a number"), number);
            });
        }
        soon("all calls", async {
            while let Some(done) = calls.join_next().await {
                done.expect("its own answer")
            }
        })
        .await;
        hosting.abort();
        bus.stop().await;
    }
}

#[tokio::test]
async fn a_reply_from_another_sender_is_ignored() {
    let bus = TestBus::start().await;
    let host = bus.client("host").await;
    host.subscribe().await.expect("open");
    let intruder = bus.client("intruder").await;
    let caller = bus.client("caller").await.into_multiplexed();
    let asking = tokio::spawn(async move { caller.ask("host", "who are you?", Duration::from_secs(20)).await });
    let question = soon("question", host.next_message()).await.expect("open");
    let forged = InboxMessage::new(intruder.me(), InboxKind::Reply, Body::parse(r#"{"answer":"evil"}"#).expect("JSON"))
        .correlated_to(question.id.clone());
    soon("receipt", intruder.deliver("caller", forged)).await.expect("anyone may send a message");
    soon("receipt", host.answer(&question, "the host")).await.expect("accepted");
    assert_eq!(soon("answer", asking).await.expect("no panic").expect("answered"), "the host");
    bus.stop().await;
}

#[tokio::test]
async fn a_timed_out_request_is_cancelled_at_the_recipient() {
    let bus = TestBus::start().await;
    let host = bus.client("host").await;
    host.subscribe().await.expect("open");
    let caller = bus.client("caller").await.into_multiplexed();
    let outcome = caller.ask("host", "anyone?", Duration::from_millis(100)).await;
    assert!(matches!(outcome, Err(BrokerError::Timeout(_))), "{outcome:?}");
    let question = soon("question", host.next_message()).await;
    let cancelled = soon("cancel", host.next_cancel()).await.expect("open");
    if let Some(question) = question {
        assert_eq!(question.id, cancelled);
    }
    bus.stop().await;
}

#[tokio::test]
async fn a_message_past_its_deadline_is_not_delivered() {
    let bus = TestBus::start().await;
    let sender = bus.client("alice").await;
    sender.subscribe().await.expect("open");
    let send = SendOptions { deadline: Some(Duration::from_millis(50)) };
    soon("receipt", sender.deliver_with("bob", message(1), send)).await.expect("accepted");
    tokio::time::sleep(Duration::from_millis(120)).await;
    let receiver = bus.client("bob").await;
    receiver.subscribe().await.expect("open");
    soon("receipt", sender.deliver("bob", message(2))).await.expect("accepted");
    let received = soon("message", receiver.next_message()).await.expect("open");
    assert_eq!(received.body.to::<u64>().expect("a number"), 2);
    bus.stop().await;
}

#[tokio::test]
async fn cut_connections_lose_and_duplicate_no_message() {
    for framing in FRAMINGS {
        let bus = TestBus::start().await;
        let cutter = Cutter::start(bus.address).await;
        let sender = Arc::new(connect(&cutter.url(), "alice", framing).await);
        let receiver = bus.client("bob").await;
        receiver.subscribe().await.expect("open");
        let mut deliveries = JoinSet::new();
        let mut sent = Vec::new();
        for number in 0..400u64 {
            let message = message(number);
            sent.push(message.id.clone());
            let sender = Arc::clone(&sender);
            deliveries.spawn(async move { sender.deliver("bob", message).await });
            if number % 20 == 7 {
                // In the middle of one of the next frames, at the same offsets in every run.
                cutter.cut_after(number * 37 % 1500);
            }
            if number % 50 == 49 {
                tokio::time::sleep(Duration::from_millis(15)).await;
                cutter.cut();
            }
        }
        soon("all receipts", async {
            while let Some(done) = deliveries.join_next().await {
                done.expect("no panic").expect("delivered in the end");
            }
        })
        .await;
        let mut seen: BTreeMap<MsgId, u32> = BTreeMap::new();
        soon("all messages", async {
            while seen.len() < sent.len() {
                let message = receiver.next_message().await.expect("open");
                *seen.entry(message.id.clone()).or_default() += 1;
                receiver.ack(message.id).await.expect("open");
            }
        })
        .await;
        assert!(seen.values().all(|times| *times == 1), "only the sender's connection was cut");
        bus.stop().await;
    }
}

#[tokio::test]
async fn a_duplicate_id_with_other_content_is_rejected() {
    let bus = TestBus::start().await;
    let sender = bus.client("alice").await;
    let first = message(1);
    let mut second = message(2);
    second.id = first.id.clone();
    soon("receipt", sender.deliver("bob", first.clone())).await.expect("accepted");
    soon("receipt", sender.deliver("bob", first)).await.expect("a duplicate gets a receipt");
    let refused = soon("refusal", sender.deliver("bob", second)).await.expect_err("other content");
    assert_eq!(refused.code(), Some(ErrorCode::IdConflict));
    bus.stop().await;
}

#[tokio::test]
async fn an_oversized_message_is_rejected_before_it_is_sent() {
    let bus = TestBus::start().await;
    let sender = bus.client("alice").await;
    let huge = Body::of(&"x".repeat(17 << 20)).expect("a string");
    let message = InboxMessage::new(sender.me(), "task", huge);
    let refused = soon("refusal", sender.deliver("bob", message)).await.expect_err("too large");
    assert_eq!(refused.code(), Some(ErrorCode::FrameTooLarge));
    let large = Body::of(&"x".repeat(15 << 20)).expect("a string");
    let message = InboxMessage::new(sender.me(), "task", large);
    soon("receipt", sender.deliver("bob", message)).await.expect("within the limit");
    bus.stop().await;
}

#[tokio::test]
async fn a_displaced_subscriber_is_notified() {
    let bus = TestBus::start().await;
    let first = bus.client("bob").await;
    first.subscribe().await.expect("open");
    let second = bus.client("bob").await;
    second.subscribe().await.expect("open");
    assert!(soon("the end of the first", first.next_message()).await.is_none());
    let sender = bus.client("alice").await;
    soon("receipt", sender.deliver("bob", message(1))).await.expect("accepted");
    assert!(soon("message", second.next_message()).await.is_some());
    bus.stop().await;
}

#[tokio::test]
async fn live_events_reach_the_subscriber_in_order() {
    let bus = TestBus::start().await;
    let host = bus.client("host").await;
    let caller = bus.client("caller").await;
    caller.subscribe().await.expect("open");
    soon("status", caller.status()).await.expect("the broker has processed the subscription");
    let call = MsgId::from("call-1");
    for step in 0..3u64 {
        host.publish_event("caller", &call, Body::of(&step).expect("a number")).await.expect("open");
    }
    for step in 0..3u64 {
        let event = soon("event", caller.next_event()).await.expect("open");
        assert_eq!((&*event.from, event.body.to::<u64>().expect("a number")), ("host", step));
    }
    bus.stop().await;
}

#[tokio::test]
async fn presence_lists_the_subscribers_of_a_role() {
    let bus = TestBus::start().await;
    let options = toolbus::ClientOptions::default();
    let agent = toolbus::AgentRef::new("w1").with_role("worker");
    let worker = toolbus::BrokerClient::connect_with(&bus.url(), agent, crate::support::TOKEN, options).await;
    let worker = worker.expect("a connection");
    worker.subscribe().await.expect("open");
    soon("status", worker.status()).await.expect("the broker has processed the subscription");
    let other = bus.client("other").await;
    assert_eq!(soon("presence", other.list_connected("worker")).await.expect("answered"), ["w1"]);
    assert!(soon("presence", other.list_connected("boss")).await.expect("answered").is_empty());
    bus.stop().await;
}
