//! A sender takes its messages back: what is queued goes at once, what is in flight goes to nobody else.

use crate::support::{Bench, Told, delivery, message, puts, receipt, refused, settled, settles};
use toolbus_engine::{Command, ConnId, Refusal};

fn cancel(bench: &mut Bench, conn: ConnId, to: &str, id: &str) {
    bench.handle(conn, Command::Cancel { to: to.into(), correlation_id: id.into() });
}

fn taken_back(id: &str, mailbox: &str) -> Told {
    refused(Refusal::Cancelled { id: id.into(), mailbox: mailbox.into() }, id)
}

#[test]
fn a_queued_message_without_a_record_is_taken_back_at_once_and_never_written() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    cancel(&mut bench, alice, "bob", "a");
    assert_eq!(bench.told(alice), [taken_back("a", "bob")], "instead of its receipt");
    let batch = bench.take_all();
    assert_eq!(puts(&batch), Vec::<&str>::new());
    assert_eq!(settled(&batch, "bob", "a").expect("its id is remembered").stored, None);
    bench.synced(batch);
    let bob = bench.join("bob");
    bench.serve_fetches();
    assert_eq!((bench.told(bob), bench.told(alice)), (vec![], vec![]));
}

#[test]
fn a_stored_message_is_taken_back_and_its_sender_told_once_that_will_survive_a_crash() {
    let mut bench = Bench::new();
    let alice = bench.join("alice");
    bench.send(alice, "bob", "a");
    bench.sync_all();
    assert_eq!(bench.told(alice), [receipt(1, "a")]);
    cancel(&mut bench, alice, "bob", "a");
    assert_eq!(bench.told(alice), [], "not before it is on disk");
    let batch = bench.take().expect("somebody waits for it");
    assert!(settles(&batch, "bob", "a"));
    bench.synced(batch);
    assert_eq!(bench.told(alice), [taken_back("a", "bob")]);
    let mut bench = bench.restart();
    let bob = bench.join("bob");
    bench.serve_fetches();
    assert_eq!(bench.told(bob), []);
}

#[test]
fn a_message_that_is_being_written_is_taken_back_without_a_receipt() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    let batch = bench.take_all();
    cancel(&mut bench, alice, "bob", "a");
    bench.synced(batch);
    assert_eq!(bench.told(alice), [], "a crash now would bring it back");
    bench.sync_all();
    assert_eq!(bench.told(alice), [taken_back("a", "bob")]);
}

#[test]
fn what_was_stored_before_a_restart_can_be_taken_back_by_its_sender_alone() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    bench.sync_all();
    let mut bench = bench.restart();
    let (alice, carol) = (bench.join("alice"), bench.join("carol"));
    cancel(&mut bench, carol, "bob", "a");
    bench.sync_all();
    assert_eq!((bench.told(alice), bench.told(carol)), (vec![], vec![]));
    assert_eq!(bench.engine.status(bench.now).mailboxes[0].messages, 1);
    cancel(&mut bench, alice, "bob", "a");
    bench.sync_all();
    assert_eq!(bench.told(alice), [taken_back("a", "bob")]);
    assert_eq!(bench.told(carol), []);
}

#[test]
fn the_recipient_and_other_senders_take_nothing_back() {
    let mut bench = Bench::with(|options| options.window_messages = 1);
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "first");
    bench.send(alice, "bob", "second");
    cancel(&mut bench, bob, "bob", "second");
    assert_eq!(bench.told(bob), [message("first", 1), Told::Cancel("second".into())]);
    bench.ack(bob, "first");
    assert_eq!(bench.told(bob), [message("second", 1)]);
}

#[test]
fn an_id_means_the_message_in_that_mailbox_and_no_other() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    bench.send(alice, "carol", "a");
    cancel(&mut bench, alice, "carol", "a");
    assert_eq!(bench.told(alice), [taken_back("a", "carol")]);
    let (bob, carol) = (bench.join("bob"), bench.join("carol"));
    assert_eq!((bench.told(bob), bench.told(carol)), (vec![message("a", 1)], vec![]));
}

#[test]
fn what_is_in_flight_is_the_subscribers_to_abandon_and_can_still_be_answered() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.join("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    cancel(&mut bench, alice, "bob", "a");
    assert_eq!(bench.told(bob), [message("a", 1), Told::Cancel("a".into())]);
    assert_eq!(bench.told(alice), []);
    let mut reply = delivery("alice", "r");
    reply.ack = Some(bench.tag("a"));
    bench.deliver(bob, reply);
    assert_eq!(bench.told(alice), [message("r", 1)]);
}

#[test]
fn what_was_cancelled_in_flight_is_not_pushed_to_the_next_subscriber() {
    for stored in [false, true] {
        for displaced in [false, true] {
            let mut bench = Bench::new();
            let (alice, bob) = (bench.join("alice"), bench.join("bob"));
            bench.send(alice, "bob", "a");
            bench.send(alice, "bob", "b");
            if stored {
                bench.sync_all();
                bench.told(alice);
            }
            cancel(&mut bench, alice, "bob", "a");
            if !displaced {
                bench.disconnect(bob);
            }
            let next = bench.join("bob");
            bench.serve_fetches();
            assert_eq!(bench.told(next), [message("b", 2)], "stored: {stored}, displaced: {displaced}");
            bench.sync_all();
            let told = bench.told(alice);
            assert!(told.contains(&taken_back("a", "bob")), "stored: {stored}, displaced: {displaced}: {told:?}");
            assert!(!told.contains(&receipt(1, "a")));
        }
    }
}

#[test]
fn a_message_taken_back_lets_the_next_one_through_and_frees_its_room() {
    let mut bench = Bench::with(|options| options.mailbox_messages = 1);
    let alice = bench.connect("alice");
    bench.send(alice, "bob", "a");
    cancel(&mut bench, alice, "bob", "a");
    bench.send(alice, "bob", "b");
    bench.sync_all();
    assert_eq!(bench.told(alice), [taken_back("a", "bob"), receipt(2, "b")]);
}

#[test]
fn dead_letters_are_not_taken_back() {
    let mut bench = Bench::with(|options| options.max_attempts = 1);
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.send(alice, "bob", "a");
    bench.disconnect(bob);
    bench.join("bob");
    cancel(&mut bench, alice, "bob#dead", "a");
    let dead = bench.join("bob#dead");
    assert_eq!(bench.told(dead), [message("a", 1)]);
}

#[test]
fn sweeping_out_the_deadlines_of_what_was_taken_back_leaves_the_others() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    let mut kept = delivery("bob", "kept");
    kept.deadline_ms = Some(5_000);
    bench.deliver(alice, kept);
    for n in 0..5_000 {
        let mut limited = delivery("bob", &format!("m{n}"));
        limited.deadline_ms = Some(1_000);
        bench.deliver(alice, limited);
        cancel(&mut bench, alice, "bob", &format!("m{n}"));
    }
    bench.told(alice);
    bench.now += 4_999;
    bench.tick();
    bench.sync_all();
    assert_eq!(bench.engine.next_wakeup(), Some(bench.now + 1));
    bench.now += 1;
    bench.tick();
    assert_eq!(bench.engine.status(bench.now).mailboxes.len(), 0);
}
