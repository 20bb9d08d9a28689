//! Limits, a low disk and a stopping broker: which commands are refused, with which reason, and which still work.

use crate::support::{Harness, Received, delivery, message, receipt, refused};
use bytes::Bytes;
use toolbus_engine::{Delivery, Refusal};

#[test]
fn the_message_limit_of_a_mailbox_is_enforced() {
    let mut harness = Harness::with(|options| options.mailbox_messages = 2);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    ["a", "b", "c"].into_iter().for_each(|id| harness.send(alice, "bob", id));
    let full = Refusal::MailboxFull { mailbox: "bob".into(), messages: 2, bytes: 200 };
    assert_eq!(harness.received(alice), [refused(full, "c")]);
    harness.send(alice, "carol", "c");
    assert_eq!(harness.received(alice), [], "other mailboxes are not full");
    harness.ack(bob, "a");
    harness.received(bob);
    harness.send(alice, "bob", "c");
    assert_eq!(
        harness.received(bob),
        [message("c", 1)],
        "an acknowledgement frees space, and a refused id can be reused"
    );
}

#[test]
fn the_byte_limit_of_a_mailbox_is_enforced() {
    let mut harness = Harness::with(|options| options.mailbox_bytes = 200);
    let alice = harness.connect("alice");
    ["a", "b", "c"].into_iter().for_each(|id| harness.send(alice, "bob", id));
    let full = Refusal::MailboxFull { mailbox: "bob".into(), messages: 2, bytes: 200 };
    assert_eq!(harness.received(alice), [refused(full, "c")]);
}

#[test]
fn the_limits_of_a_mailbox_apply_to_the_first_message() {
    let empty = Refusal::MailboxFull { mailbox: "bob".into(), messages: 0, bytes: 0 };
    let mut harness = Harness::with(|options| options.mailbox_messages = 0);
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    assert_eq!(harness.received(alice), [refused(empty.clone(), "a")]);
    let mut harness = Harness::with(|options| options.mailbox_bytes = 99);
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    assert_eq!(harness.received(alice), [refused(empty, "a")]);
}

#[test]
fn the_message_limit_of_the_broker_is_enforced() {
    let mut harness = Harness::with(|options| options.total_messages = 2);
    let alice = harness.connect("alice");
    for (to, id) in [("bob", "a"), ("carol", "b"), ("dave", "c")] {
        harness.send(alice, to, id);
    }
    assert_eq!(harness.received(alice), [refused(Refusal::BrokerFull { messages: 2, bytes: 200 }, "c")]);
}

#[test]
fn the_byte_limit_of_the_broker_is_enforced() {
    let mut harness = Harness::with(|options| options.total_bytes = 1_000);
    let alice = harness.connect("alice");
    let sealed = |len| Bytes::from(vec![b'x'; len]);
    harness.deliver(alice, Delivery { sealed: sealed(937), ..delivery("bob", "too large") });
    assert_eq!(harness.received(alice), [refused(Refusal::BrokerFull { messages: 0, bytes: 0 }, "too large")]);
    harness.deliver(alice, Delivery { sealed: sealed(936), ..delivery("bob", "large") });
    assert_eq!(harness.received(alice), []);
}

#[test]
fn restored_messages_count_against_limits() {
    let mut harness = Harness::with(|options| options.mailbox_messages = 1);
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    harness.sync_all();
    let mut harness = harness.restart();
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "b");
    let full = Refusal::MailboxFull { mailbox: "bob".into(), messages: 1, bytes: 100 };
    assert_eq!(harness.received(alice), [refused(full, "b")]);
}

#[test]
fn the_mailbox_limit_is_enforced_and_idle_mailboxes_are_freed() {
    let mut harness = Harness::with(|options| options.mailboxes = 2);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "carol", "a");
    harness.send(alice, "dave", "b");
    assert_eq!(harness.received(alice), [refused(Refusal::TooManyMailboxes { limit: 2 }, "b")]);
    harness.send(alice, "carol", "c");
    assert_eq!(harness.received(alice), [], "an existing mailbox accepts more messages");
    harness.disconnect(bob);
    harness.send(alice, "dave", "b");
    assert_eq!(harness.received(alice), [], "an idle mailbox is freed");
}

#[test]
fn mailboxes_of_clients_that_are_gone_do_not_accumulate() {
    let mut harness = Harness::new();
    let host = harness.subscribe("host");
    for round in 0..50 {
        let (name, request, reply) = (format!("local#cli-{round}"), format!("q{round}"), format!("r{round}"));
        let client = harness.subscribe(&name);
        harness.send(client, "host", &request);
        harness.ack(host, &request);
        harness.send(host, &name, &reply);
        harness.ack(client, &reply);
        harness.disconnect(client);
        // Replies have a deadline. This one comes too late, and nothing collects it.
        let late = Delivery { deadline_ms: Some(1_000), ..delivery(&name, &format!("late{round}")) };
        harness.deliver(host, late);
        harness.sync_all();
    }
    let names = |harness: &Harness| {
        let status = harness.engine.status(harness.now);
        status.mailboxes.iter().map(|mailbox| mailbox.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&harness).len(), 51, "messages that wait keep their mailbox");
    harness.now += 1_000;
    harness.tick();
    harness.sync_all();
    assert_eq!(names(&harness), ["host"]);
}

#[test]
fn a_low_disk_refuses_new_messages_and_serves_pending_ones() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    harness.engine.set_disk_low(true);
    harness.send(alice, "bob", "b");
    assert_eq!(harness.received(alice), [refused(Refusal::DiskFull, "b")]);
    harness.ack(bob, "a");
    assert_eq!(harness.received(alice), [receipt(1, "a")], "acknowledgements still work");
    harness.send(alice, "bob", "a");
    assert_eq!(harness.received(alice), [receipt(3, "a")], "a duplicate needs no space");
    harness.engine.set_disk_low(false);
    harness.received(bob);
    harness.send(alice, "bob", "b");
    assert_eq!(harness.received(bob), [message("b", 1)]);
}

#[test]
fn a_stopping_broker_refuses_new_messages_and_receipts_duplicates() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    harness.sync_all();
    harness.received(alice);
    harness.engine.stop_accepting();
    harness.send(alice, "bob", "b");
    harness.send(alice, "bob", "a");
    assert_eq!(harness.received(alice), [refused(Refusal::ShuttingDown, "b"), receipt(3, "a")]);
    harness.ack_with_receipt(bob, "a", "r1");
    harness.sync_all();
    let confirmed = Received::AckResult { id: "a".into(), request_id: "r1".into(), refusal: None };
    assert_eq!(harness.received(bob), [message("a", 1), confirmed], "pending messages can still be acknowledged");
}
