//! A mailbox whose subscriber has another journal than the one before: messages that the earlier one may have started are
//! marked, and no others.

use crate::support::{Harness, Received, delivery, message};
use toolbus_engine::Delivery;

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
    harness.engine.fence(harness.now, "host");
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
    harness.engine.fence(harness.now, "host");
    let host = harness.subscribe("host");
    harness.serve_fetches();
    let received = harness.received(host);
    assert!(received.contains(&unsure("seen")) && received.contains(&unsure("queued")), "{received:?}");
}

#[test]
fn a_fence_is_restored() {
    let mut harness = Harness::new();
    after_a_host(&mut harness);
    let fence = harness.engine.fence(harness.now, "host");
    let mut harness = harness.restart();
    harness.engine.restore_fence("host", fence);
    let host = harness.subscribe("host");
    harness.serve_fetches();
    assert!(harness.received(host).contains(&unsure("seen")));
}

/// A message that the sender sent before, and that this process of the broker does not know.
fn repetition(id: &str, age_ms: u64) -> Delivery {
    Delivery { age_ms: Some(age_ms), ..delivery("host", id) }
}

#[test]
fn a_message_that_was_first_sent_before_the_fence_is_marked_although_it_is_accepted_after_it() {
    let mut harness = Harness::new();
    harness.now = 1_000_000;
    harness.engine.fence(harness.now, "host");
    let host = harness.subscribe("host");
    harness.now += 60_000;
    let sender = harness.connect("worker");
    // A broker that is slow to read it does not make it younger.
    harness.now += 20_000;
    harness.deliver(sender, repetition("before", 60_001));
    harness.deliver(sender, repetition("long after", 1_000));
    harness.deliver(sender, delivery("host", "new"));
    let received = harness.received(host);
    assert_eq!(received, [unsure("before"), message("before", 1), message("long after", 1), message("new", 1)]);
}

#[test]
fn a_message_that_was_first_sent_before_the_fence_is_marked_if_it_was_queued_meanwhile() {
    let mut harness = Harness::new();
    let sender = harness.connect("worker");
    harness.deliver(sender, repetition("again", 5));
    harness.deliver(sender, delivery("host", "new"));
    harness.engine.fence(harness.now, "host");
    harness.sync_all();
    let host = harness.subscribe("host");
    harness.serve_fetches();
    assert_eq!(harness.received(host), [unsure("again"), message("again", 1), message("new", 1)]);
}

#[test]
fn a_repetition_is_marked_after_a_restart_of_the_broker_too() {
    let mut harness = Harness::new();
    harness.now = 1_000_000;
    let fence = harness.engine.fence(harness.now, "host");
    harness.now += 60_000;
    let sender = harness.connect("worker");
    harness.deliver(sender, repetition("before", 60_001));
    harness.deliver(sender, delivery("host", "new"));
    harness.sync_all();
    let mut harness = harness.restart();
    harness.engine.restore_fence("host", fence);
    let host = harness.subscribe("host");
    harness.serve_fetches();
    assert_eq!(harness.received(host), [unsure("before"), message("before", 1), message("new", 1)]);
}
