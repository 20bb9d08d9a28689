//! Interactions of rare events: a reply that is dead-lettered or expires before it is durable, a fetch that races with
//! a refused batch, an id that is already used in the dead-letter mailbox.

use crate::support::{Harness, delivery, expired, message, puts, receipt, refused, settles};
use toolbus_engine::{Command, ConnId, Delivery, Refusal, RestoredMessage, fingerprint};

fn reply(harness: &mut Harness, bob: ConnId, request: &str) {
    let ack = Some(harness.tag(request));
    harness.deliver(bob, Delivery { ack, correlation_id: Some(request.into()), ..delivery("alice", "reply") });
}

fn refuse_next(harness: &mut Harness) {
    let batch = harness.take_all();
    let retry_at = harness.now + 500;
    harness.refuse(batch, retry_at);
}

#[test]
fn a_request_is_receipted_even_if_its_reply_expires_before_it_is_durable() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "q");
    let ack = Some(harness.tag("q"));
    harness.deliver(bob, Delivery { ack, deadline_ms: Some(5), ..delivery("alice", "reply") });
    harness.received(bob);
    harness.now += 5;
    harness.tick();
    assert_eq!(harness.received(alice), [receipt(1, "q")], "the request was consumed; only the reply expired");
    assert_eq!(harness.received(bob), [expired("reply", "alice")]);
}

#[test]
fn settlements_of_a_dead_lettered_reply_depend_on_its_dead_letter() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.subscribe("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "q");
    harness.sync_all();
    reply(&mut harness, bob, "q");
    harness.received(alice);
    let unreadable = harness.pushed("reply");
    harness.handle(alice, Command::Unreadable { message: unreadable });
    harness.received(alice);
    harness.send(alice, "bob", "q");
    assert_eq!(harness.received(alice), [], "the request depends on the dead letter, which is not durable yet");
    let batch = harness.take_all();
    assert_eq!((puts(&batch), &*batch.puts[0].mailbox), (vec!["reply"], "alice#dead"));
    assert!(settles(&batch, "bob", "q"), "the settlement is in the batch of the dead letter");
    harness.refuse(batch, 2_000);
    harness.serve_fetches();
    assert!(harness.received(bob).contains(&message("q", 1)), "without the dead letter the request is pending again");
}

#[test]
fn settlements_move_to_the_dead_letter_if_the_batch_of_the_reply_is_refused() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.subscribe("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "q");
    harness.sync_all();
    reply(&mut harness, bob, "q");
    let batch = harness.take_all();
    let unreadable = harness.pushed("reply");
    harness.handle(alice, Command::Unreadable { message: unreadable });
    harness.received(bob);
    harness.refuse(batch, 2_000);
    let next = harness.take_all();
    assert_eq!((puts(&next), &*next.puts[0].mailbox), (vec!["reply"], "alice#dead"));
    assert!(settles(&next, "bob", "q"));
    harness.synced(next);
    assert_eq!(harness.received(bob), [receipt(1, "reply")]);
    assert_eq!(harness.fetches(), [], "the request stays settled");
}

#[test]
fn settlements_of_an_unwritten_reply_move_to_its_dead_letter_while_another_batch_is_written() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.subscribe("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "q");
    harness.sync_all();
    harness.send(alice, "carol", "other");
    let batch = harness.take_all();
    reply(&mut harness, bob, "q");
    let unreadable = harness.pushed("reply");
    harness.handle(alice, Command::Unreadable { message: unreadable });
    harness.synced(batch);
    let next = harness.take_all();
    assert_eq!((puts(&next), &*next.puts[0].mailbox), (vec!["reply"], "alice#dead"));
    assert!(settles(&next, "bob", "q"));
}

#[test]
fn a_message_stays_in_its_mailbox_if_its_dead_letter_is_refused() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    harness.sync_all();
    let unreadable = harness.pushed("a");
    harness.handle(bob, Command::Unreadable { message: unreadable });
    harness.received(bob);
    refuse_next(&mut harness);
    harness.serve_fetches();
    assert_eq!(harness.received(bob), [message("a", 1)]);
    assert!(!harness.engine.anything_to_write(), "no settlement is written");
}

#[test]
fn a_message_is_not_dead_lettered_if_its_id_is_pending_there_with_other_content() {
    let mut harness = Harness::with(|options| (options.history_ids, options.max_attempts) = (1, 1));
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    let unreadable = harness.pushed("a");
    harness.handle(bob, Command::Unreadable { message: unreadable });
    // Enough settled ids for the first use of "a" to be forgotten.
    for id in ["x", "y", "z"] {
        harness.send(alice, "bob", id);
        harness.ack(bob, id);
    }
    harness.deliver(alice, Delivery { content: 2, ..delivery("bob", "a") });
    harness.sync_all();
    harness.disconnect(bob);
    for attempt in [2, 3] {
        let bob = harness.subscribe("bob");
        harness.serve_fetches();
        assert_eq!(harness.received(bob), [message("a", attempt)], "it is redelivered instead of being dropped");
        harness.disconnect(bob);
    }
}

