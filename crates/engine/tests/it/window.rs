//! The push window of a subscriber: limits by count and by bytes, and messages larger than the window.

use crate::support::{Harness, delivery, message};
use bytes::Bytes;
use toolbus_engine::Command;

#[test]
fn the_message_limit_of_the_window_is_enforced() {
    let mut harness = Harness::with(|options| options.window_messages = 2);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    ["a", "b", "c", "d"].into_iter().for_each(|id| harness.send(alice, "bob", id));
    assert_eq!(harness.received(bob), [message("a", 1), message("b", 1)]);
    harness.ack(bob, "b");
    assert_eq!(harness.received(bob), [message("c", 1)], "an acknowledgement frees one slot");
    let tags = vec![harness.tag("a"), harness.tag("c")];
    harness.handle(bob, Command::AckTags { tags });
    assert_eq!(harness.received(bob), [message("d", 1)]);
}

#[test]
fn the_byte_limit_of_the_window_is_enforced() {
    let mut harness = Harness::with(|options| options.window_bytes = 200);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    ["a", "b", "c"].into_iter().for_each(|id| harness.send(alice, "bob", id));
    assert_eq!(harness.received(bob), [message("a", 1), message("b", 1)]);
    harness.ack(bob, "a");
    assert_eq!(harness.received(bob), [message("c", 1)]);
}

#[test]
fn a_message_larger_than_the_window_is_pushed_alone() {
    let mut harness = Harness::with(|options| options.window_bytes = 250);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "before");
    let mut large = delivery("bob", "large");
    large.sealed = Bytes::from(vec![b'x'; 1_000]);
    harness.deliver(alice, large);
    harness.send(alice, "bob", "after");
    assert_eq!(harness.received(bob), [message("before", 1)]);
    harness.ack(bob, "before");
    assert_eq!(harness.received(bob), [message("large", 1)]);
    harness.ack(bob, "large");
    assert_eq!(harness.received(bob), [message("after", 1)]);
}

#[test]
fn a_stored_message_larger_than_the_window_is_pushed_alone() {
    let mut harness = Harness::with(|options| options.window_bytes = 250);
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "before");
    let mut large = delivery("bob", "large");
    large.sealed = Bytes::from(vec![b'x'; 1_000]);
    harness.deliver(alice, large);
    harness.send(alice, "bob", "after");
    harness.sync_all();
    let bob = harness.subscribe("bob");
    for id in ["before", "large", "after"] {
        harness.serve_fetches();
        assert_eq!(harness.received(bob), [message(id, 1)]);
        harness.ack(bob, id);
    }
}

#[test]
fn a_new_subscriber_starts_with_an_empty_window() {
    let mut harness = Harness::with(|options| options.window_messages = 2);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    ["a", "b", "c"].into_iter().for_each(|id| harness.send(alice, "bob", id));
    harness.disconnect(bob);
    let bob = harness.subscribe("bob");
    assert_eq!(harness.received(bob), [message("a", 2), message("b", 2)]);
}

#[test]
fn a_full_window_does_not_delay_other_mailboxes() {
    let mut harness = Harness::with(|options| options.window_messages = 1);
    let (alice, bob, carol) = (harness.connect("alice"), harness.subscribe("bob"), harness.subscribe("carol"));
    ["a", "b"].into_iter().for_each(|id| harness.send(alice, "bob", id));
    harness.send(alice, "carol", "c");
    assert_eq!(harness.received(bob), [message("a", 1)]);
    assert_eq!(harness.received(carol), [message("c", 1)]);
}

#[test]
fn a_subscriber_of_version_1_that_acknowledges_late_has_a_wider_window() {
    for (numbered, expected) in [(false, 3), (true, 1)] {
        let mut harness = Harness::with(|options| {
            (options.window_messages, options.version1_window_messages) = (1, Some(3));
        });
        let (alice, bob) = (harness.connect("alice"), harness.connect_as("bob", None, numbered));
        harness.handle(bob, Command::Subscribe);
        (0..5).for_each(|number| harness.send(alice, "bob", &number.to_string()));
        assert_eq!(harness.received(bob).len(), expected, "{numbered}");
    }
}

#[test]
fn bytes_that_are_passed_on_no_longer_count_in_the_window() {
    let mut harness = Harness::with(|options| options.window_bytes = 150);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    ["a", "b"].into_iter().for_each(|id| harness.send(alice, "bob", id));
    assert_eq!(harness.received(bob), [message("a", 1)], "each has 100 bytes");
    let tags = vec![harness.tag("a")];
    harness.handle(bob, Command::Passed { tags: tags.clone() });
    harness.handle(bob, Command::Passed { tags });
    assert_eq!(harness.received(bob), [message("b", 1)]);
    harness.ack(bob, "a");
    harness.disconnect(bob);
    let bob = harness.subscribe("bob");
    assert_eq!(harness.received(bob), [message("b", 2)]);
}
