//! The answer to a cancel with a request id: its outcome, who learns it, and when.

use crate::support::{Harness, Received, delivery, message, receipt, refused};
use toolbus_engine::{CancelOutcome, Command, ConnId, Delivery, Refusal, Rights};

const WORKER: Rights = Rights { unrestricted: false, host: false, operator: false };
const OPERATOR: Rights = Rights { operator: true, ..WORKER };

fn cancel(harness: &mut Harness, conn: ConnId, to: &str, id: &str) {
    let request_id = Some("r".into());
    harness.handle(conn, Command::Cancel { to: to.into(), correlation_id: id.into(), request_id });
}

fn result(id: &str, outcome: CancelOutcome) -> Received {
    Received::CancelResult { id: id.into(), request_id: "r".into(), outcome }
}

fn withdrawn(id: &str) -> [Received; 2] {
    let refusal = Refusal::Cancelled { id: id.into(), mailbox: "bob".into() };
    [refused(refusal, id), result(id, CancelOutcome::Withdrawn)]
}

/// Everything that the connection receives, after all writes.
fn received(harness: &mut Harness, conn: ConnId) -> Vec<Received> {
    harness.sync_all();
    harness.received(conn)
}

#[test]
fn a_withdrawal_is_reported_once_it_is_durable() {
    for stored in [false, true] {
        // The first message after a restart was certainly not pushed before it.
        let mut harness = Harness::new().restart();
        let alice = harness.subscribe("alice");
        harness.send(alice, "bob", "a");
        if stored {
            assert_eq!(received(&mut harness, alice), [receipt(1, "a")]);
        }
        cancel(&mut harness, alice, "bob", "a");
        let early = harness.received(alice);
        assert!(!early.contains(&result("a", CancelOutcome::Withdrawn)), "stored: {stored}: {early:?}");
        let batch = harness.take().expect("the batch is due because the sender waits for it");
        harness.synced(batch);
        assert_eq!([early, harness.received(alice)].concat(), withdrawn("a"), "stored: {stored}");
    }
}

#[test]
fn a_repeated_cancel_of_a_withdrawn_message_gets_the_same_answer() {
    let mut harness = Harness::new();
    let alice = harness.subscribe("alice");
    harness.send(alice, "bob", "a");
    cancel(&mut harness, alice, "bob", "a");
    harness.received(alice);
    cancel(&mut harness, alice, "bob", "a");
    assert_eq!(harness.received(alice), [], "the first withdrawal is not durable yet");
    let twice = [result("a", CancelOutcome::Withdrawn), result("a", CancelOutcome::Withdrawn)];
    assert_eq!(received(&mut harness, alice), twice);
    cancel(&mut harness, alice, "bob", "a");
    assert_eq!(received(&mut harness, alice), twice[1..]);
}

#[test]
fn a_withdrawal_that_a_full_disk_delays_is_reported_after_the_retry() {
    let mut harness = Harness::new();
    let alice = harness.subscribe("alice");
    harness.send(alice, "bob", "a");
    received(&mut harness, alice);
    cancel(&mut harness, alice, "bob", "a");
    let batch = harness.take_all();
    let retry_at = harness.now + 500;
    harness.refuse(batch, retry_at);
    assert_eq!(harness.received(alice), []);
    harness.now = retry_at;
    assert_eq!(received(&mut harness, alice), withdrawn("a"));
}

#[test]
fn a_message_in_flight_is_running_and_the_cancel_is_forwarded() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.subscribe("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    cancel(&mut harness, alice, "bob", "a");
    assert_eq!(harness.received(alice), [result("a", CancelOutcome::Running)], "without waiting for the disk");
    assert_eq!(harness.received(bob), [message("a", 1), Received::Cancel("a from alice".into())]);
}

#[test]
fn a_queued_message_that_was_pushed_before_is_running_and_is_not_pushed_again() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.subscribe("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    harness.disconnect(bob);
    received(&mut harness, alice);
    cancel(&mut harness, alice, "bob", "a");
    assert_eq!(harness.received(alice), [result("a", CancelOutcome::Running)]);
    harness.sync_all();
    let bob = harness.subscribe("bob");
    harness.serve_fetches();
    assert_eq!(harness.received(bob), []);
}

