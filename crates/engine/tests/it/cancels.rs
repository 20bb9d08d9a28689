//! Cancellation: a queued message is withdrawn immediately, one in flight is not redelivered.

use crate::support::{Harness, Received, delivery, message, puts, receipt, refused, settled, settles};
use toolbus_engine::{Command, ConnId, Delivery, Refusal};

fn cancel(harness: &mut Harness, conn: ConnId, to: &str, id: &str) {
    harness.handle(conn, Command::Cancel { to: to.into(), correlation_id: id.into(), request_id: None });
}

fn withdrawn(id: &str, mailbox: &str) -> Received {
    refused(Refusal::Cancelled { id: id.into(), mailbox: mailbox.into() }, id)
}

#[test]
fn a_queued_message_without_a_record_is_withdrawn_immediately_and_never_written() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    cancel(&mut harness, alice, "bob", "a");
    assert_eq!(harness.received(alice), [withdrawn("a", "bob")], "in place of its receipt");
    let batch = harness.take_all();
    assert_eq!(puts(&batch), Vec::<&str>::new());
    assert_eq!(settled(&batch, "bob", "a").expect("its id is remembered").stored, None);
    harness.synced(batch);
    let bob = harness.subscribe("bob");
    harness.serve_fetches();
    assert_eq!((harness.received(bob), harness.received(alice)), (vec![], vec![]));
}

#[test]
fn deadlines_of_withdrawn_messages_do_not_pile_up() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    for number in 0..1_100 {
        let limited = Delivery { deadline_ms: Some(1_000 + number), ..delivery("bob", &number.to_string()) };
        harness.deliver(alice, limited);
    }
    (0..1_100).for_each(|number| cancel(&mut harness, alice, "bob", &number.to_string()));
    harness.sync_all();
    // Swept when there were more than 1024 beyond twice the number of pending messages, which was 37 then.
    assert_eq!(harness.engine.next_wakeup(), Some(harness.now + 1_000 + 1_063));
}

#[test]
fn the_sender_is_notified_of_a_withdrawal_once_it_is_durable() {
    let mut harness = Harness::new();
    let alice = harness.subscribe("alice");
    harness.send(alice, "bob", "a");
    harness.sync_all();
    assert_eq!(harness.received(alice), [receipt(1, "a")]);
    cancel(&mut harness, alice, "bob", "a");
    assert_eq!(harness.received(alice), [], "not before the withdrawal is durable");
    let batch = harness.take().expect("the batch is due because the sender waits for it");
    assert!(settles(&batch, "bob", "a"));
    harness.synced(batch);
    assert_eq!(harness.received(alice), [withdrawn("a", "bob")]);
    let mut harness = harness.restart();
    let bob = harness.subscribe("bob");
    harness.serve_fetches();
    assert_eq!(harness.received(bob), []);
}

#[test]
fn a_message_withdrawn_while_being_written_gets_no_receipt() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    let batch = harness.take_all();
    cancel(&mut harness, alice, "bob", "a");
    harness.synced(batch);
    assert_eq!(harness.received(alice), [], "a crash now would restore the message");
    harness.sync_all();
    assert_eq!(harness.received(alice), [withdrawn("a", "bob")]);
}

#[test]
fn after_a_restart_only_its_sender_can_withdraw_a_stored_message() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    harness.sync_all();
    let mut harness = harness.restart();
    let (alice, carol) = (harness.subscribe("alice"), harness.subscribe("carol"));
    cancel(&mut harness, carol, "bob", "a");
    harness.sync_all();
    assert_eq!((harness.received(alice), harness.received(carol)), (vec![], vec![]));
    assert_eq!(harness.engine.status(harness.now).mailboxes[0].messages, 1);
    cancel(&mut harness, alice, "bob", "a");
    harness.sync_all();
    assert_eq!(harness.received(alice), [withdrawn("a", "bob")]);
    assert_eq!(harness.received(carol), []);
}

