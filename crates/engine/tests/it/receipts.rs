//! Receipts of messages and confirmations of acknowledgements: when they are sent, and to which connection.

use crate::support::{Harness, Received, ack_result, delivery, message, puts, receipt, settled, settles};
use toolbus_engine::{Command, Refusal};

#[test]
fn a_receipt_is_sent_only_after_the_batch_is_synced() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    assert_eq!(harness.received(alice), []);
    let batch = harness.take_all();
    assert_eq!(puts(&batch), ["a"]);
    assert_eq!(harness.received(alice), [], "handed to the store, but not synced");
    harness.synced(batch);
    assert_eq!(harness.received(alice), [receipt(1, "a")]);
}

#[test]
fn a_sync_releases_only_the_receipts_of_its_own_batch() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    let batch = harness.take_all();
    harness.send(alice, "bob", "b");
    assert!(harness.take().is_none(), "only one batch is written at a time");
    harness.synced(batch);
    assert_eq!(harness.received(alice), [receipt(1, "a")]);
    harness.sync_all();
    assert_eq!(harness.received(alice), [receipt(2, "b")]);
}

#[test]
fn a_message_acknowledged_before_it_is_written_is_receipted_and_elided() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    harness.ack(bob, "a");
    assert_eq!(harness.received(alice), [receipt(1, "a")]);
    let batch = harness.take_all();
    assert_eq!(puts(&batch), [""; 0]);
    let kept = settled(&batch, "bob", "a").expect("the id is written");
    assert_eq!(kept.stored, None, "the record is elided");
    harness.synced(batch);
    assert_eq!(harness.received(alice), [], "no second receipt");
    assert!(!harness.engine.anything_to_write());
}

#[test]
fn a_message_acknowledged_while_being_written_is_settled_by_the_next_batch() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    let seq = harness.tag("a");
    let batch = harness.take_all();
    let tags = vec![seq];
    harness.handle(bob, Command::AckTags { tags });
    assert_eq!(harness.received(alice), [receipt(1, "a")]);
    harness.synced(batch);
    assert_eq!(harness.received(alice), []);
    let next = harness.take_all();
    assert_eq!(settled(&next, "bob", "a").unwrap().stored, Some(("bob".into(), seq)));
}

#[test]
fn a_record_lingers_only_if_its_recipient_is_subscribed() {
    let mut harness = Harness::with(|options| options.linger = 5);
    let alice = harness.connect("alice");
    harness.send(alice, "absent", "a");
    let batch = harness.take().expect("due at once, because the recipient is absent");
    harness.synced(batch);
    harness.subscribe("bob");
    harness.send(alice, "bob", "b");
    assert!(harness.take().is_none());
    assert_eq!(harness.engine.next_wakeup(), Some(harness.now + 5));
    harness.now += 5;
    assert_eq!(puts(&harness.take().unwrap()), ["b"]);
}

#[test]
fn an_unconfirmed_acknowledgement_is_written_within_the_lazy_interval() {
    let mut harness = Harness::with(|options| options.lazy = 100);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    harness.ack(bob, "a");
    harness.now += 99;
    assert!(harness.take().is_none());
    harness.now += 1;
    assert!(settles(&harness.take().unwrap(), "bob", "a"));
}

#[test]
fn an_acknowledgement_of_a_stored_message_is_written_at_once_and_synced_within_the_lazy_interval() {
    let mut harness = Harness::with(|options| options.lazy = 100);
    let alice = harness.connect("alice");
    for id in ["a", "b", "c"] {
        harness.send(alice, "bob", id);
    }
    harness.sync_all();
    let bob = harness.subscribe("bob");
    harness.serve_fetches();
    harness.ack(bob, "a");
    let batch = harness.take().expect("due at once");
    assert!(settles(&batch, "bob", "a") && !batch.sync);
    harness.synced(batch);
    harness.ack(bob, "b");
    assert!(harness.take().is_none(), "one write per millisecond");
    harness.now += 1;
    let batch = harness.take().expect("due a millisecond later");
    assert!(settles(&batch, "bob", "b") && !batch.sync);
    harness.synced(batch);
    harness.now += 98;
    assert!(harness.take().is_none());
    harness.now += 1;
    let batch = harness.take().expect("due for the sync");
    assert!(batch.sync && batch.is_empty());
    harness.synced(batch);
    assert_eq!(harness.engine.next_wakeup(), None);
    harness.ack_with_receipt(bob, "c", "r1");
    assert!(harness.take().expect("the confirmation waits").sync);
}

