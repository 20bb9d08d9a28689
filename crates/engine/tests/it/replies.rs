//! A reply that settles its request: the two become safe together, and so does whoever waits for either.

use crate::support::{Bench, conflict, delivery, message, puts, receipt, settled, settles};
use toolbus_engine::{Command, ConnId, Delivery};

/// Alice, who asks, and bob, who answers. Both are subscribed.
fn pair(bench: &mut Bench, numbered_receipts: bool) -> (ConnId, ConnId) {
    let alice = bench.connect_as("alice", None, numbered_receipts);
    bench.handle(alice, Command::Subscribe);
    (alice, bench.join("bob"))
}

/// The reply to what bob was last pushed under that id.
fn reply_to(bench: &Bench, request: &str) -> Delivery {
    Delivery {
        correlation_id: Some(request.into()),
        ack: Some(bench.tag(request)),
        ..delivery("alice", &format!("reply to {request}"))
    }
}

fn reply(bench: &mut Bench, bob: ConnId, request: &str) {
    let reply = reply_to(bench, request);
    bench.deliver(bob, reply);
}

#[test]
fn a_request_is_settled_in_the_batch_of_its_reply_and_never_before() {
    let mut bench = Bench::with(|options| (options.linger, options.lazy) = (50, 10));
    let (alice, bob) = pair(&mut bench, false);
    bench.send(alice, "bob", "q");
    bench.sync_all();
    reply(&mut bench, bob, "q");
    bench.now += 10;
    if let Some(earlier) = bench.take() {
        assert_eq!(puts(&earlier), [""; 0], "the reply lingers");
        assert!(!settles(&earlier, "bob", "q"), "without its reply the request may not go");
        bench.synced(earlier);
    }
    bench.now += 40;
    let batch = bench.take().expect("the reply is due");
    assert_eq!(puts(&batch), ["reply to q"]);
    assert!(settled(&batch, "bob", "q").unwrap().stored.is_some());
}

#[test]
fn a_request_whose_reply_is_acknowledged_before_it_is_written_is_settled_with_it() {
    let mut bench = Bench::new();
    let (alice, bob) = pair(&mut bench, false);
    bench.send(alice, "bob", "q");
    reply(&mut bench, bob, "q");
    assert_eq!(bench.told(alice), [message("reply to q", 1)]);
    bench.ack(alice, "reply to q");
    assert_eq!(bench.told(alice), [receipt(1, "q")]);
    assert_eq!(bench.told(bob), [message("q", 1), receipt(1, "reply to q")]);
    let batch = bench.take_all();
    assert_eq!(puts(&batch), [""; 0], "neither needs a record");
    assert!(settles(&batch, "bob", "q") && settles(&batch, "alice", "reply to q"));
}

#[test]
fn the_receipt_of_a_request_waits_until_its_reply_is_safe() {
    let mut bench = Bench::new();
    let (alice, bob) = pair(&mut bench, false);
    bench.send(alice, "bob", "q");
    reply(&mut bench, bob, "q");
    assert_eq!(bench.told(alice), [message("reply to q", 1)], "no receipt yet");
    let batch = bench.take_all();
    assert_eq!(puts(&batch), ["reply to q"], "the request needs no record");
    assert!(settles(&batch, "bob", "q"));
    assert_eq!(bench.told(alice), []);
    bench.synced(batch);
    assert_eq!(bench.told(alice), [receipt(1, "q")]);
}

#[test]
fn a_request_that_is_being_written_waits_for_its_reply_too() {
    let mut bench = Bench::new();
    let (alice, bob) = pair(&mut bench, false);
    bench.send(alice, "bob", "q");
    let first = bench.take_all();
    reply(&mut bench, bob, "q");
    bench.told(alice);
    bench.synced(first);
    assert_eq!(bench.told(alice), [], "its record is safe, but it is settled by a reply that is not");
    bench.sync_all();
    assert_eq!(bench.told(alice), [receipt(1, "q")]);
}

#[test]
fn a_reply_pushed_to_the_waiting_connection_is_the_receipt_of_its_request() {
    let mut bench = Bench::new();
    let (alice, bob) = pair(&mut bench, true);
    bench.send(alice, "bob", "q");
    reply(&mut bench, bob, "q");
    bench.sync_all();
    assert_eq!(bench.told(alice), [message("reply to q", 1)]);
}