#[test]
fn the_recipient_cannot_withdraw_a_message() {
    let mut harness = Harness::with(|options| options.window_messages = 1);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "first");
    harness.send(alice, "bob", "second");
    cancel(&mut harness, bob, "bob", "second");
    assert_eq!(harness.received(bob), [message("first", 1), Received::Cancel("second".into())]);
    harness.ack(bob, "first");
    assert_eq!(harness.received(bob), [message("second", 1)]);
}

#[test]
fn a_cancel_affects_only_the_message_in_the_named_mailbox() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    harness.send(alice, "carol", "a");
    cancel(&mut harness, alice, "carol", "a");
    assert_eq!(harness.received(alice), [withdrawn("a", "carol")]);
    let (bob, carol) = (harness.subscribe("bob"), harness.subscribe("carol"));
    assert_eq!((harness.received(bob), harness.received(carol)), (vec![message("a", 1)], vec![]));
}

#[test]
fn a_message_cancelled_in_flight_can_still_be_answered() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.subscribe("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    cancel(&mut harness, alice, "bob", "a");
    assert_eq!(harness.received(bob), [message("a", 1), Received::Cancel("a from alice".into())]);
    assert_eq!(harness.received(alice), []);
    let mut reply = delivery("alice", "r");
    reply.ack = Some(harness.tag("a"));
    harness.deliver(bob, reply);
    assert_eq!(harness.received(alice), [message("r", 1)]);
}

#[test]
fn a_message_cancelled_in_flight_is_not_redelivered() {
    for stored in [false, true] {
        for displaced in [false, true] {
            let mut harness = Harness::new();
            let (alice, bob) = (harness.subscribe("alice"), harness.subscribe("bob"));
            harness.send(alice, "bob", "a");
            harness.send(alice, "bob", "b");
            if stored {
                harness.sync_all();
                harness.received(alice);
            }
            cancel(&mut harness, alice, "bob", "a");
            if !displaced {
                harness.disconnect(bob);
            }
            let next = harness.subscribe("bob");
            harness.serve_fetches();
            assert_eq!(harness.received(next), [message("b", 2)], "stored: {stored}, displaced: {displaced}");
            harness.sync_all();
            let received = harness.received(alice);
            assert!(
                received.contains(&withdrawn("a", "bob")),
                "stored: {stored}, displaced: {displaced}: {received:?}"
            );
            assert!(!received.contains(&receipt(1, "a")));
        }
    }
}

#[test]
fn a_withdrawn_message_frees_its_space_in_the_mailbox() {
    let mut harness = Harness::with(|options| options.mailbox_messages = 1);
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    cancel(&mut harness, alice, "bob", "a");
    harness.send(alice, "bob", "b");
    harness.sync_all();
    assert_eq!(harness.received(alice), [withdrawn("a", "bob"), receipt(2, "b")]);
}

#[test]
fn dead_letters_cannot_be_withdrawn() {
    let mut harness = Harness::with(|options| options.max_attempts = 1);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    harness.disconnect(bob);
    harness.subscribe("bob");
    cancel(&mut harness, alice, "bob#dead", "a");
    let dead = harness.subscribe("bob#dead");
    assert_eq!(harness.received(dead), [message("a", 1)]);
}

#[test]
fn sweeping_stale_deadlines_keeps_those_of_pending_messages() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    let mut kept = delivery("bob", "kept");
    kept.deadline_ms = Some(5_000);
    harness.deliver(alice, kept);
    for n in 0..5_000 {
        let mut limited = delivery("bob", &format!("m{n}"));
        limited.deadline_ms = Some(1_000);
        harness.deliver(alice, limited);
        cancel(&mut harness, alice, "bob", &format!("m{n}"));
    }
    harness.received(alice);
    harness.now += 4_999;
    harness.tick();
    harness.sync_all();
    assert_eq!(harness.engine.next_wakeup(), Some(harness.now + 1));
    harness.now += 1;
    harness.tick();
    assert_eq!(harness.engine.status(harness.now).mailboxes.len(), 0);
}
