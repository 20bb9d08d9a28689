//! Messages whose bodies are on disk only: when they are asked for, and which answers count.

use crate::support::{Bench, Fetch, message, settles};
use toolbus_engine::{ConnId, Page};

/// Messages for bob that are stored and nowhere else.
fn stored(bench: &mut Bench, ids: &[&str]) -> ConnId {
    let alice = bench.connect("alice");
    ids.iter().for_each(|id| bench.send(alice, "bob", id));
    bench.sync_all();
    bench.told(alice);
    alice
}

#[test]
fn a_stored_backlog_is_asked_for_when_its_recipient_comes() {
    let mut bench = Bench::with(|options| (options.window_messages, options.window_bytes) = (7, 5_000));
    stored(&mut bench, &["a", "b"]);
    assert_eq!(bench.fetches(), []);
    let bob = bench.join("bob");
    assert_eq!(bench.told(bob), []);
    let fetches = bench.fetches();
    assert_eq!(fetches, [Fetch { mailbox: "bob".into(), from: 0, max_messages: 7, max_bytes: 5_000 }]);
    let page = bench.page(&fetches[0]);
    bench.fetched("bob", page);
    assert_eq!(bench.told(bob), [message("a", 1), message("b", 1)]);
    assert_eq!(bench.fetches(), [], "all of it was read");
}

#[test]
fn a_backlog_larger_than_the_window_is_read_in_steps() {
    let mut bench = Bench::with(|options| options.window_messages = 2);
    stored(&mut bench, &["a", "b", "c"]);
    let bob = bench.join("bob");
    bench.serve_fetches();
    assert_eq!(bench.told(bob), [message("a", 1), message("b", 1)]);
    bench.ack(bob, "a");
    bench.serve_fetches();
    assert_eq!(bench.told(bob), [message("c", 1)]);
}

#[test]
fn one_read_of_a_mailbox_is_under_way_at_a_time() {
    let mut bench = Bench::new();
    let alice = stored(&mut bench, &["a"]);
    bench.join("bob");
    assert_eq!(bench.fetches().len(), 1);
    bench.send(alice, "bob", "b");
    bench.join("bob");
    assert_eq!(bench.fetches(), []);
}

#[test]
fn a_page_that_was_asked_for_before_the_subscriber_changed_is_ignored() {
    let mut bench = Bench::with(|options| options.window_messages = 1);
    stored(&mut bench, &["a", "b"]);
    let first = bench.join("bob");
    bench.serve_fetches();
    bench.ack(first, "a");
    let second_read = bench.fetches().remove(0);
    let page = bench.page(&second_read);
    bench.fetched("bob", page);
    assert_eq!(bench.told(first), [message("a", 1), message("b", 1)]);

    let alice = bench.connect("alice");
    bench.send(alice, "bob", "c");
    bench.sync_all();
    bench.ack(first, "b");
    let stale = bench.fetches().remove(0);
    assert!(stale.from > 0);
    let page = bench.page(&stale);
    let second = bench.join("bob");
    bench.fetched("bob", page);
    assert_eq!(bench.told(second), [], "the new subscriber starts over from the beginning");
    bench.serve_fetches();
    assert_eq!(bench.told(second), [message("c", 1)]);
}

#[test]
fn a_page_that_arrives_after_the_subscriber_left_pushes_nothing() {
    let mut bench = Bench::new();
    stored(&mut bench, &["a"]);
    let bob = bench.join("bob");
    let page = bench.page_asked_for();
    bench.disconnect(bob);
    bench.fetched("bob", page);
    assert_eq!(bench.told(bob), []);
    let bob = bench.join("bob");
    bench.serve_fetches();
    assert_eq!(bench.told(bob), [message("a", 1)]);
}

#[test]
fn a_message_settled_while_it_was_read_is_not_pushed() {
    let mut bench = Bench::new();
    stored(&mut bench, &["a", "b"]);
    let bob = bench.join("bob");
    let page = bench.page_asked_for();
    bench.ack(bob, "a");
    bench.fetched("bob", page);
    assert_eq!(bench.told(bob), [message("b", 1)]);
}

#[test]
fn what_arrives_during_a_read_comes_after_the_backlog() {
    let mut bench = Bench::new();
    let alice = stored(&mut bench, &["a"]);
    let bob = bench.join("bob");
    bench.send(alice, "bob", "b");
    assert_eq!(bench.told(bob), []);
    bench.serve_fetches();
    assert_eq!(bench.told(bob), [message("a", 1), message("b", 1)]);
}

#[test]
fn a_damaged_message_is_struck_and_counted_and_the_others_are_pushed() {
    let mut bench = Bench::new();
    stored(&mut bench, &["a", "b", "c"]);
    let bob = bench.join("bob");
    let mut page = bench.page_asked_for();
    let lost = page.messages.remove(1);
    page.damaged.push(lost.seq);
    bench.fetched("bob", page);
    assert_eq!(bench.told(bob), [message("a", 1), message("c", 1)]);
    let view = bench.engine.status(bench.now);
    assert_eq!((view.set_aside, view.mailboxes[0].messages), (1, 2));
    assert!(settles(&bench.take_all(), "bob", "b"), "it is not read again after a restart");
    assert_eq!(bench.fetches(), []);
}

#[test]
fn a_mailbox_of_which_nothing_can_be_read_becomes_empty() {
    let mut bench = Bench::new();
    stored(&mut bench, &["a", "b"]);
    let bob = bench.join("bob");
    let fetch = bench.fetches().remove(0);
    let damaged = bench.page(&fetch).messages.iter().map(|message| message.seq).collect();
    bench.fetched("bob", Page { from: fetch.from, messages: Vec::new(), damaged });
    assert_eq!(bench.told(bob), []);
    assert_eq!(bench.fetches(), [], "there is nothing more to read");
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "c");
    assert_eq!(bench.told(bob), [message("c", 1)]);
}

#[test]
fn damage_found_at_the_start_is_counted() {
    let mut engine = toolbus_engine::Engine::new(toolbus_engine::EngineOptions::default());
    engine.finish_restore(1, 1, 3);
    assert_eq!(engine.status(0).set_aside, 3);
}