#[test]
fn a_reply_pushed_to_another_connection_is_no_receipt() {
    let mut bench = Bench::new();
    let asking = bench.connect_as("alice", None, true);
    let (reading, bob) = pair(&mut bench, true);
    bench.send(asking, "bob", "q");
    reply(&mut bench, bob, "q");
    bench.sync_all();
    assert_eq!(bench.told(reading), [message("reply to q", 1)]);
    assert_eq!(bench.told(asking), [receipt(1, "q")]);
}

#[test]
fn a_message_that_answers_something_else_is_no_receipt() {
    let mut bench = Bench::new();
    let (alice, bob) = pair(&mut bench, true);
    bench.send(alice, "bob", "q");
    let mut other = reply_to(&bench, "q");
    other.correlation_id = Some("something else".into());
    bench.deliver(bob, other);
    bench.sync_all();
    assert_eq!(bench.told(alice), [message("reply to q", 1), receipt(1, "q")]);
}

#[test]
fn a_reply_that_the_window_held_back_is_no_receipt() {
    let mut bench = Bench::with(|options| options.window_messages = 1);
    let (alice, bob) = pair(&mut bench, true);
    bench.send(bob, "alice", "fills the window");
    bench.send(alice, "bob", "q");
    reply(&mut bench, bob, "q");
    bench.sync_all();
    assert_eq!(bench.told(alice), [message("fills the window", 1), receipt(1, "q")]);
}

#[test]
fn a_repeated_request_waits_while_its_reply_is_not_safe() {
    let mut bench = Bench::new();
    let (alice, bob) = pair(&mut bench, false);
    bench.send(alice, "bob", "q");
    bench.sync_all();
    assert_eq!(bench.told(alice), [receipt(1, "q")]);
    reply(&mut bench, bob, "q");
    bench.told(alice);
    bench.send(alice, "bob", "q");
    assert_eq!(bench.told(alice), []);
    bench.sync_all();
    assert_eq!(bench.told(alice), [receipt(2, "q")]);
    bench.send(alice, "bob", "q");
    assert_eq!(bench.told(alice), [receipt(3, "q")]);
}

#[test]
fn a_reply_that_is_refused_settles_nothing() {
    let mut bench = Bench::new();
    let (alice, bob) = pair(&mut bench, false);
    bench.send(bob, "alice", "reply to q");
    bench.send(alice, "bob", "q");
    let mut other = reply_to(&bench, "q");
    other.content = 2;
    bench.told(bob);
    bench.deliver(bob, other);
    assert_eq!(bench.told(bob), [conflict("reply to q", "alice")]);
    bench.disconnect(bob);
    let bob = bench.join("bob");
    assert_eq!(bench.told(bob), [message("q", 2)]);
}

#[test]
fn a_repeated_reply_settles_the_request_that_was_pushed_again() {
    let mut bench = Bench::new();
    let (alice, bob) = pair(&mut bench, false);
    bench.send(alice, "bob", "q");
    let unfolded = Delivery { ack: None, ..reply_to(&bench, "q") };
    bench.deliver(bob, unfolded);
    bench.sync_all();
    bench.disconnect(bob);
    let bob = bench.join("bob");
    bench.serve_fetches();
    bench.told(bob);
    reply(&mut bench, bob, "q");
    assert_eq!(bench.told(bob), [receipt(1, "reply to q")]);
    let batch = bench.take_all();
    assert_eq!(puts(&batch), [""; 0]);
    assert!(settles(&batch, "bob", "q"));
}

#[test]
fn only_the_mailbox_that_was_asked_settles_a_request() {
    let mut bench = Bench::new();
    let (alice, bob) = pair(&mut bench, false);
    let eve = bench.join("eve");
    bench.send(alice, "bob", "q");
    reply(&mut bench, eve, "q");
    bench.disconnect(bob);
    let bob = bench.join("bob");
    assert_eq!(bench.told(bob), [message("q", 2)]);
}

#[test]
fn after_a_crash_before_the_sync_the_request_comes_again() {
    let mut bench = Bench::new();
    let (alice, bob) = pair(&mut bench, false);
    bench.send(alice, "bob", "q");
    bench.sync_all();
    reply(&mut bench, bob, "q");
    bench.take_all();
    let mut bench = bench.restart();
    let bob = bench.join("bob");
    bench.serve_fetches();
    assert_eq!(bench.told(bob), [message("q", 1)]);
}

#[test]
fn a_folded_acknowledgement_opens_the_window() {
    let mut bench = Bench::with(|options| options.window_messages = 1);
    let (alice, bob) = pair(&mut bench, false);
    bench.send(alice, "bob", "q");
    bench.send(alice, "bob", "r");
    bench.told(bob);
    reply(&mut bench, bob, "q");
    assert_eq!(bench.told(bob), [message("r", 1)]);
}
