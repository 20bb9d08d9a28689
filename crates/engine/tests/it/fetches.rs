//! Fetching of messages whose bodies are only on disk: when a fetch is issued, and which pages are used.

use crate::support::{Fetch, Harness, message, settles};
use toolbus_engine::{ConnId, Page};

/// Sends messages to bob and syncs them, so that their bodies are only on disk.
fn stored(harness: &mut Harness, ids: &[&str]) -> ConnId {
    let alice = harness.connect("alice");
    ids.iter().for_each(|id| harness.send(alice, "bob", id));
    harness.sync_all();
    harness.received(alice);
    alice
}

#[test]
fn a_stored_backlog_is_fetched_when_its_recipient_subscribes() {
    let mut harness = Harness::with(|options| (options.window_messages, options.window_bytes) = (7, 5_000));
    stored(&mut harness, &["a", "b"]);
    assert_eq!(harness.fetches(), []);
    let bob = harness.subscribe("bob");
    assert_eq!(harness.received(bob), []);
    let fetches = harness.fetches();
    assert_eq!(fetches, [Fetch { mailbox: "bob".into(), from: 0, max_messages: 7, max_bytes: 5_000 }]);
    let page = harness.page(&fetches[0]);
    harness.fetched("bob", page);
    assert_eq!(harness.received(bob), [message("a", 1), message("b", 1)]);
    assert_eq!(harness.fetches(), [], "the whole backlog was fetched");
}

#[test]
fn a_backlog_larger_than_the_window_is_fetched_in_pages() {
    let mut harness = Harness::with(|options| options.window_messages = 2);
    stored(&mut harness, &["a", "b", "c"]);
    let bob = harness.subscribe("bob");
    harness.serve_fetches();
    assert_eq!(harness.received(bob), [message("a", 1), message("b", 1)]);
    harness.ack(bob, "a");
    harness.serve_fetches();
    assert_eq!(harness.received(bob), [message("c", 1)]);
}

#[test]
fn a_fetch_waits_until_a_quarter_of_the_window_is_free() {
    for (messages, bytes) in [(8, 10_000), (100, 800)] {
        let mut harness = Harness::with(|options| (options.window_messages, options.window_bytes) = (messages, bytes));
        let ids: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        stored(&mut harness, &ids.iter().map(String::as_str).collect::<Vec<_>>());
        let bob = harness.subscribe("bob");
        harness.serve_fetches();
        assert_eq!(harness.received(bob).len(), 8);
        harness.ack(bob, "0");
        assert_eq!(harness.fetches(), [], "an eighth is free of {messages} messages, {bytes} bytes");
        harness.ack(bob, "1");
        harness.serve_fetches();
        assert_eq!(harness.received(bob), [message("8", 1), message("9", 1)]);
    }
}

#[test]
fn at_most_one_fetch_per_mailbox_is_in_progress() {
    let mut harness = Harness::new();
    let alice = stored(&mut harness, &["a"]);
    harness.subscribe("bob");
    assert_eq!(harness.fetches().len(), 1);
    harness.send(alice, "bob", "b");
    harness.subscribe("bob");
    assert_eq!(harness.fetches(), []);
}

#[test]
fn a_page_fetched_for_an_earlier_subscriber_is_ignored() {
    let mut harness = Harness::with(|options| options.window_messages = 1);
    stored(&mut harness, &["a", "b"]);
    let first = harness.subscribe("bob");
    harness.serve_fetches();
    harness.ack(first, "a");
    let second_fetch = harness.fetches().remove(0);
    let page = harness.page(&second_fetch);
    harness.fetched("bob", page);
    assert_eq!(harness.received(first), [message("a", 1), message("b", 1)]);

    let alice = harness.connect("alice");
    harness.send(alice, "bob", "c");
    harness.sync_all();
    harness.ack(first, "b");
    let stale = harness.fetches().remove(0);
    assert!(stale.from > 0);
    let page = harness.page(&stale);
    let second = harness.subscribe("bob");
    harness.fetched("bob", page);
    assert_eq!(harness.received(second), [], "fetching restarts at the first message for the new subscriber");
    harness.serve_fetches();
    assert_eq!(harness.received(second), [message("c", 1)]);
}

#[test]
fn a_page_that_arrives_after_the_subscriber_disconnected_is_ignored() {
    let mut harness = Harness::new();
    stored(&mut harness, &["a"]);
    let bob = harness.subscribe("bob");
    let page = harness.requested_page();
    harness.disconnect(bob);
    harness.fetched("bob", page);
    assert_eq!(harness.received(bob), []);
    let bob = harness.subscribe("bob");
    harness.serve_fetches();
    assert_eq!(harness.received(bob), [message("a", 1)]);
}

#[test]
fn a_message_settled_during_its_fetch_is_not_pushed() {
    let mut harness = Harness::new();
    stored(&mut harness, &["a", "b"]);
    let bob = harness.subscribe("bob");
    let page = harness.requested_page();
    harness.ack(bob, "a");
    harness.fetched("bob", page);
    assert_eq!(harness.received(bob), [message("b", 1)]);
}

#[test]
fn messages_accepted_during_a_fetch_follow_the_backlog() {
    let mut harness = Harness::new();
    let alice = stored(&mut harness, &["a"]);
    let bob = harness.subscribe("bob");
    harness.send(alice, "bob", "b");
    assert_eq!(harness.received(bob), []);
    harness.serve_fetches();
    assert_eq!(harness.received(bob), [message("a", 1), message("b", 1)]);
}

#[test]
fn a_corrupt_message_is_settled_and_counted_and_the_others_are_pushed() {
    let mut harness = Harness::new();
    stored(&mut harness, &["a", "b", "c"]);
    let bob = harness.subscribe("bob");
    let mut page = harness.requested_page();
    let lost = page.messages.remove(1);
    page.damaged.push(lost.seq);
    harness.fetched("bob", page);
    assert_eq!(harness.received(bob), [message("a", 1), message("c", 1)]);
    let view = harness.engine.status(harness.now);
    assert_eq!((view.set_aside, view.mailboxes[0].messages), (1, 2));
    assert!(settles(&harness.take_all(), "bob", "b"), "it is not fetched again after a restart");
    assert_eq!(harness.fetches(), []);
}

#[test]
fn a_mailbox_with_only_corrupt_messages_becomes_empty() {
    let mut harness = Harness::new();
    stored(&mut harness, &["a", "b"]);
    let bob = harness.subscribe("bob");
    let fetch = harness.fetches().remove(0);
    let damaged = harness.page(&fetch).messages.iter().map(|message| message.seq).collect();
    harness.fetched("bob", Page { from: fetch.from, messages: Vec::new(), damaged });
    assert_eq!(harness.received(bob), []);
    assert_eq!(harness.fetches(), [], "nothing is left to fetch");
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "c");
    assert_eq!(harness.received(bob), [message("c", 1)]);
}

#[test]
fn corrupt_records_found_during_recovery_are_counted() {
    let mut engine = toolbus_engine::Engine::new(toolbus_engine::EngineOptions::default());
    engine.finish_restore(1, 1, 3);
    assert_eq!(engine.status(0).set_aside, 3);
}
