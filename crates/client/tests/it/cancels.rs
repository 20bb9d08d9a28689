//! A call that is given up while it is queued is taken back: nobody ever runs it.

use crate::support::{Bus, request, soon, until};
use std::time::Duration;
use tokio::sync::watch;
use toolbus_client::{BrokerError, CallItem};
use toolbus_protocol::{ErrorCode, InboxKind};

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_queued_call_that_is_cancelled_ends_at_once_with_that_code() {
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
async fn a_queued_call_that_is_dropped_is_taken_back() {
    let bus = Bus::start();
    let observer = bus.client("observer").await;
    let caller = bus.client("caller").await.into_multiplexed();
    let call = caller.start_call("host", request(), LONG).await.unwrap();
    until("the call to be queued", async || bus.mailbox(&observer, "host").await.is_some()).await;
    drop(call);
    until("the call to be gone", async || bus.mailbox(&observer, "host").await.is_none()).await;
}

#[tokio::test]
async fn a_call_that_is_dropped_while_the_link_is_down_is_taken_back_with_the_next_one() {
    let bus = Bus::start();
    let observer = bus.client("observer").await;
    let (link, stands) = watch::channel(true);
    let caller = bus.client_over("caller", stands).await.into_multiplexed();
    let queued = caller.start_call("host", request(), LONG).await.unwrap();
    until("the call to be queued", async || bus.mailbox(&observer, "host").await.is_some()).await;
    link.send_replace(false);
    until("the link to be down", async || !caller.reader_alive()).await;
    let unsent = caller.start_call("other", request(), LONG).await.unwrap();
    drop((queued, unsent));
    link.send_replace(true);
    until("the call to be gone", async || bus.mailbox(&observer, "host").await.is_none()).await;
    until("the other to be gone", async || bus.mailbox(&observer, "other").await.is_none()).await;
    // All that the caller had to send is with the broker by now.
    soon("a receipt", caller.client().deliver("elsewhere", request())).await.unwrap();
    assert_eq!(bus.mailbox(&observer, "other").await, None);
}

#[tokio::test]
async fn a_call_in_flight_that_is_cancelled_still_gets_its_reply() {
    let bus = Bus::start();
    let host = bus.client("host").await;
    host.subscribe().await.unwrap();
    let caller = bus.client("caller").await.into_multiplexed();
    let call = caller.start_call("host", request(), LONG).await.unwrap();
    let received = soon("the request", host.next_message()).await.unwrap();
    call.cancel();
    assert_eq!(soon("the cancel", host.next_cancel()).await.unwrap(), received.id);
    soon("a receipt", host.reply(&received, InboxKind::McpReply, received.body.clone())).await.unwrap();
    assert!(soon("the reply", call.reply()).await.is_ok());
}
