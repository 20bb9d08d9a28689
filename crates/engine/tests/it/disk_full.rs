//! A batch that does not fit on the disk: its messages are refused, its acknowledgements are retried.

use crate::support::{Harness, ack_result, delivery, message, puts, receipt, refused, settled, settles};
use toolbus_engine::{ConnId, Delivery, Refusal};

const RETRY_DELAY: u64 = 500;

fn refuse_next(harness: &mut Harness) {
    let batch = harness.take_all();
    let retry_at = harness.now + RETRY_DELAY;
    harness.refuse(batch, retry_at);
}

fn reply(harness: &mut Harness, bob: ConnId, request: &str) {
    let ack = Some(harness.tag(request));
    harness.deliver(bob, Delivery { ack, correlation_id: Some(request.into()), ..delivery("alice", "reply") });
}

#[test]
fn a_message_refused_by_a_full_disk_can_be_sent_again_with_the_same_id() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    refuse_next(&mut harness);
    assert_eq!(harness.received(alice), [refused(Refusal::DiskFull, "a")]);
    assert!(harness.engine.disk_low(), "new messages are refused until the disk has room");
    assert!(!harness.engine.anything_to_write());
    assert_eq!(harness.engine.unsettled_bytes(), 0);
    harness.engine.set_disk_low(false);
    harness.send(alice, "bob", "a");
    harness.sync_all();
    assert_eq!(harness.received(alice), [receipt(2, "a")]);
    let bob = harness.subscribe("bob");
    harness.serve_fetches();
    assert_eq!(harness.received(bob), [message("a", 1)]);
}

#[test]
fn messages_after_a_refused_batch_are_still_written() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    let batch = harness.take_all();
    harness.send(alice, "bob", "b");
    harness.refuse(batch, 2_000);
    assert_eq!(harness.received(alice), [refused(Refusal::DiskFull, "a")]);
    assert_eq!(puts(&harness.take().unwrap()), ["b"]);
}

#[test]
fn refused_acknowledgements_are_retried_at_the_given_time() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    harness.sync_all();
    harness.received(bob);
    harness.ack_with_receipt(bob, "a", "r1");
    refuse_next(&mut harness);
    assert_eq!(harness.received(bob), []);
    harness.now += RETRY_DELAY - 1;
    assert!(harness.take().is_none());
    harness.now += 1;
    let again = harness.take().expect("the acknowledgement is retried");
    assert!(settled(&again, "bob", "a").unwrap().stored.is_some());
    harness.synced(again);
    assert_eq!(harness.received(bob), [ack_result("a", "r1")]);
}

#[test]
fn a_message_acknowledged_before_its_record_is_refused_stays_settled() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    let batch = harness.take_all();
    harness.ack(bob, "a");
    harness.refuse(batch, 1_500);
    assert_eq!(harness.received(alice), [receipt(1, "a")], "the recipient acknowledged it");
    let again = harness.take_all();
    assert_eq!(settled(&again, "bob", "a").unwrap().stored, None, "its record was refused");
}

#[test]
fn a_request_that_is_answered_before_its_record_is_refused_is_settled_without_one() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "q");
    let batch = harness.take_all();
    reply(&mut harness, bob, "q");
    harness.refuse(batch, 2_000);
    let next = harness.take_all();
    assert_eq!((puts(&next), &settled(&next, "bob", "q").unwrap().stored), (vec!["reply"], &None));
}

#[test]
fn a_stored_request_is_pending_again_if_its_reply_is_refused() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    ["q", "other"].into_iter().for_each(|id| harness.send(alice, "bob", id));
    harness.sync_all();
    harness.received(bob);
    reply(&mut harness, bob, "q");
    refuse_next(&mut harness);
    assert!(harness.received(bob).contains(&refused(Refusal::DiskFull, "reply")));
    harness.serve_fetches();
    assert_eq!(harness.received(bob), [message("q", 1)], "it is fetched and redelivered, and the other one is not");
    harness.engine.set_disk_low(false);
    reply(&mut harness, bob, "q");
    let batch = harness.take_all();
    assert_eq!(puts(&batch), ["reply"]);
    assert!(settles(&batch, "bob", "q"));
    harness.synced(batch);
    assert_eq!(harness.received(bob), [receipt(2, "reply")]);
    assert_eq!(harness.received(alice), [receipt(1, "q"), receipt(2, "other")]);
}

#[test]
fn a_request_without_a_record_is_refused_with_its_reply() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "q");
    reply(&mut harness, bob, "q");
    refuse_next(&mut harness);
    assert_eq!(harness.received(alice), [refused(Refusal::DiskFull, "q")]);
    assert_eq!(harness.received(bob), [message("q", 1), refused(Refusal::DiskFull, "reply")]);
    if let Some(next) = harness.engine.anything_to_write().then(|| harness.take_all()) {
        assert!(next.puts.is_empty() && next.settled.is_empty(), "neither message has a record");
        harness.synced(next);
    }
    harness.engine.set_disk_low(false);
    harness.send(alice, "bob", "q");
    assert_eq!(harness.received(bob), [message("q", 1)], "the exchange can be repeated with the same ids");
}

#[test]
fn a_request_acknowledged_by_id_too_stays_settled_if_its_reply_is_refused() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "q");
    harness.sync_all();
    reply(&mut harness, bob, "q");
    harness.ack(bob, "q");
    harness.received(bob);
    refuse_next(&mut harness);
    assert_eq!(harness.received(bob), [refused(Refusal::DiskFull, "reply")]);
    assert_eq!(harness.fetches(), []);
    harness.now += RETRY_DELAY;
    assert!(settles(&harness.take().unwrap(), "bob", "q"));
}

#[test]
fn the_deadline_of_a_request_is_restored_if_its_reply_is_refused() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.deliver(alice, Delivery { deadline_ms: Some(50), ..delivery("bob", "q") });
    harness.sync_all();
    reply(&mut harness, bob, "q");
    refuse_next(&mut harness);
    harness.received(bob);
    harness.now += 50;
    harness.tick();
    harness.serve_fetches();
    assert_eq!(harness.received(bob), []);
    assert!(settles(&harness.take_all(), "bob", "q"));
}

#[test]
fn a_refusal_with_another_batch_number_is_ignored() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    let batch = harness.take_all();
    let other = toolbus_engine::Batch { number: batch.number + 1, ..Default::default() };
    harness.refuse(other, 2_000);
    assert!(!harness.engine.disk_low());
    harness.synced(batch);
    assert_eq!(harness.received(alice), [receipt(1, "a")]);
}
