//! Undeliverable messages move to `NAME#dead`, atomically on disk.

use crate::support::{Harness, Received, message, puts, receipt, settled};
use toolbus_engine::{Command, MAX_MAILBOX_NAME_BYTES, Refusal};

/// Subscribes bob and disconnects him without an acknowledgement.
fn push_without_ack(harness: &mut Harness, times: u32) {
    for _ in 0..times {
        let bob = harness.subscribe("bob");
        harness.serve_fetches();
        harness.disconnect(bob);
        harness.received(bob);
    }
}

#[test]
fn a_stored_message_and_its_dead_letter_are_written_in_one_batch() {
    let mut harness = Harness::with(|options| options.max_attempts = 2);
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    harness.sync_all();
    push_without_ack(&mut harness, 2);
    harness.sync_all();
    let bob = harness.subscribe("bob");
    harness.serve_fetches();
    assert_eq!(harness.received(bob), [], "both attempts are used up");
    let batch = harness.take_all();
    assert_eq!(puts(&batch), ["a"]);
    assert_eq!(&*batch.puts[0].mailbox, "bob#dead");
    let original = settled(&batch, "bob", "a").expect("the original is settled in the same batch");
    assert!(original.stored.is_some());
    harness.synced(batch);
    let dead = harness.subscribe("bob#dead");
    harness.serve_fetches();
    assert_eq!(harness.received(dead), [message("a", 1)]);
}

#[test]
fn the_receipt_of_an_unwritten_message_waits_for_its_dead_letter() {
    let mut harness = Harness::with(|options| options.max_attempts = 1);
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    push_without_ack(&mut harness, 1);
    harness.subscribe("bob");
    assert_eq!(harness.received(alice), []);
    let batch = harness.take_all();
    assert_eq!(puts(&batch), ["a"]);
    assert_eq!(&*batch.puts[0].mailbox, "bob#dead");
    assert_eq!(settled(&batch, "bob", "a").unwrap().stored, None);
    harness.synced(batch);
    assert_eq!(harness.received(alice), [receipt(1, "a")]);
}

#[test]
fn push_attempts_are_counted_across_a_restart() {
    let mut harness = Harness::with(|options| options.max_attempts = 2);
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    harness.sync_all();
    push_without_ack(&mut harness, 1);
    assert_eq!(harness.engine.next_wakeup(), Some(harness.now + harness.engine.options().lazy), "written soon");
    harness.sync_all();
    let mut harness = harness.restart();
    let bob = harness.subscribe("bob");
    harness.serve_fetches();
    assert_eq!(harness.received(bob), [message("a", 2)]);
}

#[test]
fn a_dead_lettered_message_does_not_block_later_messages() {
    let mut harness = Harness::with(|options| options.max_attempts = 1);
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    push_without_ack(&mut harness, 1);
    harness.send(alice, "bob", "b");
    let bob = harness.subscribe("bob");
    assert_eq!(harness.received(bob), [message("b", 1)]);
}

#[test]
fn dead_letters_are_not_dead_lettered_again() {
    let mut harness = Harness::with(|options| options.max_attempts = 1);
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "a");
    push_without_ack(&mut harness, 1);
    harness.subscribe("bob");
    for attempt in 1..5 {
        let dead = harness.subscribe("bob#dead");
        assert_eq!(harness.received(dead), [message("a", attempt)]);
        harness.disconnect(dead);
    }
}

#[test]
fn an_unreadable_message_is_dead_lettered_and_its_recipient_notified() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    harness.received(bob);
    let message = harness.pushed("a");
    harness.handle(bob, Command::Unreadable { message });
    assert_eq!(
        harness.received(bob),
        [Received::Refused { refusal: Refusal::Unreadable { id: "a".into() }, id: None }]
    );
    let batch = harness.take_all();
    assert_eq!(&*batch.puts[0].mailbox, "bob#dead");
    assert!(settled(&batch, "bob", "a").is_some());
}

#[test]
fn an_unreadable_dead_letter_is_skipped_and_stays_for_the_next_reader() {
    for stored in [false, true] {
        let mut harness = Harness::with(|options| options.window_messages = 1);
        let alice = harness.connect("alice");
        for id in ["a", "b", "c"] {
            harness.send(alice, "bob#dead", id);
        }
        if stored {
            harness.sync_all();
        }
        let reader = harness.subscribe("bob#dead");
        harness.serve_fetches();
        for id in ["a", "b"] {
            let unreadable = harness.pushed(id);
            harness.handle(reader, Command::Unreadable { message: unreadable });
            harness.serve_fetches();
        }
        let skipped = |id: &str| {
            let refusal = Refusal::UnreadableLetter { id: id.into(), mailbox: "bob#dead".into() };
            Received::Refused { refusal, id: None }
        };
        let expected = [message("a", 1), skipped("a"), message("b", 1), skipped("b"), message("c", 1)];
        assert_eq!(harness.received(reader), expected, "stored: {stored}");
        harness.ack(reader, "c");
        harness.ack(reader, "b");
        harness.serve_fetches();
        assert_eq!(harness.received(reader), [], "the skipped message is not pushed again to this reader");
        harness.sync_all();
        let names: Vec<String> =
            harness.engine.status(harness.now).mailboxes.iter().map(|mailbox| mailbox.name.to_string()).collect();
        assert_eq!(names, ["bob#dead"]);
        let next = harness.subscribe("bob#dead");
        harness.serve_fetches();
        assert_eq!(harness.received(next), [message("a", 1)], "stored: {stored}");
    }
}

#[test]
fn the_dead_letter_mailbox_of_a_long_name_has_a_valid_and_unique_name() {
    let long = |last: char| format!("{}{last}", "ä".repeat(127));
    let mut names = Vec::new();
    for name in [long('x'), long('y'), "n".repeat(251), "n".repeat(252), "n".repeat(256)] {
        let mut harness = Harness::new();
        let (alice, bob) = (harness.connect("alice"), harness.subscribe(&name));
        harness.send(alice, &name, "a");
        let message = harness.pushed("a");
        harness.handle(bob, Command::Unreadable { message });
        let dead = harness.take_all().puts[0].mailbox.to_string();
        assert!(dead.len() <= MAX_MAILBOX_NAME_BYTES && dead.ends_with("#dead"), "{dead}");
        assert!(dead.starts_with(&name[..200]), "{dead}");
        names.push(dead);
    }
    assert_eq!(names[2], format!("{}#dead", "n".repeat(251)));
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 5);
}

#[test]
fn hosts_get_more_attempts_and_the_caller_is_notified_of_a_dead_letter() {
    let mut harness = Harness::with(|options| (options.max_attempts, options.host_max_attempts) = (1, 3));
    let alice = harness.subscribe("alice");
    harness.send(alice, "bob", "a");
    harness.sync_all();
    harness.received(alice);
    let host = |harness: &mut Harness| {
        let bob = harness.connect("bob");
        harness.handle(bob, Command::ActAsHost);
        harness.handle(bob, Command::Subscribe);
        harness.serve_fetches();
        bob
    };
    for attempt in 1..=3 {
        let bob = host(&mut harness);
        assert_eq!(harness.received(bob), [message("a", attempt)]);
        harness.disconnect(bob);
    }
    let bob = host(&mut harness);
    assert_eq!(harness.received(bob), []);
    let refusal = Refusal::TooOften { id: "a".into(), mailbox: "bob".into() };
    assert_eq!(harness.received(alice), [Received::Refused { refusal, id: Some("a".into()) }]);
}
