//! A batch that found no room: its messages are refused, its acknowledgements come again.

use crate::support::{Bench, ack_result, delivery, message, puts, receipt, refused, settled, settles};
use toolbus_engine::{ConnId, Delivery, Refusal};

const LATER: u64 = 500;

fn refuse_next(bench: &mut Bench) {
    let batch = bench.take_all();
    let retry_at = bench.now + LATER;
    bench.refuse(batch, retry_at);
}

fn reply(bench: &mut Bench, bob: ConnId, request: &str) {
    let ack = Some(bench.tag(request));
    bench.deliver(bob, Delivery { ack, correlation_id: Some(request.into()), ..delivery("alice", "reply") });
}

#[test]
fn senders_are_told_that_the_disk_is_full_and_may_use_the_id_again() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    refuse_next(&mut bench);
    assert_eq!(bench.told(alice), [refused(Refusal::DiskFull, "a")]);
    assert!(bench.engine.disk_low(), "no new messages until there is room");
    assert!(!bench.engine.anything_to_write());
    assert_eq!(bench.engine.unsettled_bytes(), 0);
    bench.engine.set_disk_low(false);
    bench.send(alice, "bob", "a");
    bench.sync_all();
    assert_eq!(bench.told(alice), [receipt(2, "a")]);
    let bob = bench.join("bob");
    bench.serve_fetches();
    assert_eq!(bench.told(bob), [message("a", 1)]);
}

#[test]
fn what_came_after_the_refused_batch_is_still_written() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    let batch = bench.take_all();
    bench.send(alice, "bob", "b");
    bench.refuse(batch, 2_000);
    assert_eq!(bench.told(alice), [refused(Refusal::DiskFull, "a")]);
    assert_eq!(puts(&bench.take().unwrap()), ["b"]);
}

#[test]
fn acknowledgements_are_tried_again_at_the_given_time() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    bench.sync_all();
    bench.told(bob);
    bench.ack_with_receipt(bob, "a", "r1");
    refuse_next(&mut bench);
    assert_eq!(bench.told(bob), []);
    bench.now += LATER - 1;
    assert!(bench.take().is_none());
    bench.now += 1;
    let again = bench.take().expect("it is tried again");
    assert!(settled(&again, "bob", "a").unwrap().stored.is_some());
    bench.synced(again);
    assert_eq!(bench.told(bob), [ack_result("a", "r1")]);
}

#[test]
fn a_message_acknowledged_while_its_record_was_refused_stays_settled() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    let batch = bench.take_all();
    bench.ack(bob, "a");
    bench.refuse(batch, 1_500);
    assert_eq!(bench.told(alice), [receipt(1, "a")], "its recipient has it");
    let again = bench.take_all();
    assert_eq!(settled(&again, "bob", "a").unwrap().stored, None, "it has no record to name");
}

#[test]
fn a_stored_request_whose_reply_was_refused_is_pending_again() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "q");
    bench.sync_all();
    bench.told(bob);
    reply(&mut bench, bob, "q");
    refuse_next(&mut bench);
    assert!(bench.told(bob).contains(&refused(Refusal::DiskFull, "reply")));
    bench.serve_fetches();
    assert_eq!(bench.told(bob), [message("q", 1)], "it is read back and pushed again");
    bench.engine.set_disk_low(false);
    reply(&mut bench, bob, "q");
    let batch = bench.take_all();
    assert_eq!(puts(&batch), ["reply"]);
    assert!(settles(&batch, "bob", "q"));
    bench.synced(batch);
    assert_eq!(bench.told(bob), [receipt(2, "reply")]);
    assert_eq!(bench.told(alice), [receipt(1, "q")]);
}

#[test]
fn a_request_without_a_record_is_refused_with_its_reply() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "q");
    reply(&mut bench, bob, "q");
    refuse_next(&mut bench);
    assert_eq!(bench.told(alice), [refused(Refusal::DiskFull, "q")]);
    assert_eq!(bench.told(bob), [message("q", 1), refused(Refusal::DiskFull, "reply")]);
    if let Some(next) = bench.engine.anything_to_write().then(|| bench.take_all()) {
        assert!(next.puts.is_empty() && next.settled.is_empty(), "nothing of the two is left");
        bench.synced(next);
    }
    bench.engine.set_disk_low(false);
    bench.send(alice, "bob", "q");
    assert_eq!(bench.told(bob), [message("q", 1)], "the whole exchange can start over");
}

#[test]
fn a_request_acknowledged_by_itself_too_stays_settled_when_its_reply_is_refused() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "q");
    bench.sync_all();
    reply(&mut bench, bob, "q");
    bench.ack(bob, "q");
    bench.told(bob);
    refuse_next(&mut bench);
    assert_eq!(bench.told(bob), [refused(Refusal::DiskFull, "reply")]);
    assert_eq!(bench.fetches(), []);
    bench.now += LATER;
    assert!(settles(&bench.take().unwrap(), "bob", "q"));
}

#[test]
fn the_deadline_of_a_request_holds_again_when_its_reply_was_refused() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.deliver(alice, Delivery { deadline_ms: Some(50), ..delivery("bob", "q") });
    bench.sync_all();
    reply(&mut bench, bob, "q");
    refuse_next(&mut bench);
    bench.told(bob);
    bench.now += 50;
    bench.tick();
    bench.serve_fetches();
    assert_eq!(bench.told(bob), []);
    assert!(settles(&bench.take_all(), "bob", "q"));
}

#[test]
fn a_refusal_of_another_batch_changes_nothing() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    let batch = bench.take_all();
    let other = toolbus_engine::Batch { number: batch.number + 1, ..Default::default() };
    bench.refuse(other, 2_000);
    assert!(!bench.engine.disk_low());
    bench.synced(batch);
    assert_eq!(bench.told(alice), [receipt(1, "a")]);
}