#[test]
fn a_message_whose_reply_was_refused_by_a_full_disk_counts_as_pushed() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.subscribe("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    harness.sync_all();
    let ack = Some(harness.tag("a"));
    harness.deliver(bob, Delivery { ack, ..delivery("alice", "reply") });
    harness.disconnect(bob);
    let batch = harness.take_all();
    let now = harness.now;
    harness.refuse(batch, now);
    harness.received(alice);
    cancel(&mut harness, alice, "bob", "a");
    assert_eq!(harness.received(alice), [result("a", CancelOutcome::Running)]);
}

#[test]
fn after_a_restart_a_stored_message_may_have_been_pushed() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    harness.sync_all();
    let mut harness = harness.restart();
    let alice = harness.connect("alice");
    cancel(&mut harness, alice, "bob", "a");
    assert_eq!(harness.received(alice), [result("a", CancelOutcome::Running)]);
}

#[test]
fn settled_messages_are_finished_and_others_unknown() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.subscribe("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    harness.ack(bob, "a");
    harness.deliver(alice, Delivery { deadline_ms: Some(10), ..delivery("carol", "expired") });
    harness.now += 10;
    harness.tick();
    received(&mut harness, alice);
    for (to, id, outcome) in [
        ("bob", "a", CancelOutcome::Finished),
        ("carol", "expired", CancelOutcome::Finished),
        ("carol", "a", CancelOutcome::Unknown),
        ("bob", "never", CancelOutcome::Unknown),
    ] {
        cancel(&mut harness, alice, to, id);
        assert_eq!(harness.received(alice), [result(id, outcome)]);
    }
}

#[test]
fn only_the_agent_of_a_message_and_operators_learn_its_state() {
    let mut harness = Harness::new();
    let bob = harness.subscribe("bob");
    let mut connect = |name, rights| harness.connect_with(name, None, false, rights);
    let [alice, other, stranger, operator] =
        [connect("alice#1", WORKER), connect("alice#2", WORKER), connect("alicia", WORKER), connect("op", OPERATOR)];
    let send = |harness: &mut Harness, to: &str, id: &str| {
        harness.deliver(operator, Delivery { deadline_ms: Some(1000), ..delivery(to, id) });
    };
    send(&mut harness, "bob", "pushed");
    send(&mut harness, "bob", "settled");
    harness.ack(bob, "settled");
    send(&mut harness, "carol", "queued");
    harness.sync_all();
    harness.received(bob);
    for conn in [alice, other, stranger] {
        for (to, id) in [("bob", "pushed"), ("bob", "settled"), ("carol", "queued")] {
            cancel(&mut harness, conn, to, id);
            assert_eq!(received(&mut harness, conn), [result(id, CancelOutcome::Unknown)]);
        }
    }
    assert_eq!(harness.received(bob), [], "and no cancel is forwarded");
    harness.received(operator);
    let outcomes = [
        ("bob", "pushed", CancelOutcome::Running),
        ("bob", "settled", CancelOutcome::Finished),
        ("carol", "queued", CancelOutcome::Withdrawn),
    ];
    for (to, id, outcome) in outcomes {
        cancel(&mut harness, operator, to, id);
        assert_eq!(received(&mut harness, operator), [result(id, outcome)]);
    }
}

#[test]
fn another_mailbox_of_the_agent_and_an_operator_can_withdraw_with_an_answer() {
    for (name, rights) in [("alice#2", WORKER), ("op", OPERATOR)] {
        let mut harness = Harness::new();
        let alice = harness.subscribe("alice#1");
        harness.deliver(alice, Delivery { deadline_ms: Some(1000), ..delivery("bob", "a") });
        received(&mut harness, alice);
        let other = harness.connect_with(name, None, false, rights);
        cancel(&mut harness, other, "bob", "a");
        assert_eq!(received(&mut harness, other), [result("a", CancelOutcome::Withdrawn)], "{name}");
        assert_eq!(harness.received(alice), withdrawn("a")[..1], "the sender is notified: {name}");
    }
}

#[test]
fn a_dead_letter_is_not_a_message_of_its_sender() {
    let mut harness = Harness::with(|options| options.max_attempts = 1);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    harness.disconnect(bob);
    harness.subscribe("bob");
    received(&mut harness, alice);
    for (to, outcome) in [("bob#dead", CancelOutcome::Unknown), ("bob", CancelOutcome::Finished)] {
        cancel(&mut harness, alice, to, "a");
        assert_eq!(harness.received(alice), [result("a", outcome)], "{to}");
    }
}
