//! Deduplication: duplicates are recognised and conflicting uses of an id are refused, also after a restart.

use crate::support::{Harness, conflict, delivery, message, puts, receipt};
use toolbus_engine::ConnId;

fn send_other_content(harness: &mut Harness, conn: ConnId, to: &str, id: &str) {
    let mut other = delivery(to, id);
    other.content = 2;
    harness.deliver(conn, other);
}

#[test]
fn a_duplicate_is_stored_once_and_gets_its_own_receipt() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    harness.send(alice, "bob", "a");
    let batch = harness.take_all();
    assert_eq!(puts(&batch), ["a"]);
    assert_eq!(harness.received(alice), [], "a duplicate is no more durable than the original");
    harness.synced(batch);
    assert_eq!(harness.received(alice), [receipt(1, "a"), receipt(2, "a")]);
    harness.send(alice, "bob", "a");
    assert_eq!(harness.received(alice), [receipt(3, "a")], "the message is durable");
    assert!(!harness.engine.anything_to_write());
}

#[test]
fn a_duplicate_is_not_pushed() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    harness.send(alice, "bob", "a");
    harness.ack(bob, "a");
    harness.send(alice, "bob", "a");
    assert_eq!(harness.received(bob), [message("a", 1)]);
    assert_eq!(harness.received(alice), [receipt(1, "a"), receipt(2, "a"), receipt(3, "a")]);
}

#[test]
fn a_duplicate_on_a_new_connection_of_the_sender_is_recognised() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    harness.disconnect(alice);
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    harness.sync_all();
    assert_eq!(harness.received(alice), [receipt(1, "a")]);
    assert_eq!(harness.engine.status(harness.now).mailboxes[0].messages, 1);
}

#[test]
fn a_duplicate_with_other_content_is_refused_while_pending_and_after() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    send_other_content(&mut harness, alice, "bob", "a");
    assert_eq!(harness.received(alice), [conflict("a", "bob")]);
    harness.ack(bob, "a");
    harness.received(alice);
    send_other_content(&mut harness, alice, "bob", "a");
    assert_eq!(harness.received(alice), [conflict("a", "bob")]);
}

#[test]
fn a_duplicate_from_another_sender_is_refused() {
    let mut harness = Harness::new();
    let (alice, eve) = (harness.connect("alice"), harness.connect("eve"));
    harness.send(alice, "bob", "a");
    harness.send(eve, "bob", "a");
    assert_eq!(harness.received(eve), [conflict("a", "bob")]);
}

#[test]
fn the_same_id_in_another_mailbox_is_another_message() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    send_other_content(&mut harness, alice, "carol", "a");
    harness.sync_all();
    assert_eq!(harness.received(alice), [receipt(1, "a"), receipt(2, "a")]);
}

/// Covers ids that are pending, settled with a record, and settled with an elided record.
#[test]
fn ids_are_known_after_a_restart() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "never written");
    harness.ack(bob, "never written");
    harness.send(alice, "bob", "written");
    harness.sync_all();
    harness.ack(bob, "written");
    harness.send(alice, "bob", "pending");
    harness.sync_all();

    let mut harness = harness.restart();
    let (alice, eve) = (harness.connect("alice"), harness.connect("eve"));
    for (number, id) in [(1, "never written"), (3, "written"), (5, "pending")] {
        harness.send(alice, "bob", id);
        send_other_content(&mut harness, alice, "bob", id);
        assert_eq!(harness.received(alice), [receipt(number, id), conflict(id, "bob")]);
        harness.send(eve, "bob", id);
        assert_eq!(harness.received(eve), [conflict(id, "bob")]);
    }
    let bob = harness.subscribe("bob");
    harness.serve_fetches();
    assert_eq!(harness.received(bob), [message("pending", 1)]);
    assert!(!harness.engine.anything_to_write(), "no duplicate was stored");
}

fn exchange(harness: &mut Harness, alice: ConnId, bob: ConnId, ids: &[&str]) {
    for id in ids {
        harness.send(alice, "bob", id);
        harness.ack(bob, id);
    }
    harness.received(alice);
    harness.received(bob);
}

#[test]
fn settled_ids_are_kept_for_the_configured_count_then_forgotten() {
    let mut harness = Harness::with(|options| options.history_ids = 2);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    exchange(&mut harness, alice, bob, &["a", "b", "c"]);
    harness.send(alice, "bob", "a");
    assert_eq!(harness.received(bob), [], "two further ids do not evict it");
    exchange(&mut harness, alice, bob, &["d", "e"]);
    harness.send(alice, "bob", "a");
    assert_eq!(harness.received(bob), [message("a", 1)], "after twice as many the id is forgotten");
}

#[test]
fn pending_ids_are_never_forgotten() {
    let mut harness = Harness::with(|options| options.history_ids = 1);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "carol", "pending");
    exchange(&mut harness, alice, bob, &["a", "b", "c", "d"]);
    send_other_content(&mut harness, alice, "carol", "pending");
    assert_eq!(harness.received(alice), [conflict("pending", "carol")]);
}

#[test]
fn settled_ids_are_kept_for_the_configured_time_then_forgotten() {
    let mut harness = Harness::with(|options| options.history_age = 1_000);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    exchange(&mut harness, alice, bob, &["a"]);
    harness.now += 1_000;
    exchange(&mut harness, alice, bob, &["b"]);
    harness.send(alice, "bob", "a");
    assert_eq!(harness.received(bob), []);
    for id in ["c", "d"] {
        harness.now += 1_001;
        exchange(&mut harness, alice, bob, &[id]);
    }
    harness.send(alice, "bob", "a");
    assert_eq!(harness.received(bob), [message("a", 1)]);
}
