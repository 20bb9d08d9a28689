//! Message order, redelivery, and displacement by a second subscriber.

use crate::support::{Harness, Received, message};
use toolbus_engine::{Command, Refusal};

#[test]
fn messages_of_one_sender_arrive_in_the_order_they_were_sent() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    ["a", "b", "c"].into_iter().for_each(|id| harness.send(alice, "bob", id));
    assert_eq!(harness.received(bob), [message("a", 1), message("b", 1), message("c", 1)]);
}

#[test]
fn a_backlog_arrives_in_the_order_it_was_sent() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    ["a", "b"].into_iter().for_each(|id| harness.send(alice, "bob", id));
    harness.sync_all();
    ["c", "d"].into_iter().for_each(|id| harness.send(alice, "bob", id));
    let bob = harness.subscribe("bob");
    harness.send(alice, "bob", "e");
    harness.serve_fetches();
    let ids = ["a", "b", "c", "d", "e"].map(|id| message(id, 1));
    assert_eq!(harness.received(bob), ids, "stored messages come before those in memory");
}

#[test]
fn unacknowledged_messages_are_redelivered_first_after_a_reconnect() {
    for durable in [false, true] {
        let mut harness = Harness::new();
        let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
        ["a", "b", "c"].into_iter().for_each(|id| harness.send(alice, "bob", id));
        harness.ack(bob, "b");
        if durable {
            harness.sync_all();
        }
        harness.disconnect(bob);
        harness.send(alice, "bob", "d");
        let again = harness.subscribe("bob");
        harness.serve_fetches();
        assert_eq!(harness.received(again), [message("a", 2), message("c", 2), message("d", 1)], "durable: {durable}");
    }
}

#[test]
fn unacknowledged_messages_are_redelivered_if_the_same_connection_subscribes_again() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    harness.handle(bob, Command::Subscribe);
    assert_eq!(harness.received(bob), [message("a", 1), message("a", 2)]);
}

#[test]
fn unacknowledged_messages_are_redelivered_after_a_restart() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    ["a", "b"].into_iter().for_each(|id| harness.send(alice, "bob", id));
    harness.sync_all();
    harness.ack(bob, "a");
    harness.sync_all();
    let mut harness = harness.restart();
    let bob = harness.subscribe("bob");
    harness.serve_fetches();
    assert_eq!(harness.received(bob), [message("b", 1)]);
}

#[test]
fn a_displaced_subscriber_is_notified_and_its_messages_go_to_the_new_one() {
    let mut harness = Harness::new();
    let (alice, first) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    harness.received(first);
    let second = harness.subscribe("bob");
    let displaced = Received::Refused { refusal: Refusal::Displaced { mailbox: "bob".into() }, id: None };
    assert_eq!(harness.received(first), [displaced]);
    assert_eq!(harness.received(second), [message("a", 2)]);
}

#[test]
fn the_disconnect_of_a_displaced_connection_does_not_affect_the_new_subscriber() {
    let mut harness = Harness::new();
    let (alice, first) = (harness.connect("alice"), harness.subscribe("bob"));
    let second = harness.subscribe("bob");
    harness.disconnect(first);
    harness.send(alice, "bob", "a");
    assert_eq!(harness.received(second), [message("a", 1)]);
}
