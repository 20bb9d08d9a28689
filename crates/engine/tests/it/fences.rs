//! A mailbox whose subscriber has another journal than the one before: messages that the earlier one may have started are
//! marked, and no others.

use crate::support::{Harness, Received, message};

fn unsure(id: &str) -> Received {
    Received::Unsure(id.into())
}

/// A sender, and a host that was pushed the message "seen" and is gone; "queued" was never pushed.
fn after_a_host(harness: &mut Harness) {
    let sender = harness.connect("worker");
    let host = harness.subscribe("host");
    harness.send(sender, "host", "seen");
    assert_eq!(harness.received(host), [message("seen", 1)]);
    harness.disconnect(host);
    harness.send(sender, "host", "queued");
    harness.sync_all();
}

#[test]
fn after_a_fence_messages_that_were_pushed_before_are_marked() {
    let mut harness = Harness::new();
    after_a_host(&mut harness);
    harness.engine.fence("host");
    let host = harness.subscribe("host");
    harness.serve_fetches();
    assert_eq!(harness.received(host), [unsure("seen"), message("seen", 2), message("queued", 1)]);
    let sender = harness.connect("worker");
    harness.send(sender, "host", "new");
    assert_eq!(harness.received(host), [message("new", 1)], "accepted after the fence");
    harness.disconnect(host);
    let host = harness.subscribe("host");
    harness.serve_fetches();
    let again = harness.received(host);
    assert!(again.contains(&unsure("seen")) && !again.contains(&unsure("new")), "{again:?}");
}

#[test]
fn without_a_fence_nothing_is_marked() {
    let mut harness = Harness::new();
    after_a_host(&mut harness);
    let host = harness.subscribe("host");
    harness.serve_fetches();
    assert_eq!(harness.received(host), [message("seen", 2), message("queued", 1)]);
}

#[test]
fn after_a_restart_of_the_broker_every_message_below_the_fence_may_have_been_pushed() {
    let mut harness = Harness::new();
    after_a_host(&mut harness);
    let mut harness = harness.restart();
    harness.engine.fence("host");
    let host = harness.subscribe("host");
    harness.serve_fetches();
    let received = harness.received(host);
    assert!(received.contains(&unsure("seen")) && received.contains(&unsure("queued")), "{received:?}");
}

#[test]
fn a_fence_is_restored() {
    let mut harness = Harness::new();
    after_a_host(&mut harness);
    let fence = harness.engine.fence("host");
    let mut harness = harness.restart();
    harness.engine.restore_fence("host", fence);
    let host = harness.subscribe("host");
    harness.serve_fetches();
    assert!(harness.received(host).contains(&unsure("seen")));
}
