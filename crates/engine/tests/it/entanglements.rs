//! Where two rare things meet: a reply that dies or expires before it is safe, a read that is overtaken by a refusal, an
//! id that is taken among the dead letters.

use crate::support::{Bench, delivery, expired, message, puts, receipt, refused, settles};
use toolbus_engine::{Command, ConnId, Delivery, Refusal, RestoredMessage, fingerprint};

fn reply(bench: &mut Bench, bob: ConnId, request: &str) {
    let ack = Some(bench.tag(request));
    bench.deliver(bob, Delivery { ack, correlation_id: Some(request.into()), ..delivery("alice", "reply") });
}

fn refuse_next(bench: &mut Bench) {
    let batch = bench.take_all();
    let retry_at = bench.now + 500;
    bench.refuse(batch, retry_at);
}

#[test]
fn a_request_is_receipted_though_its_reply_expired_before_it_was_safe() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "q");
    let ack = Some(bench.tag("q"));
    bench.deliver(bob, Delivery { ack, deadline_ms: Some(5), ..delivery("alice", "reply") });
    bench.told(bob);
    bench.now += 5;
    bench.tick();
    assert_eq!(bench.told(alice), [receipt(1, "q")], "it was consumed; only the reply came too late");
    assert_eq!(bench.told(bob), [expired("reply", "alice")]);
}

#[test]
fn a_reply_that_dies_before_it_is_safe_leaves_its_request_to_its_letter() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.join("alice"), bench.join("bob"));
    bench.send(alice, "bob", "q");
    bench.sync_all();
    reply(&mut bench, bob, "q");
    bench.told(alice);
    let unreadable = bench.pushed("reply");
    bench.handle(alice, Command::Unreadable { message: unreadable });
    bench.told(alice);
    bench.send(alice, "bob", "q");
    assert_eq!(bench.told(alice), [], "the request is as safe as the message, which is in memory only");
    let batch = bench.take_all();
    assert_eq!((puts(&batch), &*batch.puts[0].mailbox), (vec!["reply"], "alice#dead"));
    assert!(settles(&batch, "bob", "q"), "request and message go to disk together");
    bench.refuse(batch, 2_000);
    bench.serve_fetches();
    assert!(bench.told(bob).contains(&message("q", 1)), "without the message the request is pending again");
}

#[test]
fn a_reply_that_dies_while_it_is_written_and_refused_leaves_its_request_to_its_letter() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.join("alice"), bench.join("bob"));
    bench.send(alice, "bob", "q");
    bench.sync_all();
    reply(&mut bench, bob, "q");
    let batch = bench.take_all();
    let unreadable = bench.pushed("reply");
    bench.handle(alice, Command::Unreadable { message: unreadable });
    bench.told(bob);
    bench.refuse(batch, 2_000);
    let next = bench.take_all();
    assert_eq!((puts(&next), &*next.puts[0].mailbox), (vec!["reply"], "alice#dead"));
    assert!(settles(&next, "bob", "q"));
    bench.synced(next);
    assert_eq!(bench.told(bob), [receipt(1, "reply")]);
    assert_eq!(bench.fetches(), [], "the request stays settled");
}

#[test]
fn a_letter_without_room_leaves_the_message_where_it_was() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    bench.sync_all();
    let unreadable = bench.pushed("a");
    bench.handle(bob, Command::Unreadable { message: unreadable });
    bench.told(bob);
    refuse_next(&mut bench);
    bench.serve_fetches();
    assert_eq!(bench.told(bob), [message("a", 1)]);
    assert!(!bench.engine.anything_to_write(), "nothing says that it is settled");
}

