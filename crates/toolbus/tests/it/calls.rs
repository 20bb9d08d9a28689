//! Calls with events against a real broker: live and stored events in order, then the reply.

use crate::support::{Cutter, TestBus, connect, soon};
use std::time::Duration;
use toolbus::{
    AgentRef, Body, BrokerClient, BrokerError, Call, CallItem, ErrorCode, InboxKind, InboxMessage, MultiplexedClient,
};
use toolbus_protocol::Framing;

const LONG: Duration = Duration::from_secs(20);

fn number(value: u64) -> Body {
    Body::of(&value).expect("a number")
}

fn call_message() -> InboxMessage {
    InboxMessage::new(AgentRef::new("caller"), InboxKind::McpRequest, Body::null())
}

async fn host(bus: &TestBus, framing: Framing) -> BrokerClient {
    let host = connect(&bus.url(), "host", framing).await;
    host.subscribe().await.expect("open");
    host
}

async fn caller(bus: &TestBus, framing: Framing) -> MultiplexedClient {
    connect(&bus.url(), "caller", framing).await.into_multiplexed()
}

async fn start(caller: &MultiplexedClient, host: &BrokerClient) -> (Call, InboxMessage) {
    let call = soon("a slot", caller.start_call("host", call_message(), LONG)).await.expect("open");
    let request = soon("the request", host.next_message()).await.expect("open");
    assert_eq!(call.id(), request.id);
    (call, request)
}

async fn store_event(from: &BrokerClient, request: &InboxMessage, value: u64) {
    let event = InboxMessage::new(from.me(), InboxKind::McpEvent, number(value)).correlated_to(request.id.clone());
    soon("receipt", from.deliver("caller", event)).await.expect("accepted");
}

/// All events of a call, and its reply.
async fn collect(call: &mut Call) -> (Vec<u64>, Result<InboxMessage, BrokerError>) {
    let mut events = Vec::new();
    loop {
        match soon("the next item", call.next()).await.expect("no end before the reply") {
            CallItem::Event(body) => events.push(body.to().expect("a number")),
            CallItem::Reply(outcome) => {
                assert!(soon("the end", call.next()).await.is_none(), "nothing comes after the reply");
                return (events, outcome);
            }
        }
    }
}

#[tokio::test]
async fn events_arrive_in_order_before_the_reply() {
    for framing in [Framing::Compact, Framing::Json] {
        let bus = TestBus::start().await;
        let (host, caller) = (host(&bus, framing).await, caller(&bus, framing).await);
        let (mut call, request) = start(&caller, &host).await;
        for step in 0..30 {
            match step % 3 {
                2 => store_event(&host, &request, step).await,
                _ => host.publish_event("caller", &request.id, number(step)).await.expect("open"),
            }
        }
        soon("receipt", host.reply(&request, InboxKind::McpReply, number(99))).await.expect("accepted");
        let (events, reply) = collect(&mut call).await;
        assert_eq!(events, Vec::from_iter(0..30));
        assert_eq!(reply.expect("answered").body, number(99));
        soon("the stored events are acknowledged", async {
            while caller.client().status().await.expect("open").mailboxes.iter().any(|mailbox| mailbox.messages > 0) {
                tokio::task::yield_now().await;
            }
        })
        .await;
        bus.stop().await;
    }
}

#[tokio::test]
async fn events_are_delivered_while_the_call_runs() {
    let bus = TestBus::start().await;
    let (host, caller) = (host(&bus, Framing::Compact).await, caller(&bus, Framing::Compact).await);
    let (mut call, request) = start(&caller, &host).await;
    for step in 0..3 {
        host.publish_event("caller", &request.id, number(step)).await.expect("open");
        let item = soon("event", call.next()).await;
        assert!(matches!(item, Some(CallItem::Event(body)) if body == number(step)));
    }
    soon("receipt", host.reply(&request, InboxKind::McpReply, number(1))).await.expect("accepted");
    assert!(collect(&mut call).await.1.is_ok());
    bus.stop().await;
}

