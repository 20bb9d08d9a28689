//! One id, one message: repetitions are recognised, other uses of the id are refused, also after a restart.

use crate::support::{Bench, conflict, delivery, message, puts, receipt};
use toolbus_engine::ConnId;

fn send_other_content(bench: &mut Bench, conn: ConnId, to: &str, id: &str) {
    let mut other = delivery(to, id);
    other.content = 2;
    bench.deliver(conn, other);
}

#[test]
fn a_repeated_message_is_stored_once_and_receipted_again() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    bench.send(alice, "bob", "a");
    let batch = bench.take_all();
    assert_eq!(puts(&batch), ["a"]);
    assert_eq!(bench.told(alice), [], "the repetition is no safer than the original");
    bench.synced(batch);
    assert_eq!(bench.told(alice), [receipt(1, "a"), receipt(2, "a")]);
    bench.send(alice, "bob", "a");
    assert_eq!(bench.told(alice), [receipt(3, "a")], "now it is safe");
    assert!(!bench.engine.anything_to_write());
}

#[test]
fn a_repeated_message_is_pushed_once() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    bench.send(alice, "bob", "a");
    bench.ack(bob, "a");
    bench.send(alice, "bob", "a");
    assert_eq!(bench.told(bob), [message("a", 1)]);
    assert_eq!(bench.told(alice), [receipt(1, "a"), receipt(2, "a"), receipt(3, "a")]);
}

#[test]
fn a_repetition_on_a_new_connection_of_the_sender_is_recognised() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    bench.disconnect(alice);
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    bench.sync_all();
    assert_eq!(bench.told(alice), [receipt(1, "a")]);
    assert_eq!(bench.engine.status(bench.now).mailboxes[0].messages, 1);
}

#[test]
fn an_id_with_other_content_is_refused_while_pending_and_after() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    send_other_content(&mut bench, alice, "bob", "a");
    assert_eq!(bench.told(alice), [conflict("a", "bob")]);
    bench.ack(bob, "a");
    bench.told(alice);
    send_other_content(&mut bench, alice, "bob", "a");
    assert_eq!(bench.told(alice), [conflict("a", "bob")]);
}

#[test]
fn an_id_of_another_sender_is_refused() {
    let mut bench = Bench::new();
    let (alice, eve) = (bench.connect("alice"), bench.connect("eve"));
    bench.send(alice, "bob", "a");
    bench.send(eve, "bob", "a");
    assert_eq!(bench.told(eve), [conflict("a", "bob")]);
}

#[test]
fn the_same_id_in_another_mailbox_is_another_message() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    send_other_content(&mut bench, alice, "carol", "a");
    bench.sync_all();
    assert_eq!(bench.told(alice), [receipt(1, "a"), receipt(2, "a")]);
}

/// Pending, settled with a record, settled without one: each id is known after the restart.
#[test]
fn ids_are_known_after_a_restart() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "never written");
    bench.ack(bob, "never written");
    bench.send(alice, "bob", "written");
    bench.sync_all();
    bench.ack(bob, "written");
    bench.send(alice, "bob", "pending");
    bench.sync_all();

    let mut bench = bench.restart();
    let (alice, eve) = (bench.connect("alice"), bench.connect("eve"));
    for (number, id) in [(1, "never written"), (3, "written"), (5, "pending")] {
        bench.send(alice, "bob", id);
        send_other_content(&mut bench, alice, "bob", id);
        assert_eq!(bench.told(alice), [receipt(number, id), conflict(id, "bob")]);
        bench.send(eve, "bob", id);
        assert_eq!(bench.told(eve), [conflict(id, "bob")]);
    }
    let bob = bench.join("bob");
    bench.serve_fetches();
    assert_eq!(bench.told(bob), [message("pending", 1)]);
    assert!(!bench.engine.anything_to_write(), "nothing was stored a second time");
}

fn exchange(bench: &mut Bench, alice: ConnId, bob: ConnId, ids: &[&str]) {
    for id in ids {
        bench.send(alice, "bob", id);
        bench.ack(bob, id);
    }
    bench.told(alice);
    bench.told(bob);
}

#[test]
fn settled_ids_are_known_for_so_many_further_ones_and_not_forever() {
    let mut bench = Bench::with(|options| options.history_ids = 2);
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    exchange(&mut bench, alice, bob, &["a", "b", "c"]);
    bench.send(alice, "bob", "a");
    assert_eq!(bench.told(bob), [], "two further ids don't push it out");
    exchange(&mut bench, alice, bob, &["d", "e"]);
    bench.send(alice, "bob", "a");
    assert_eq!(bench.told(bob), [message("a", 1)], "past twice as many the id is free again");
}

#[test]
fn pending_ids_are_known_however_many_were_settled_since() {
    let mut bench = Bench::with(|options| options.history_ids = 1);
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "carol", "pending");
    exchange(&mut bench, alice, bob, &["a", "b", "c", "d"]);
    send_other_content(&mut bench, alice, "carol", "pending");
    assert_eq!(bench.told(alice), [conflict("pending", "carol")]);
}

#[test]
fn settled_ids_are_known_for_so_long_and_not_forever() {
    let mut bench = Bench::with(|options| options.history_age = 1_000);
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    exchange(&mut bench, alice, bob, &["a"]);
    bench.now += 1_000;
    exchange(&mut bench, alice, bob, &["b"]);
    bench.send(alice, "bob", "a");
    assert_eq!(bench.told(bob), []);
    for id in ["c", "d"] {
        bench.now += 1_001;
        exchange(&mut bench, alice, bob, &[id]);
    }
    bench.send(alice, "bob", "a");
    assert_eq!(bench.told(bob), [message("a", 1)]);
}
