//! A reply that settles its request: both become durable atomically, and so do the receipts of both.

use crate::support::{Harness, conflict, delivery, message, puts, receipt, settled, settles};
use toolbus_engine::{Command, ConnId, Delivery};

/// Subscribes alice, who sends requests, and bob, who replies.
fn pair(harness: &mut Harness, numbered_receipts: bool) -> (ConnId, ConnId) {
    let alice = harness.connect_as("alice", None, numbered_receipts);
    harness.handle(alice, Command::Subscribe);
    (alice, harness.subscribe("bob"))
}

/// A reply that settles the request with that id as it was last pushed.
fn reply_to(harness: &Harness, request: &str) -> Delivery {
    Delivery {
        correlation_id: Some(request.into()),
        ack: Some(harness.tag(request)),
        ..delivery("alice", &format!("reply to {request}"))
    }
}

fn reply(harness: &mut Harness, bob: ConnId, request: &str) {
    let reply = reply_to(harness, request);
    harness.deliver(bob, reply);
}

#[test]
fn a_request_is_settled_in_the_batch_of_its_reply_and_never_before() {
    let mut harness = Harness::with(|options| (options.linger, options.lazy) = (50, 10));
    let (alice, bob) = pair(&mut harness, false);
    harness.send(alice, "bob", "q");
    harness.sync_all();
    reply(&mut harness, bob, "q");
    harness.now += 10;
    if let Some(earlier) = harness.take() {
        assert_eq!(puts(&earlier), [""; 0], "the reply lingers");
        assert!(!settles(&earlier, "bob", "q"), "the request must not be settled without its reply");
        harness.synced(earlier);
    }
    harness.now += 40;
    let batch = harness.take().expect("the reply is due");
    assert_eq!(puts(&batch), ["reply to q"]);
    assert!(settled(&batch, "bob", "q").unwrap().stored.is_some());
}

#[test]
fn a_request_is_settled_with_a_reply_that_is_elided() {
    let mut harness = Harness::new();
    let (alice, bob) = pair(&mut harness, false);
    harness.send(alice, "bob", "q");
    reply(&mut harness, bob, "q");
    assert_eq!(harness.received(alice), [message("reply to q", 1)]);
    harness.ack(alice, "reply to q");
    assert_eq!(harness.received(alice), [receipt(1, "q")]);
    assert_eq!(harness.received(bob), [message("q", 1), receipt(1, "reply to q")]);
    let batch = harness.take_all();
    assert_eq!(puts(&batch), [""; 0], "both records are elided");
    assert!(settles(&batch, "bob", "q") && settles(&batch, "alice", "reply to q"));
}

#[test]
fn the_receipt_of_a_request_waits_until_its_reply_is_durable() {
    let mut harness = Harness::new();
    let (alice, bob) = pair(&mut harness, false);
    harness.send(alice, "bob", "q");
    reply(&mut harness, bob, "q");
    assert_eq!(harness.received(alice), [message("reply to q", 1)], "no receipt yet");
    let batch = harness.take_all();
    assert_eq!(puts(&batch), ["reply to q"], "the record of the request is elided");
    assert!(settles(&batch, "bob", "q"));
    assert_eq!(harness.received(alice), []);
    harness.synced(batch);
    assert_eq!(harness.received(alice), [receipt(1, "q")]);
}

#[test]
fn the_receipt_of_a_request_being_written_waits_for_its_reply_too() {
    let mut harness = Harness::new();
    let (alice, bob) = pair(&mut harness, false);
    harness.send(alice, "bob", "q");
    let first = harness.take_all();
    reply(&mut harness, bob, "q");
    harness.received(alice);
    harness.synced(first);
    assert_eq!(harness.received(alice), [], "its record is durable, but the reply that settles it is not");
    harness.sync_all();
    assert_eq!(harness.received(alice), [receipt(1, "q")]);
}

#[test]
fn a_reply_pushed_to_the_waiting_connection_is_the_receipt_of_its_request() {
    let mut harness = Harness::new();
    let (alice, bob) = pair(&mut harness, true);
    harness.send(alice, "bob", "q");
    reply(&mut harness, bob, "q");
    harness.sync_all();
    assert_eq!(harness.received(alice), [message("reply to q", 1)]);
}

#[test]
fn a_reply_pushed_to_another_connection_is_no_receipt() {
    let mut harness = Harness::new();
    let requester = harness.connect_as("alice", None, true);
    let (subscriber, bob) = pair(&mut harness, true);
    harness.send(requester, "bob", "q");
    reply(&mut harness, bob, "q");
    harness.sync_all();
    assert_eq!(harness.received(subscriber), [message("reply to q", 1)]);
    assert_eq!(harness.received(requester), [receipt(1, "q")]);
}

