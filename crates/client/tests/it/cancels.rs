//! A call that is cancelled while it is queued is withdrawn and never runs.

use crate::support::{Bus, request, soon, until};
use std::time::Duration;
use tokio::sync::watch;
use toolbus_client::{BrokerError, CallItem};
use toolbus_protocol::{ErrorCode, InboxKind};

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn cancelling_a_queued_call_ends_it_immediately_with_code_cancelled() {
    let bus = Bus::start();
    let observer = bus.client("observer").await;
    let caller = bus.client("caller").await.into_multiplexed();
    for receipted in [false, true] {
        let mut call = caller.start_call("host", request(), LONG).await.unwrap();
        if receipted {
            until("the call to be queued", async || bus.mailbox(&observer, "host").await.is_some()).await;
        }
        call.cancel();
        let Some(CallItem::Reply(Err(error))) = soon("the end", call.next()).await else { panic!("no error") };
        assert!(matches!(error, BrokerError::Rejected { .. }), "{error}");
        assert_eq!(error.code(), Some(ErrorCode::Cancelled), "{error}");
        assert_eq!(bus.mailbox(&observer, "host").await, None);
    }
}

#[tokio::test]
async fn dropping_a_queued_call_withdraws_it() {
    let bus = Bus::start();
    let observer = bus.client("observer").await;
    let caller = bus.client("caller").await.into_multiplexed();
    let call = caller.start_call("host", request(), LONG).await.unwrap();
    until("the call to be queued", async || bus.mailbox(&observer, "host").await.is_some()).await;
    drop(call);
    until("the call to be gone", async || bus.mailbox(&observer, "host").await.is_none()).await;
}

#[tokio::test]
async fn a_call_dropped_while_disconnected_is_withdrawn_after_the_reconnect() {
    let bus = Bus::start();
    let observer = bus.client("observer").await;
    let (link, is_up) = watch::channel(true);
    let caller = bus.client_over("caller", is_up).await.into_multiplexed();
    let queued = caller.start_call("host", request(), LONG).await.unwrap();
    until("the call to be queued", async || bus.mailbox(&observer, "host").await.is_some()).await;
    link.send_replace(false);
    until("the link to be down", async || !caller.reader_alive()).await;
    let unsent = caller.start_call("other", request(), LONG).await.unwrap();
    drop((queued, unsent));
    link.send_replace(true);
    until("the call to be gone", async || bus.mailbox(&observer, "host").await.is_none()).await;
    until("the other to be gone", async || bus.mailbox(&observer, "other").await.is_none()).await;
    // Frames are processed in order: this receipt means that the broker has processed all earlier frames.
    soon("a receipt", caller.client().deliver("elsewhere", request())).await.unwrap();
    assert_eq!(bus.mailbox(&observer, "other").await, None);
}

#[tokio::test]
async fn a_cancelled_call_in_flight_still_gets_its_reply() {
    let bus = Bus::start();
    let host = bus.client("host").await;
    host.subscribe().await.unwrap();
    let caller = bus.client("caller").await.into_multiplexed();
    let call = caller.start_call("host", request(), LONG).await.unwrap();
    let received = soon("the request", host.next_message()).await.unwrap();
    call.cancel();
    let cancelled = soon("the cancel", host.next_cancellation()).await.unwrap();
    assert_eq!((cancelled.id, cancelled.from.as_deref()), (received.id.clone(), Some("caller")));
    soon("a receipt", host.reply(&received, InboxKind::McpReply, received.body.clone())).await.unwrap();
    assert!(soon("the reply", call.reply()).await.is_ok());
}
