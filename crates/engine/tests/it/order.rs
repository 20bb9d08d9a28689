//! Order, redelivery, and what happens when a second subscriber comes.

use crate::support::{Bench, Told, message};
use toolbus_engine::{Command, Refusal};

#[test]
fn messages_of_one_sender_arrive_in_the_order_they_were_sent() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    ["a", "b", "c"].into_iter().for_each(|id| bench.send(alice, "bob", id));
    assert_eq!(bench.told(bob), [message("a", 1), message("b", 1), message("c", 1)]);
}

#[test]
fn messages_that_waited_arrive_in_the_order_they_were_sent() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    ["a", "b"].into_iter().for_each(|id| bench.send(alice, "bob", id));
    bench.sync_all();
    ["c", "d"].into_iter().for_each(|id| bench.send(alice, "bob", id));
    let bob = bench.join("bob");
    bench.send(alice, "bob", "e");
    bench.serve_fetches();
    let ids = ["a", "b", "c", "d", "e"].map(|id| message(id, 1));
    assert_eq!(bench.told(bob), ids, "what is stored comes before what is only in memory");
}

#[test]
fn unacknowledged_messages_come_first_after_a_reconnect() {
    for durable in [false, true] {
        let mut bench = Bench::new();
        let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
        ["a", "b", "c"].into_iter().for_each(|id| bench.send(alice, "bob", id));
        bench.ack(bob, "b");
        if durable {
            bench.sync_all();
        }
        bench.disconnect(bob);
        bench.send(alice, "bob", "d");
        let again = bench.join("bob");
        bench.serve_fetches();
        assert_eq!(bench.told(again), [message("a", 2), message("c", 2), message("d", 1)], "durable: {durable}");
    }
}

#[test]
fn unacknowledged_messages_come_again_when_the_same_connection_subscribes_again() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    bench.handle(bob, Command::Subscribe);
    assert_eq!(bench.told(bob), [message("a", 1), message("a", 2)]);
}

#[test]
fn unacknowledged_messages_come_again_after_a_restart() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    ["a", "b"].into_iter().for_each(|id| bench.send(alice, "bob", id));
    bench.sync_all();
    bench.ack(bob, "a");
    bench.sync_all();
    let mut bench = bench.restart();
    let bob = bench.join("bob");
    bench.serve_fetches();
    assert_eq!(bench.told(bob), [message("b", 1)]);
}

#[test]
fn a_displaced_subscriber_is_told_and_its_messages_go_to_the_new_one() {
    let mut bench = Bench::new();
    let (alice, first) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    bench.told(first);
    let second = bench.join("bob");
    let displaced = Told::Refused { refusal: Refusal::Displaced { mailbox: "bob".into() }, id: None };
    assert_eq!(bench.told(first), [displaced]);
    assert_eq!(bench.told(second), [message("a", 2)]);
}

#[test]
fn a_displaced_connection_that_leaves_takes_nothing_from_the_new_one() {
    let mut bench = Bench::new();
    let (alice, first) = (bench.connect("alice"), bench.join("bob"));
    let second = bench.join("bob");
    bench.disconnect(first);
    bench.send(alice, "bob", "a");
    assert_eq!(bench.told(second), [message("a", 1)]);
}