#[test]
fn a_message_whose_dead_letter_is_still_pending_is_settled_with_it() {
    let mut harness = Harness::with(|options| options.history_ids = 1);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    for _ in 0..2 {
        harness.send(alice, "bob", "a");
        let unreadable = harness.pushed("a");
        harness.handle(bob, Command::Unreadable { message: unreadable });
        // Enough settled ids for this use of "a" to be forgotten.
        for id in ["x", "y", "z"] {
            harness.send(alice, "bob", id);
            harness.ack(bob, id);
        }
    }
    harness.sync_all();
    let dead = harness.subscribe("bob#dead");
    harness.serve_fetches();
    assert_eq!(harness.received(dead), [message("a", 1)]);
    let view = harness.engine.status(harness.now);
    let pending: Vec<_> = view.mailboxes.iter().map(|mailbox| (&*mailbox.name, mailbox.messages)).collect();
    assert_eq!(pending, [("bob#dead", 1), ("bob", 0)]);
}

#[test]
fn a_message_reverted_during_a_fetch_is_not_skipped() {
    let mut harness = Harness::with(|options| options.window_messages = 2);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    ["q", "b", "c", "d"].iter().for_each(|id| harness.send(alice, "bob", id));
    harness.sync_all();
    reply(&mut harness, bob, "q");
    harness.ack(bob, "b");
    // The fetch of "c" and "d" is in progress when the request before them becomes pending again.
    let page = harness.requested_page();
    refuse_next(&mut harness);
    harness.received(bob);
    harness.fetched("bob", page);
    harness.serve_fetches();
    assert_eq!(harness.received(bob), [message("q", 1), message("c", 1)], "in order, including the request");
}

#[test]
fn a_refused_message_frees_its_window_slot() {
    let mut harness = Harness::with(|options| options.window_messages = 1);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    let batch = harness.take_all();
    harness.send(alice, "bob", "b");
    assert_eq!(harness.received(bob), [message("a", 1)]);
    harness.refuse(batch, 2_000);
    assert_eq!(harness.received(alice), [refused(Refusal::DiskFull, "a")]);
    assert_eq!(harness.received(bob), [message("b", 1)]);
}

#[test]
fn settled_messages_in_a_page_are_not_fetched_repeatedly() {
    let mut harness = Harness::with(|options| options.window_messages = 2);
    let alice = harness.connect("alice");
    ["a", "b", "c"].iter().for_each(|id| harness.send(alice, "bob", id));
    harness.sync_all();
    let bob = harness.subscribe("bob");
    harness.serve_fetches();
    ["a", "b"].iter().for_each(|id| harness.ack(bob, id));
    // The settlements of the first two are not written yet, so the store still returns both, and they fill a page.
    let bob = harness.subscribe("bob");
    harness.received(bob);
    harness.serve_fetches();
    let again = harness.engine.status(harness.now).mailboxes[0].clone();
    assert_eq!((again.messages, again.in_flight), (1, 1));
    assert_eq!(harness.received(bob), [message("c", 1)]);
}

#[test]
fn a_message_that_does_not_fit_is_not_fetched_again_until_it_fits() {
    let mut harness = Harness::with(|options| options.window_bytes = 400);
    let alice = harness.connect("alice");
    harness.send(alice, "bob", "small");
    harness.deliver(alice, Delivery { sealed: vec![0; 286].into(), ..delivery("bob", "large") });
    harness.sync_all();
    let bob = harness.subscribe("bob");
    let page = harness.requested_page();
    harness.fetched("bob", page);
    assert_eq!(harness.received(bob), [message("small", 1)]);
    assert_eq!(harness.fetches(), [], "it still would not fit");
    harness.ack(bob, "small");
    harness.serve_fetches();
    assert_eq!(harness.received(bob), [message("large", 1)]);
}

#[test]
fn the_later_of_two_restored_messages_with_one_id_replaces_the_earlier() {
    let mut harness = Harness::new();
    for seq in [3, 9] {
        harness.engine.restore_message(RestoredMessage {
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
    harness.engine.finish_restore(10, 1, 0);
    let view = harness.engine.status(harness.now);
    assert_eq!((view.mailboxes[0].messages, view.mailboxes[0].bytes), (1, 100));
    let batch = harness.take_all();
    assert_eq!(batch.settled[0].stored, Some(("bob".into(), 3)), "the earlier record is settled");
}
