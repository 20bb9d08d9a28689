//! Deadlines: an expired message is never pushed, and its sender is notified.

use crate::support::{Harness, delivery, expired, message, puts, receipt, settles};
use toolbus_engine::{ConnId, Outgoing};

fn send_with_deadline(harness: &mut Harness, conn: ConnId, id: &str, deadline_ms: u64) {
    let mut limited = delivery("bob", id);
    limited.deadline_ms = Some(deadline_ms);
    harness.deliver(conn, limited);
}

#[test]
fn a_message_is_not_pushed_after_its_deadline_and_its_sender_is_notified() {
    let mut harness = Harness::new();
    let alice = harness.subscribe("alice");
    send_with_deadline(&mut harness, alice, "a", 50);
    harness.sync_all();
    assert_eq!(harness.received(alice), [receipt(1, "a")]);
    assert_eq!(harness.engine.next_wakeup(), Some(harness.now + 50));
    harness.now += 50;
    harness.tick();
    assert_eq!(harness.received(alice), [expired("a", "bob")]);
    assert!(settles(&harness.take_all(), "bob", "a"));
    let bob = harness.subscribe("bob");
    harness.serve_fetches();
    assert_eq!(harness.received(bob), []);
}

#[test]
fn a_deadline_is_enforced_at_the_push_even_without_a_tick() {
    for durable in [false, true] {
        let mut harness = Harness::new();
        let alice = harness.subscribe("alice");
        send_with_deadline(&mut harness, alice, "a", 50);
        harness.send(alice, "bob", "b");
        if durable {
            harness.sync_all();
            harness.received(alice);
        }
        harness.now += 50;
        let bob = harness.subscribe("bob");
        harness.serve_fetches();
        assert_eq!(harness.received(bob), [message("b", 1)], "durable: {durable}");
        assert_eq!(harness.received(alice), [expired("a", "bob")], "durable: {durable}");
        harness.tick();
        assert_eq!(harness.received(alice), [], "notified only once");
    }
}

#[test]
fn a_sender_that_waits_for_a_receipt_is_notified_of_expiry_once_and_gets_no_receipt() {
    let mut harness = Harness::new();
    let alice = harness.subscribe("alice");
    send_with_deadline(&mut harness, alice, "a", 50);
    harness.now += 50;
    harness.tick();
    harness.sync_all();
    assert_eq!(harness.received(alice), [expired("a", "bob")]);
}

#[test]
fn a_message_that_expires_while_being_written_gets_no_receipt() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    send_with_deadline(&mut harness, alice, "a", 50);
    let batch = harness.take_all();
    assert_eq!(puts(&batch), ["a"]);
    harness.now += 50;
    harness.tick();
    harness.synced(batch);
    assert_eq!(harness.received(alice), [expired("a", "bob")]);
    assert!(settles(&harness.take_all(), "bob", "a"), "its record is settled by the next batch");
}

#[test]
fn the_recipient_receives_the_remaining_time_to_live() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    send_with_deadline(&mut harness, alice, "a", 50);
    harness.now += 20;
    let bob = harness.subscribe("bob");
    let received = harness.outgoing(bob);
    assert!(matches!(received[..], [Outgoing::Message { deadline_ms: Some(30), .. }]), "{received:?}");
}

#[test]
fn a_deadline_of_zero_is_refused() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    send_with_deadline(&mut harness, alice, "a", 0);
    assert_eq!(harness.received(alice), [expired("a", "bob")]);
    assert_eq!(harness.received(bob), []);
}

#[test]
fn an_acknowledged_message_does_not_expire() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.subscribe("alice"), harness.subscribe("bob"));
    send_with_deadline(&mut harness, alice, "a", 50);
    harness.ack(bob, "a");
    harness.received(alice);
    harness.now += 50;
    harness.tick();
    assert_eq!(harness.received(alice), []);
}

#[test]
fn an_expired_message_frees_its_window_slot() {
    let mut harness = Harness::with(|options| options.window_messages = 1);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    send_with_deadline(&mut harness, alice, "a", 50);
    harness.send(alice, "bob", "b");
    harness.received(bob);
    harness.now += 50;
    harness.tick();
    assert_eq!(harness.received(bob), [message("b", 1)]);
}

#[test]
fn deadlines_survive_a_restart() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    send_with_deadline(&mut harness, alice, "a", 50);
    harness.sync_all();
    let mut harness = harness.restart();
    let alice = harness.subscribe("alice");
    assert_eq!(harness.engine.next_wakeup(), Some(harness.now + 50));
    harness.now += 50;
    harness.tick();
    assert_eq!(harness.received(alice), [expired("a", "bob")]);
}
