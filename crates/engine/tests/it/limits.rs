//! Limits, a low disk and a stopping broker: what is refused, with which reason, and what goes on.

use crate::support::{Bench, Told, delivery, message, receipt, refused};
use bytes::Bytes;
use toolbus_engine::Refusal;

#[test]
fn a_mailbox_takes_no_more_messages_than_its_limit() {
    let mut bench = Bench::with(|options| options.mailbox_messages = 2);
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    ["a", "b", "c"].into_iter().for_each(|id| bench.send(alice, "bob", id));
    let full = Refusal::MailboxFull { mailbox: "bob".into(), messages: 2, bytes: 200 };
    assert_eq!(bench.told(alice), [refused(full, "c")]);
    bench.send(alice, "carol", "c");
    assert_eq!(bench.told(alice), [], "other mailboxes have room");
    bench.ack(bob, "a");
    bench.told(bob);
    bench.send(alice, "bob", "c");
    assert_eq!(bench.told(bob), [message("c", 1)], "an acknowledgement makes room, and a refused id is free");
}

#[test]
fn a_mailbox_takes_no_more_bytes_than_its_limit() {
    let mut bench = Bench::with(|options| options.mailbox_bytes = 250);
    let alice = bench.connect("alice");
    ["a", "b", "c"].into_iter().for_each(|id| bench.send(alice, "bob", id));
    let full = Refusal::MailboxFull { mailbox: "bob".into(), messages: 2, bytes: 200 };
    assert_eq!(bench.told(alice), [refused(full, "c")]);
}

#[test]
fn the_broker_takes_no_more_messages_than_its_limit() {
    let mut bench = Bench::with(|options| options.total_messages = 2);
    let alice = bench.connect("alice");
    for (to, id) in [("bob", "a"), ("carol", "b"), ("dave", "c")] {
        bench.send(alice, to, id);
    }
    assert_eq!(bench.told(alice), [refused(Refusal::BrokerFull { messages: 2, bytes: 200 }, "c")]);
}

#[test]
fn the_broker_takes_no_more_bytes_than_its_limit() {
    let mut bench = Bench::with(|options| options.total_bytes = 1_000);
    let alice = bench.connect("alice");
    let mut large = delivery("bob", "large");
    large.sealed = Bytes::from(vec![b'x'; 1_000]);
    bench.deliver(alice, large);
    assert_eq!(bench.told(alice), [refused(Refusal::BrokerFull { messages: 0, bytes: 0 }, "large")]);
}

#[test]
fn limits_count_what_an_earlier_run_left() {
    let mut bench = Bench::with(|options| options.mailbox_messages = 1);
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    bench.sync_all();
    let mut bench = bench.restart();
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "b");
    let full = Refusal::MailboxFull { mailbox: "bob".into(), messages: 1, bytes: 100 };
    assert_eq!(bench.told(alice), [refused(full, "b")]);
}

#[test]
fn there_are_no_more_mailboxes_than_the_limit_and_empty_ones_go() {
    let mut bench = Bench::with(|options| options.mailboxes = 2);
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "carol", "a");
    bench.send(alice, "dave", "b");
    assert_eq!(bench.told(alice), [refused(Refusal::TooManyMailboxes { limit: 2 }, "b")]);
    bench.send(alice, "carol", "c");
    assert_eq!(bench.told(alice), [], "a mailbox that exists takes more");
    bench.disconnect(bob);
    bench.send(alice, "dave", "b");
    assert_eq!(bench.told(alice), [], "an empty mailbox without a subscriber counts no more");
}

#[test]
fn a_low_disk_refuses_new_messages_and_serves_the_old() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    bench.engine.set_disk_low(true);
    bench.send(alice, "bob", "b");
    assert_eq!(bench.told(alice), [refused(Refusal::DiskFull, "b")]);
    bench.ack(bob, "a");
    assert_eq!(bench.told(alice), [receipt(1, "a")], "acknowledgements go on");
    bench.send(alice, "bob", "a");
    assert_eq!(bench.told(alice), [receipt(3, "a")], "a known message needs no room");
    bench.engine.set_disk_low(false);
    bench.told(bob);
    bench.send(alice, "bob", "b");
    assert_eq!(bench.told(bob), [message("b", 1)]);
}

#[test]
fn a_stopping_broker_refuses_new_messages_and_receipts_known_ones() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    bench.sync_all();
    bench.told(alice);
    bench.engine.stop_accepting();
    bench.send(alice, "bob", "b");
    bench.send(alice, "bob", "a");
    assert_eq!(bench.told(alice), [refused(Refusal::ShuttingDown, "b"), receipt(3, "a")]);
    bench.ack_with_receipt(bob, "a", "r1");
    bench.sync_all();
    let confirmed = Told::AckResult { id: "a".into(), request_id: "r1".into(), refusal: None };
    assert_eq!(bench.told(bob), [message("a", 1), confirmed], "what is there is still acknowledged");
}
