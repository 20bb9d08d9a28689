//! When a message is safe and who is told: receipts, and confirmations of acknowledgements.

use crate::support::{Bench, Told, ack_result, delivery, message, puts, receipt, settled, settles};
use toolbus_engine::{Command, Refusal};

#[test]
fn a_receipt_goes_out_only_when_the_batch_is_synced() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    assert_eq!(bench.told(alice), []);
    let batch = bench.take_all();
    assert_eq!(puts(&batch), ["a"]);
    assert_eq!(bench.told(alice), [], "handed to the store is not safe yet");
    bench.synced(batch);
    assert_eq!(bench.told(alice), [receipt(1, "a")]);
}

#[test]
fn a_sync_of_another_batch_brings_no_receipt() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    let batch = bench.take_all();
    bench.send(alice, "bob", "b");
    assert!(bench.take().is_none(), "one batch at a time is on its way");
    bench.synced(batch);
    assert_eq!(bench.told(alice), [receipt(1, "a")]);
    bench.sync_all();
    assert_eq!(bench.told(alice), [receipt(2, "b")]);
}

#[test]
fn a_message_acknowledged_before_it_is_written_is_receipted_at_once_and_only_its_id_is_kept() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    bench.ack(bob, "a");
    assert_eq!(bench.told(alice), [receipt(1, "a")]);
    let batch = bench.take_all();
    assert_eq!(puts(&batch), [""; 0]);
    let kept = settled(&batch, "bob", "a").expect("the id is remembered on disk");
    assert_eq!(kept.stored, None, "it has no record");
    bench.synced(batch);
    assert_eq!(bench.told(alice), [], "no second receipt");
    assert!(!bench.engine.anything_to_write());
}

#[test]
fn a_message_acknowledged_while_it_is_written_is_settled_by_the_next_batch() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    let seq = bench.tag("a");
    let batch = bench.take_all();
    let tags = vec![seq];
    bench.handle(bob, Command::AckTags { tags });
    assert_eq!(bench.told(alice), [receipt(1, "a")]);
    bench.synced(batch);
    assert_eq!(bench.told(alice), []);
    let next = bench.take_all();
    assert_eq!(settled(&next, "bob", "a").unwrap().stored, Some(("bob".into(), seq)));
}

#[test]
fn a_record_waits_for_its_acknowledgement_only_while_its_recipient_is_live() {
    let mut bench = Bench::with(|options| options.linger = 5);
    let alice = bench.connect("alice");
    bench.send(alice, "nobody", "a");
    let batch = bench.take().expect("nobody there can acknowledge in time");
    bench.synced(batch);
    bench.join("bob");
    bench.send(alice, "bob", "b");
    assert!(bench.take().is_none());
    assert_eq!(bench.engine.next_wakeup(), Some(bench.now + 5));
    bench.now += 5;
    assert_eq!(puts(&bench.take().unwrap()), ["b"]);
}

#[test]
fn an_acknowledgement_that_nobody_waits_for_is_written_within_the_lazy_interval() {
    let mut bench = Bench::with(|options| options.lazy = 100);
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    bench.ack(bob, "a");
    bench.now += 99;
    assert!(bench.take().is_none());
    bench.now += 1;
    assert!(settles(&bench.take().unwrap(), "bob", "a"));
}

#[test]
fn a_batch_is_a_gapless_stretch_of_the_order() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    bench.join("bob");
    bench.send(alice, "bob", "lingers");
    bench.send(alice, "nobody", "urgent");
    assert_eq!(puts(&bench.take().unwrap()), ["lingers", "urgent"]);
}

#[test]
fn every_deliver_of_a_connection_has_its_number_also_a_refused_one() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    let mut other = delivery("bob", "a");
    other.content = 2;
    bench.deliver(alice, other);
    bench.send(alice, "bob", "b");
    bench.told(alice);
    bench.sync_all();
    assert_eq!(bench.told(alice), [receipt(1, "a"), receipt(3, "b")]);
}

#[test]
fn a_sender_that_left_gets_no_receipt_and_its_message_stays() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    bench.disconnect(alice);
    bench.sync_all();
    assert_eq!(bench.told(alice), []);
    let bob = bench.join("bob");
    bench.serve_fetches();
    assert_eq!(bench.told(bob), [message("a", 1)]);
}

#[test]
fn an_acknowledgement_is_confirmed_only_when_it_is_synced() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    bench.sync_all();
    bench.told(bob);
    bench.ack_with_receipt(bob, "a", "r1");
    let batch = bench.take().expect("someone waits, so it is due at once");
    assert!(settles(&batch, "bob", "a"));
    assert_eq!(bench.told(bob), []);
    bench.synced(batch);
    assert_eq!(bench.told(bob), [ack_result("a", "r1")]);
}

#[test]
fn a_repeated_acknowledgement_is_confirmed_only_when_the_first_is_synced() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    bench.ack(bob, "a");
    bench.told(bob);
    bench.ack_with_receipt(bob, "a", "r1");
    assert_eq!(bench.told(bob), []);
    bench.sync_all();
    assert_eq!(bench.told(bob), [ack_result("a", "r1")]);
}

#[test]
fn an_acknowledgement_of_an_unknown_id_is_refused() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "carol", "a");
    let unknown = Refusal::UnknownMessage { id: "a".into() };
    bench.ack(bob, "a");
    assert_eq!(bench.told(bob), [Told::Refused { refusal: unknown.clone(), id: None }], "it is in another mailbox");
    bench.ack_with_receipt(bob, "a", "r1");
    let refusal = Some(unknown);
    assert_eq!(bench.told(bob), [Told::AckResult { id: "a".into(), request_id: "r1".into(), refusal }]);
}

#[test]
fn a_tag_of_another_mailbox_settles_nothing() {
    let mut bench = Bench::new();
    let (alice, bob, carol) = (bench.connect("alice"), bench.join("bob"), bench.join("carol"));
    bench.send(alice, "bob", "a");
    let tags = vec![bench.tag("a")];
    bench.handle(carol, Command::AckTags { tags });
    assert_eq!(bench.told(alice), []);
    bench.disconnect(bob);
    let bob = bench.join("bob");
    assert_eq!(bench.told(bob), [message("a", 2)]);
}

#[test]
fn connections_are_asked_to_wait_while_too_much_is_not_durable() {
    let mut bench = Bench::with(|options| options.unsettled_bytes = 150);
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    assert!(!bench.engine.congested());
    bench.send(alice, "bob", "b");
    assert!(bench.engine.congested());
    assert_eq!(bench.engine.unsettled_bytes(), 200);
    bench.sync_all();
    assert!(!bench.engine.congested());
}
