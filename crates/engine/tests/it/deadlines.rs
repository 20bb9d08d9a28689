//! Messages with a deadline: never pushed after it, and the sender learns of it.

use crate::support::{Bench, delivery, expired, message, puts, receipt, settles};
use toolbus_engine::{ConnId, Outgoing};

fn send_with_deadline(bench: &mut Bench, conn: ConnId, id: &str, deadline_ms: u64) {
    let mut limited = delivery("bob", id);
    limited.deadline_ms = Some(deadline_ms);
    bench.deliver(conn, limited);
}

#[test]
fn a_message_is_not_pushed_after_its_deadline_and_its_sender_is_told() {
    let mut bench = Bench::new();
    let alice = bench.join("alice");
    send_with_deadline(&mut bench, alice, "a", 50);
    bench.sync_all();
    assert_eq!(bench.told(alice), [receipt(1, "a")]);
    assert_eq!(bench.engine.next_wakeup(), Some(bench.now + 50));
    bench.now += 50;
    bench.tick();
    assert_eq!(bench.told(alice), [expired("a", "bob")]);
    assert!(settles(&bench.take_all(), "bob", "a"));
    let bob = bench.join("bob");
    bench.serve_fetches();
    assert_eq!(bench.told(bob), []);
}

#[test]
fn a_deadline_holds_also_when_nobody_watched_the_clock() {
    for durable in [false, true] {
        let mut bench = Bench::new();
        let alice = bench.join("alice");
        send_with_deadline(&mut bench, alice, "a", 50);
        bench.send(alice, "bob", "b");
        if durable {
            bench.sync_all();
            bench.told(alice);
        }
        bench.now += 50;
        let bob = bench.join("bob");
        bench.serve_fetches();
        assert_eq!(bench.told(bob), [message("b", 1)], "durable: {durable}");
        assert_eq!(bench.told(alice), [expired("a", "bob")], "durable: {durable}");
        bench.tick();
        assert_eq!(bench.told(alice), [], "told once");
    }
}

#[test]
fn a_sender_that_still_waits_for_its_receipt_is_told_once_and_gets_none() {
    let mut bench = Bench::new();
    let alice = bench.join("alice");
    send_with_deadline(&mut bench, alice, "a", 50);
    bench.now += 50;
    bench.tick();
    bench.sync_all();
    assert_eq!(bench.told(alice), [expired("a", "bob")]);
}

#[test]
fn a_message_that_expires_while_it_is_written_brings_no_receipt() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    send_with_deadline(&mut bench, alice, "a", 50);
    let batch = bench.take_all();
    assert_eq!(puts(&batch), ["a"]);
    bench.now += 50;
    bench.tick();
    bench.synced(batch);
    assert_eq!(bench.told(alice), [expired("a", "bob")]);
    assert!(settles(&bench.take_all(), "bob", "a"), "its record is settled afterwards");
}

#[test]
fn the_recipient_is_told_how_much_time_is_left() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    send_with_deadline(&mut bench, alice, "a", 50);
    bench.now += 20;
    let bob = bench.join("bob");
    let told = bench.outgoing(bob);
    assert!(matches!(told[..], [Outgoing::Message { deadline_ms: Some(30), .. }]), "{told:?}");
}

#[test]
fn a_message_whose_time_is_up_on_arrival_is_refused() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    send_with_deadline(&mut bench, alice, "a", 0);
    assert_eq!(bench.told(alice), [expired("a", "bob")]);
    assert_eq!(bench.told(bob), []);
}

#[test]
fn an_acknowledged_message_does_not_expire() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.join("alice"), bench.join("bob"));
    send_with_deadline(&mut bench, alice, "a", 50);
    bench.ack(bob, "a");
    bench.told(alice);
    bench.now += 50;
    bench.tick();
    assert_eq!(bench.told(alice), []);
}

#[test]
fn an_expired_message_leaves_the_window() {
    let mut bench = Bench::with(|options| options.window_messages = 1);
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    send_with_deadline(&mut bench, alice, "a", 50);
    bench.send(alice, "bob", "b");
    bench.told(bob);
    bench.now += 50;
    bench.tick();
    assert_eq!(bench.told(bob), [message("b", 1)]);
}

#[test]
fn deadlines_survive_a_restart() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    send_with_deadline(&mut bench, alice, "a", 50);
    bench.sync_all();
    let mut bench = bench.restart();
    let alice = bench.join("alice");
    assert_eq!(bench.engine.next_wakeup(), Some(bench.now + 50));
    bench.now += 50;
    bench.tick();
    assert_eq!(bench.told(alice), [expired("a", "bob")]);
}
