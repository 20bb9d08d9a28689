//! Messages that can't be delivered move to `NAME#dead`, in one step on disk.

use crate::support::{Bench, Told, message, puts, receipt, settled};
use toolbus_engine::{Command, MAX_MAILBOX_NAME_BYTES, Refusal};

/// Pushes everything in bob's mailbox to a bob who leaves without a word.
fn push_in_vain(bench: &mut Bench, times: u32) {
    for _ in 0..times {
        let bob = bench.join("bob");
        bench.serve_fetches();
        bench.disconnect(bob);
        bench.told(bob);
    }
}

#[test]
fn a_stored_message_dies_in_the_same_batch_that_keeps_its_letter() {
    let mut bench = Bench::with(|options| options.max_attempts = 2);
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    bench.sync_all();
    push_in_vain(&mut bench, 2);
    bench.sync_all();
    let bob = bench.join("bob");
    bench.serve_fetches();
    assert_eq!(bench.told(bob), [], "it was pushed twice already");
    let batch = bench.take_all();
    assert_eq!(puts(&batch), ["a"]);
    assert_eq!(&*batch.puts[0].mailbox, "bob#dead");
    let gone = settled(&batch, "bob", "a").expect("the original goes in the same batch");
    assert!(gone.stored.is_some());
    bench.synced(batch);
    let dead = bench.join("bob#dead");
    bench.serve_fetches();
    assert_eq!(bench.told(dead), [message("a", 1)]);
}

#[test]
fn a_message_that_was_never_written_dies_with_its_receipt_waiting_for_the_letter() {
    let mut bench = Bench::with(|options| options.max_attempts = 1);
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    push_in_vain(&mut bench, 1);
    bench.join("bob");
    assert_eq!(bench.told(alice), []);
    let batch = bench.take_all();
    assert_eq!(puts(&batch), ["a"]);
    assert_eq!(&*batch.puts[0].mailbox, "bob#dead");
    assert_eq!(settled(&batch, "bob", "a").unwrap().stored, None);
    bench.synced(batch);
    assert_eq!(bench.told(alice), [receipt(1, "a")]);
}

#[test]
fn attempts_are_counted_across_a_restart() {
    let mut bench = Bench::with(|options| options.max_attempts = 2);
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    bench.sync_all();
    push_in_vain(&mut bench, 1);
    bench.sync_all();
    let mut bench = bench.restart();
    let bob = bench.join("bob");
    bench.serve_fetches();
    assert_eq!(bench.told(bob), [message("a", 2)]);
}

#[test]
fn a_dead_letter_does_not_block_what_comes_after_it() {
    let mut bench = Bench::with(|options| options.max_attempts = 1);
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    push_in_vain(&mut bench, 1);
    bench.send(alice, "bob", "b");
    let bob = bench.join("bob");
    assert_eq!(bench.told(bob), [message("b", 1)]);
}

#[test]
fn letters_do_not_die_again() {
    let mut bench = Bench::with(|options| options.max_attempts = 1);
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    push_in_vain(&mut bench, 1);
    bench.join("bob");
    for attempt in 1..5 {
        let dead = bench.join("bob#dead");
        assert_eq!(bench.told(dead), [message("a", attempt)]);
        bench.disconnect(dead);
    }
}

#[test]
fn a_message_that_can_not_be_shown_moves_and_its_recipient_learns_which() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    bench.told(bob);
    let message = bench.pushed("a");
    bench.handle(bob, Command::Unreadable { message });
    assert_eq!(bench.told(bob), [Told::Refused { refusal: Refusal::Unreadable { id: "a".into() }, id: None }]);
    let batch = bench.take_all();
    assert_eq!(&*batch.puts[0].mailbox, "bob#dead");
    assert!(settled(&batch, "bob", "a").is_some());
}

#[test]
fn a_letter_that_can_not_be_shown_stays_for_another_reader_and_does_not_fill_the_window() {
    for stored in [false, true] {
        let mut bench = Bench::with(|options| options.window_messages = 1);
        let alice = bench.connect("alice");
        for id in ["a", "b", "c"] {
            bench.send(alice, "bob#dead", id);
        }
        if stored {
            bench.sync_all();
        }
        let reader = bench.join("bob#dead");
        bench.serve_fetches();
        for id in ["a", "b"] {
            let unreadable = bench.pushed(id);
            bench.handle(reader, Command::Unreadable { message: unreadable });
            bench.serve_fetches();
        }
        let stays = |id: &str| {
            let refusal = Refusal::UnreadableLetter { id: id.into(), mailbox: "bob#dead".into() };
            Told::Refused { refusal, id: None }
        };
        let expected = [message("a", 1), stays("a"), message("b", 1), stays("b"), message("c", 1)];
        assert_eq!(bench.told(reader), expected, "stored: {stored}");
        bench.ack(reader, "c");
        bench.ack(reader, "b");
        bench.serve_fetches();
        assert_eq!(bench.told(reader), [], "it is not offered again to the same reader");
        bench.sync_all();
        let names: Vec<String> =
            bench.engine.status(bench.now).mailboxes.iter().map(|mailbox| mailbox.name.to_string()).collect();
        assert_eq!(names, ["bob#dead"]);
        let next = bench.join("bob#dead");
        bench.serve_fetches();
        assert_eq!(bench.told(next), [message("a", 1)], "stored: {stored}");
    }
}

#[test]
fn the_dead_letters_of_a_mailbox_with_a_long_name_have_a_name_that_a_peer_can_have() {
    let long = |last: char| format!("{}{last}", "ä".repeat(127));
    let mut names = Vec::new();
    for name in [long('x'), long('y'), "n".repeat(251), "n".repeat(252), "n".repeat(256)] {
        let mut bench = Bench::new();
        let (alice, bob) = (bench.connect("alice"), bench.join(&name));
        bench.send(alice, &name, "a");
        let message = bench.pushed("a");
        bench.handle(bob, Command::Unreadable { message });
        let message = bench.take_all().puts[0].mailbox.to_string();
        assert!(message.len() <= MAX_MAILBOX_NAME_BYTES && message.ends_with("#dead"), "{message}");
        assert!(message.starts_with(&name[..200]), "{message}");
        names.push(message);
    }
    assert_eq!(names[2], format!("{}#dead", "n".repeat(251)));
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 5);
}

#[test]
fn a_host_may_lose_its_link_often_and_the_caller_is_told_when_its_call_dies() {
    let mut bench = Bench::with(|options| (options.max_attempts, options.host_max_attempts) = (1, 3));
    let alice = bench.join("alice");
    bench.send(alice, "bob", "a");
    bench.sync_all();
    bench.told(alice);
    let host = |bench: &mut Bench| {
        let bob = bench.connect("bob");
        bench.handle(bob, Command::ActAsHost);
        bench.handle(bob, Command::Subscribe);
        bench.serve_fetches();
        bob
    };
    for attempt in 1..=3 {
        let bob = host(&mut bench);
        assert_eq!(bench.told(bob), [message("a", attempt)]);
        bench.disconnect(bob);
    }
    let bob = host(&mut bench);
    assert_eq!(bench.told(bob), []);
    let refusal = Refusal::TooOften { id: "a".into(), mailbox: "bob".into() };
    assert_eq!(bench.told(alice), [Told::Refused { refusal, id: Some("a".into()) }]);
}