#[tokio::test]
async fn events_of_other_senders_and_calls_are_not_mixed_in() {
    let bus = TestBus::start().await;
    let (host, caller) = (host(&bus, Framing::Compact).await, caller(&bus, Framing::Compact).await);
    let intruder = bus.client("intruder").await;
    let (mut call, request) = start(&caller, &host).await;
    intruder.publish_event("caller", &request.id, number(666)).await.expect("open");
    store_event(&intruder, &request, 667).await;
    host.publish_event("caller", &toolbus::MsgId::from("another-call"), number(668)).await.expect("open");
    soon("receipt", host.reply(&request, InboxKind::McpReply, number(1))).await.expect("accepted");
    let (events, reply) = collect(&mut call).await;
    assert!(events.is_empty() && reply.is_ok(), "{events:?}");
    for (from, value) in [("intruder", 666), ("host", 668)] {
        let event = soon("event", caller.client().next_event()).await.expect("open");
        assert_eq!((&*event.from, event.body), (from, number(value)));
    }
    let stored = soon("message", caller.client().next_message()).await.expect("open");
    assert_eq!((&*stored.from.session_id, stored.body), ("intruder", number(667)));
    bus.stop().await;
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_and_its_events_are_discarded() {
    let bus = TestBus::start().await;
    let (host, caller) = (host(&bus, Framing::Compact).await, caller(&bus, Framing::Compact).await);
    let (call, request) = start(&caller, &host).await;
    store_event(&host, &request, 1).await;
    soon("status", caller.client().status()).await.expect("the event is here");
    drop(call);
    assert_eq!(soon("cancel", host.next_cancel()).await.expect("open"), request.id);
    // The client acknowledges the late reply and the unread event by itself.
    soon("receipt", host.reply(&request, InboxKind::McpReply, number(1))).await.expect("accepted");
    soon("an empty mailbox", async {
        while caller.client().status().await.expect("open").mailboxes.iter().any(|mailbox| mailbox.messages > 0) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    bus.stop().await;
}

#[tokio::test]
async fn a_cancelled_call_still_gets_its_reply() {
    let bus = TestBus::start().await;
    let (host, caller) = (host(&bus, Framing::Compact).await, caller(&bus, Framing::Compact).await);
    let (mut call, request) = start(&caller, &host).await;
    call.cancel();
    assert_eq!(soon("cancel", host.next_cancel()).await.expect("open"), request.id);
    soon("receipt", host.reply(&request, InboxKind::McpReply, number(7))).await.expect("accepted");
    assert_eq!(collect(&mut call).await.1.expect("answered").body, number(7));
    bus.stop().await;
}

#[tokio::test]
async fn unread_events_are_bounded_and_the_newest_are_kept() {
    let bus = TestBus::start().await;
    let (host, caller) = (host(&bus, Framing::Compact).await, caller(&bus, Framing::Compact).await);
    let (mut call, request) = start(&caller, &host).await;
    for step in 0..3000 {
        host.publish_event("caller", &request.id, number(step)).await.expect("open");
    }
    soon("receipt", host.reply(&request, InboxKind::McpReply, number(1))).await.expect("accepted");
    soon("status", caller.client().status()).await.expect("the reply is here");
    let (events, reply) = collect(&mut call).await;
    assert!(reply.is_ok());
    assert_eq!((events.len(), events.last()), (1024, Some(&2999)));
    assert_eq!(call.dropped_events(), 3000 - 1024);
    bus.stop().await;
}

#[tokio::test]
async fn a_call_ends_at_its_deadline_despite_a_stream_of_events() {
    let bus = TestBus::start().await;
    let (host, caller) = (host(&bus, Framing::Compact).await, caller(&bus, Framing::Compact).await);
    let mut call = caller.start_call("host", call_message(), Duration::from_millis(200)).await.expect("open");
    let request = soon("the request", host.next_message()).await.expect("open");
    let publishing = async {
        loop {
            host.publish_event("caller", &request.id, number(1)).await.expect("open");
            tokio::task::yield_now().await;
        }
    };
    let outcome = tokio::select! {
        () = publishing => unreachable!("an endless loop"),
        (_, outcome) = collect(&mut call) => outcome,
    };
    assert!(matches!(outcome, Err(BrokerError::Timeout(_))), "{outcome:?}");
    assert_eq!(soon("cancel", host.next_cancel()).await.expect("open"), request.id);
    bus.stop().await;
}

#[tokio::test]
async fn a_second_call_with_the_same_id_is_rejected() {
    let bus = TestBus::start().await;
    let (host, caller) = (host(&bus, Framing::Compact).await, caller(&bus, Framing::Compact).await);
    let message = call_message();
    let mut first = caller.start_call("host", message.clone(), LONG).await.expect("open");
    let second = caller.request_message("host", message, LONG).await.expect_err("a call with this id is running");
    assert_eq!(second.code(), Some(ErrorCode::IdConflict));
    let request = soon("the request", host.next_message()).await.expect("open");
    soon("receipt", host.reply(&request, InboxKind::McpReply, number(1))).await.expect("accepted");
    assert!(collect(&mut first).await.1.is_ok(), "the first is not disturbed");
    bus.stop().await;
}

#[tokio::test]
async fn stored_events_survive_cut_connections_and_are_delivered_once() {
    let bus = TestBus::start().await;
    let cutter = Cutter::start(bus.address).await;
    let host = host(&bus, Framing::Compact).await;
    let caller = connect(&cutter.url(), "caller", Framing::Compact).await.into_multiplexed();
    let (mut call, request) = start(&caller, &host).await;
    let sending = async {
        for step in 0..60 {
            store_event(&host, &request, step).await;
            if step % 7 == 3 {
                cutter.cut();
            }
        }
        soon("receipt", host.reply(&request, InboxKind::McpReply, number(1))).await.expect("accepted");
    };
    let ((events, reply), ()) = tokio::join!(collect(&mut call), sending);
    assert_eq!(events, Vec::from_iter(0..60));
    assert!(reply.is_ok());
    bus.stop().await;
}