#[test]
fn a_message_with_another_correlation_id_is_no_receipt() {
    let mut harness = Harness::new();
    let (alice, bob) = pair(&mut harness, true);
    harness.send(alice, "bob", "q");
    let mut other = reply_to(&harness, "q");
    other.correlation_id = Some("something else".into());
    harness.deliver(bob, other);
    harness.sync_all();
    assert_eq!(harness.received(alice), [message("reply to q", 1), receipt(1, "q")]);
}

#[test]
fn a_reply_held_back_by_the_window_is_no_receipt() {
    let mut harness = Harness::with(|options| options.window_messages = 1);
    let (alice, bob) = pair(&mut harness, true);
    harness.send(bob, "alice", "fills the window");
    harness.send(alice, "bob", "q");
    reply(&mut harness, bob, "q");
    harness.sync_all();
    assert_eq!(harness.received(alice), [message("fills the window", 1), receipt(1, "q")]);
}

#[test]
fn a_duplicate_request_waits_until_its_reply_is_durable() {
    let mut harness = Harness::new();
    let (alice, bob) = pair(&mut harness, false);
    harness.send(alice, "bob", "q");
    harness.sync_all();
    assert_eq!(harness.received(alice), [receipt(1, "q")]);
    reply(&mut harness, bob, "q");
    harness.received(alice);
    harness.send(alice, "bob", "q");
    assert_eq!(harness.received(alice), []);
    harness.sync_all();
    assert_eq!(harness.received(alice), [receipt(2, "q")]);
    harness.send(alice, "bob", "q");
    assert_eq!(harness.received(alice), [receipt(3, "q")]);
}

#[test]
fn a_refused_reply_does_not_settle_its_request() {
    let mut harness = Harness::new();
    let (alice, bob) = pair(&mut harness, false);
    harness.send(bob, "alice", "reply to q");
    harness.send(alice, "bob", "q");
    let mut other = reply_to(&harness, "q");
    other.content = 2;
    harness.received(bob);
    harness.deliver(bob, other);
    assert_eq!(harness.received(bob), [conflict("reply to q", "alice")]);
    harness.disconnect(bob);
    let bob = harness.subscribe("bob");
    assert_eq!(harness.received(bob), [message("q", 2)]);
}

#[test]
fn a_duplicate_reply_settles_a_redelivered_request() {
    let mut harness = Harness::new();
    let (alice, bob) = pair(&mut harness, false);
    harness.send(alice, "bob", "q");
    let without_ack = Delivery { ack: None, ..reply_to(&harness, "q") };
    harness.deliver(bob, without_ack);
    harness.sync_all();
    harness.disconnect(bob);
    let bob = harness.subscribe("bob");
    harness.serve_fetches();
    harness.received(bob);
    reply(&mut harness, bob, "q");
    assert_eq!(harness.received(bob), [receipt(1, "reply to q")]);
    let batch = harness.take_all();
    assert_eq!(puts(&batch), [""; 0]);
    assert!(settles(&batch, "bob", "q"));
}

#[test]
fn only_the_mailbox_that_holds_a_request_can_settle_it() {
    let mut harness = Harness::new();
    let (alice, bob) = pair(&mut harness, false);
    let eve = harness.subscribe("eve");
    harness.send(alice, "bob", "q");
    reply(&mut harness, eve, "q");
    harness.disconnect(bob);
    let bob = harness.subscribe("bob");
    assert_eq!(harness.received(bob), [message("q", 2)]);
}

#[test]
fn after_a_crash_before_the_sync_the_request_is_redelivered() {
    let mut harness = Harness::new();
    let (alice, bob) = pair(&mut harness, false);
    harness.send(alice, "bob", "q");
    harness.sync_all();
    reply(&mut harness, bob, "q");
    harness.take_all();
    let mut harness = harness.restart();
    let bob = harness.subscribe("bob");
    harness.serve_fetches();
    assert_eq!(harness.received(bob), [message("q", 1)]);
}

#[test]
fn an_acknowledgement_in_a_reply_frees_its_window_slot() {
    let mut harness = Harness::with(|options| options.window_messages = 1);
    let (alice, bob) = pair(&mut harness, false);
    harness.send(alice, "bob", "q");
    harness.send(alice, "bob", "r");
    harness.received(bob);
    reply(&mut harness, bob, "q");
    assert_eq!(harness.received(bob), [message("r", 1)]);
}
