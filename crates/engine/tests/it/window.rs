//! The window of a subscriber: by count, by bytes, and the message that is larger than it.

use crate::support::{Bench, delivery, message};
use bytes::Bytes;
use toolbus_engine::Command;

#[test]
fn no_more_messages_are_pushed_than_the_window_holds() {
    let mut bench = Bench::with(|options| options.window_messages = 2);
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    ["a", "b", "c", "d"].into_iter().for_each(|id| bench.send(alice, "bob", id));
    assert_eq!(bench.told(bob), [message("a", 1), message("b", 1)]);
    bench.ack(bob, "b");
    assert_eq!(bench.told(bob), [message("c", 1)], "one acknowledged, one more pushed");
    let tags = vec![bench.tag("a"), bench.tag("c")];
    bench.handle(bob, Command::AckTags { tags });
    assert_eq!(bench.told(bob), [message("d", 1)]);
}

#[test]
fn no_more_bytes_are_pushed_than_the_window_holds() {
    let mut bench = Bench::with(|options| options.window_bytes = 250);
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    ["a", "b", "c"].into_iter().for_each(|id| bench.send(alice, "bob", id));
    assert_eq!(bench.told(bob), [message("a", 1), message("b", 1)]);
    bench.ack(bob, "a");
    assert_eq!(bench.told(bob), [message("c", 1)]);
}

#[test]
fn a_message_larger_than_the_window_goes_alone() {
    let mut bench = Bench::with(|options| options.window_bytes = 250);
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "before");
    let mut large = delivery("bob", "large");
    large.sealed = Bytes::from(vec![b'x'; 1_000]);
    bench.deliver(alice, large);
    bench.send(alice, "bob", "after");
    assert_eq!(bench.told(bob), [message("before", 1)]);
    bench.ack(bob, "before");
    assert_eq!(bench.told(bob), [message("large", 1)]);
    bench.ack(bob, "large");
    assert_eq!(bench.told(bob), [message("after", 1)]);
}

#[test]
fn a_stored_message_larger_than_the_window_goes_alone_too() {
    let mut bench = Bench::with(|options| options.window_bytes = 250);
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "before");
    let mut large = delivery("bob", "large");
    large.sealed = Bytes::from(vec![b'x'; 1_000]);
    bench.deliver(alice, large);
    bench.send(alice, "bob", "after");
    bench.sync_all();
    let bob = bench.join("bob");
    for id in ["before", "large", "after"] {
        bench.serve_fetches();
        assert_eq!(bench.told(bob), [message(id, 1)]);
        bench.ack(bob, id);
    }
}

#[test]
fn the_window_of_a_new_subscriber_is_empty() {
    let mut bench = Bench::with(|options| options.window_messages = 2);
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    ["a", "b", "c"].into_iter().for_each(|id| bench.send(alice, "bob", id));
    bench.disconnect(bob);
    let bob = bench.join("bob");
    assert_eq!(bench.told(bob), [message("a", 2), message("b", 2)]);
}

#[test]
fn one_full_window_holds_up_nobody_else() {
    let mut bench = Bench::with(|options| options.window_messages = 1);
    let (alice, bob, carol) = (bench.connect("alice"), bench.join("bob"), bench.join("carol"));
    ["a", "b"].into_iter().for_each(|id| bench.send(alice, "bob", id));
    bench.send(alice, "carol", "c");
    assert_eq!(bench.told(bob), [message("a", 1)]);
    assert_eq!(bench.told(carol), [message("c", 1)]);
}