#[test]
fn a_message_stays_when_another_of_its_id_waits_among_the_dead_letters() {
    let mut bench = Bench::with(|options| (options.history_ids, options.max_attempts) = (1, 1));
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    let unreadable = bench.pushed("a");
    bench.handle(bob, Command::Unreadable { message: unreadable });
    // Enough for the first use of the id to be forgotten.
    for id in ["x", "y", "z"] {
        bench.send(alice, "bob", id);
        bench.ack(bob, id);
    }
    bench.deliver(alice, Delivery { content: 2, ..delivery("bob", "a") });
    bench.sync_all();
    bench.disconnect(bob);
    for attempt in [2, 3] {
        let bob = bench.join("bob");
        bench.serve_fetches();
        assert_eq!(bench.told(bob), [message("a", attempt)], "it is pushed again rather than dropped");
        bench.disconnect(bob);
    }
}

#[test]
fn a_read_that_a_refusal_overtook_does_not_hide_what_came_back() {
    let mut bench = Bench::with(|options| options.window_messages = 2);
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    ["q", "b", "c", "d"].iter().for_each(|id| bench.send(alice, "bob", id));
    bench.sync_all();
    reply(&mut bench, bob, "q");
    bench.ack(bob, "b");
    // The read of "c" and "d" is under way when the request before them comes back.
    let page = bench.page_asked_for();
    refuse_next(&mut bench);
    bench.told(bob);
    bench.fetched("bob", page);
    bench.serve_fetches();
    assert_eq!(bench.told(bob), [message("q", 1), message("c", 1)], "in order, the request included");
}

#[test]
fn a_refused_message_makes_room_in_the_window_for_the_next() {
    let mut bench = Bench::with(|options| options.window_messages = 1);
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    let batch = bench.take_all();
    bench.send(alice, "bob", "b");
    assert_eq!(bench.told(bob), [message("a", 1)]);
    bench.refuse(batch, 2_000);
    assert_eq!(bench.told(alice), [refused(Refusal::DiskFull, "a")]);
    assert_eq!(bench.told(bob), [message("b", 1)]);
}

#[test]
fn what_is_settled_and_not_yet_written_is_not_read_over_and_over() {
    let mut bench = Bench::with(|options| options.window_messages = 2);
    let alice = bench.connect("alice");
    ["a", "b", "c"].iter().for_each(|id| bench.send(alice, "bob", id));
    bench.sync_all();
    let bob = bench.join("bob");
    bench.serve_fetches();
    ["a", "b"].iter().for_each(|id| bench.ack(bob, id));
    // The store still has the two that are settled, and they fill a page.
    let bob = bench.join("bob");
    bench.told(bob);
    bench.serve_fetches();
    let again = bench.engine.status(bench.now).mailboxes[0].clone();
    assert_eq!((again.messages, again.in_flight), (1, 1));
    assert_eq!(bench.told(bob), [message("c", 1)]);
}

#[test]
fn a_message_that_does_not_fit_is_not_read_again_before_it_may() {
    let mut bench = Bench::with(|options| options.window_bytes = 400);
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "small");
    bench.deliver(alice, Delivery { sealed: vec![0; 286].into(), ..delivery("bob", "large") });
    bench.sync_all();
    let bob = bench.join("bob");
    let page = bench.page_asked_for();
    bench.fetched("bob", page);
    assert_eq!(bench.told(bob), [message("small", 1)]);
    assert_eq!(bench.fetches(), [], "it would not fit the next time either");
    bench.ack(bob, "small");
    bench.serve_fetches();
    assert_eq!(bench.told(bob), [message("large", 1)]);
}

#[test]
fn of_two_pending_messages_with_one_id_the_later_stands_for_both() {
    let mut bench = Bench::new();
    for seq in [3, 9] {
        bench.engine.restore_message(RestoredMessage {
            seq,
            mailbox: "bob",
            id: "a",
            from: "alice",
            fingerprint: fingerprint(0, "bob", "a"),
            content: 1,
            size: 100,
            accepted_at: seq,
            expires_at: None,
        });
    }
    bench.engine.finish_restore(10, 1, 0);
    let view = bench.engine.status(bench.now);
    assert_eq!((view.mailboxes[0].messages, view.mailboxes[0].bytes), (1, 100));
    let batch = bench.take_all();
    assert_eq!(batch.settled[0].stored, Some(("bob".into(), 3)), "the earlier record is given up for good");
}