#[test]
fn a_batch_with_messages_makes_earlier_acknowledgements_durable() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    harness.sync_all();
    let bob = harness.subscribe("bob");
    harness.serve_fetches();
    harness.ack(bob, "a");
    let batch = harness.take().expect("due at once");
    harness.synced(batch);
    harness.send(alice, "absent", "b");
    let batch = harness.take().expect("due at once, because the recipient is absent");
    assert!(batch.sync);
    harness.synced(batch);
    assert_eq!(harness.engine.next_wakeup(), None);
}

#[test]
fn a_batch_is_a_gapless_range_of_sequence_numbers() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    harness.subscribe("bob");
    harness.send(alice, "bob", "lingers");
    harness.send(alice, "absent", "urgent");
    assert_eq!(puts(&harness.take().unwrap()), ["lingers", "urgent"]);
}

#[test]
fn refused_delivers_are_numbered_too() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    let mut other = delivery("bob", "a");
    other.content = 2;
    harness.deliver(alice, other);
    harness.send(alice, "bob", "b");
    harness.received(alice);
    harness.sync_all();
    assert_eq!(harness.received(alice), [receipt(1, "a"), receipt(3, "b")]);
}

#[test]
fn the_message_of_a_disconnected_sender_is_kept() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    harness.disconnect(alice);
    harness.sync_all();
    assert_eq!(harness.received(alice), []);
    let bob = harness.subscribe("bob");
    harness.serve_fetches();
    assert_eq!(harness.received(bob), [message("a", 1)]);
}

#[test]
fn an_acknowledgement_is_confirmed_only_when_it_is_synced() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    harness.sync_all();
    harness.received(bob);
    harness.ack_with_receipt(bob, "a", "r1");
    let batch = harness.take().expect("due at once, because a confirmation waits for it");
    assert!(settles(&batch, "bob", "a"));
    assert_eq!(harness.received(bob), []);
    harness.synced(batch);
    assert_eq!(harness.received(bob), [ack_result("a", "r1")]);
}

#[test]
fn a_repeated_acknowledgement_is_confirmed_only_when_the_first_is_synced() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    harness.ack(bob, "a");
    harness.received(bob);
    harness.ack_with_receipt(bob, "a", "r1");
    assert_eq!(harness.received(bob), []);
    harness.sync_all();
    assert_eq!(harness.received(bob), [ack_result("a", "r1")]);
}

#[test]
fn an_acknowledgement_of_an_unknown_id_is_refused() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "carol", "a");
    let unknown = Refusal::UnknownMessage { id: "a".into() };
    harness.ack(bob, "a");
    assert_eq!(
        harness.received(bob),
        [Received::Refused { refusal: unknown.clone(), id: None }],
        "the message is in another mailbox"
    );
    harness.ack_with_receipt(bob, "a", "r1");
    let refusal = Some(unknown);
    assert_eq!(harness.received(bob), [Received::AckResult { id: "a".into(), request_id: "r1".into(), refusal }]);
}

#[test]
fn a_tag_from_another_mailbox_is_ignored() {
    let mut harness = Harness::new();
    let (alice, bob, carol) = (harness.connect("alice"), harness.subscribe("bob"), harness.subscribe("carol"));
    harness.send(alice, "bob", "a");
    let tags = vec![harness.tag("a")];
    harness.handle(carol, Command::AckTags { tags });
    assert_eq!(harness.received(alice), []);
    harness.disconnect(bob);
    let bob = harness.subscribe("bob");
    assert_eq!(harness.received(bob), [message("a", 2)]);
}

#[test]
fn backpressure_is_applied_while_too_many_bytes_are_not_durable() {
    let mut harness = Harness::with(|options| options.unsettled_bytes = 100);
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    assert!(!harness.engine.congested());
    harness.send(alice, "bob", "b");
    assert!(harness.engine.congested());
    assert_eq!(harness.engine.unsettled_bytes(), 200);
    harness.sync_all();
    assert!(!harness.engine.congested());
}
