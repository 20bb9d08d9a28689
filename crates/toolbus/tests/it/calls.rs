//! Calls that report on their way: events and stored news in order, then the reply, against a real broker.

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

/// Everything that comes back for a call: the events, and the reply at the end.
async fn all_of(call: &mut Call) -> (Vec<u64>, Result<InboxMessage, BrokerError>) {
    let mut events = Vec::new();
    loop {
        match soon("the next item", call.next()).await.expect("the reply comes first") {
            CallItem::Event(body) => events.push(body.to().expect("a number")),
            CallItem::Reply(outcome) => {
                assert!(soon("the end", call.next()).await.is_none(), "nothing comes after the reply");
                return (events, outcome);
            }
        }
    }
}

#[tokio::test]
async fn events_come_in_order_and_before_the_reply() {
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
        let (events, reply) = all_of(&mut call).await;
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
async fn an_event_is_handed_out_while_the_call_is_still_under_way() {
    let bus = TestBus::start().await;
    let (host, caller) = (host(&bus, Framing::Compact).await, caller(&bus, Framing::Compact).await);
    let (mut call, request) = start(&caller, &host).await;
    for step in 0..3 {
        host.publish_event("caller", &request.id, number(step)).await.expect("open");
        let item = soon("event", call.next()).await;
        assert!(matches!(item, Some(CallItem::Event(body)) if body == number(step)));
    }
    soon("receipt", host.reply(&request, InboxKind::McpReply, number(1))).await.expect("accepted");
    assert!(all_of(&mut call).await.1.is_ok());
    bus.stop().await;
}

#[tokio::test]
async fn events_of_others_and_of_other_calls_are_not_the_calls_own() {
    let bus = TestBus::start().await;
    let (host, caller) = (host(&bus, Framing::Compact).await, caller(&bus, Framing::Compact).await);
    let intruder = bus.client("intruder").await;
    let (mut call, request) = start(&caller, &host).await;
    intruder.publish_event("caller", &request.id, number(666)).await.expect("open");
    store_event(&intruder, &request, 667).await;
    host.publish_event("caller", &toolbus::MsgId::from("another-call"), number(668)).await.expect("open");
    soon("receipt", host.reply(&request, InboxKind::McpReply, number(1))).await.expect("accepted");
    let (events, reply) = all_of(&mut call).await;
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
async fn a_dropped_call_is_cancelled_and_its_events_go_nowhere() {
    let bus = TestBus::start().await;
    let (host, caller) = (host(&bus, Framing::Compact).await, caller(&bus, Framing::Compact).await);
    let (call, request) = start(&caller, &host).await;
    store_event(&host, &request, 1).await;
    soon("status", caller.client().status()).await.expect("the event is here");
    drop(call);
    assert_eq!(soon("cancel", host.next_cancel()).await.expect("open"), request.id);
    // The reply that comes too late settles itself, and so did the event that nobody took.
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
    assert_eq!(all_of(&mut call).await.1.expect("answered").body, number(7));
    bus.stop().await;
}

#[tokio::test]
async fn events_that_nobody_takes_are_bounded_and_the_newest_stay() {
    let bus = TestBus::start().await;
    let (host, caller) = (host(&bus, Framing::Compact).await, caller(&bus, Framing::Compact).await);
    let (mut call, request) = start(&caller, &host).await;
    for step in 0..3000 {
        host.publish_event("caller", &request.id, number(step)).await.expect("open");
    }
    soon("receipt", host.reply(&request, InboxKind::McpReply, number(1))).await.expect("accepted");
    soon("status", caller.client().status()).await.expect("the reply is here");
    let (events, reply) = all_of(&mut call).await;
    assert!(reply.is_ok());
    assert_eq!((events.len(), events.last()), (1024, Some(&2999)));
    assert_eq!(call.dropped_events(), 3000 - 1024);
    bus.stop().await;
}

#[tokio::test]
async fn a_call_ends_when_its_time_is_up_even_while_events_keep_coming() {
    let bus = TestBus::start().await;
    let (host, caller) = (host(&bus, Framing::Compact).await, caller(&bus, Framing::Compact).await);
    let mut call = caller.start_call("host", call_message(), Duration::from_millis(200)).await.expect("open");
    let request = soon("the request", host.next_message()).await.expect("open");
    let talking = async {
        loop {
            host.publish_event("caller", &request.id, number(1)).await.expect("open");
            tokio::task::yield_now().await;
        }
    };
    let outcome = tokio::select! {
        () = talking => unreachable!("it talks for ever"),
        (_, outcome) = all_of(&mut call) => outcome,
    };
    assert!(matches!(outcome, Err(BrokerError::Timeout(_))), "{outcome:?}");
    assert_eq!(soon("cancel", host.next_cancel()).await.expect("open"), request.id);
    bus.stop().await;
}

#[tokio::test]
async fn an_id_can_be_under_way_only_once() {
    let bus = TestBus::start().await;
    let (host, caller) = (host(&bus, Framing::Compact).await, caller(&bus, Framing::Compact).await);
    let message = call_message();
    let mut first = caller.start_call("host", message.clone(), LONG).await.expect("open");
    let second = caller.request_message("host", message, LONG).await.expect_err("it is under way");
    assert_eq!(second.code(), Some(ErrorCode::IdConflict));
    let request = soon("the request", host.next_message()).await.expect("open");
    soon("receipt", host.reply(&request, InboxKind::McpReply, number(1))).await.expect("accepted");
    assert!(all_of(&mut first).await.1.is_ok(), "the first is not disturbed");
    bus.stop().await;
}

#[tokio::test]
async fn stored_events_survive_cut_links_and_are_handed_out_once() {
    let bus = TestBus::start().await;
    let cutter = Cutter::start(bus.address).await;
    let host = host(&bus, Framing::Compact).await;
    let caller = connect(&cutter.url(), "caller", Framing::Compact).await.into_multiplexed();
    let (mut call, request) = start(&caller, &host).await;
    let telling = async {
        for step in 0..60 {
            store_event(&host, &request, step).await;
            if step % 7 == 3 {
                cutter.cut();
            }
        }
        soon("receipt", host.reply(&request, InboxKind::McpReply, number(1))).await.expect("accepted");
    };
    let ((events, reply), ()) = tokio::join!(all_of(&mut call), telling);
    assert_eq!(events, Vec::from_iter(0..60));
    assert!(reply.is_ok());
    bus.stop().await;
}
