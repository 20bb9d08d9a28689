//! What is not stored: presence, cancels, live events, and the status.

use crate::support::{Harness, Received};
use bytes::Bytes;
use toolbus_engine::{Command, ConnId};

fn cancel(harness: &mut Harness, conn: ConnId, to: &str) {
    harness.handle(conn, Command::Cancel { to: to.into(), correlation_id: "c1".into(), request_id: None });
}

fn event(harness: &mut Harness, conn: ConnId, to: &str) {
    let body = Bytes::from_static(b"half done");
    harness.handle(conn, Command::Event { to: to.into(), correlation_id: "c1".into(), body, batch: false });
}

fn connected(harness: &mut Harness, conn: ConnId, role: &str) -> Vec<Received> {
    harness.handle(conn, Command::ListConnected { role: role.into() });
    harness.received(conn)
}

#[test]
fn a_cancel_reaches_only_the_live_subscriber() {
    let mut harness = Harness::new();
    let (alice, idle, carol) = (harness.connect("alice"), harness.connect("bob"), harness.subscribe("carol"));
    cancel(&mut harness, alice, "bob");
    let bob = harness.subscribe("bob");
    assert_eq!(harness.received(bob), [], "a cancel is not queued for a later subscriber");
    cancel(&mut harness, alice, "bob");
    assert_eq!(harness.received(bob), [Received::Cancel("c1".into())]);
    assert_eq!((harness.received(idle), harness.received(carol)), (vec![], vec![]));
    assert!(!harness.engine.anything_to_write());
}

#[test]
fn a_live_event_reaches_only_the_live_subscriber_and_names_its_sender() {
    let mut harness = Harness::new();
    let (alice, idle) = (harness.connect("alice"), harness.connect("bob"));
    event(&mut harness, alice, "bob");
    let bob = harness.subscribe("bob");
    assert_eq!(harness.received(bob), []);
    event(&mut harness, alice, "bob");
    let body = Bytes::from_static(b"half done");
    assert_eq!(harness.received(bob), [Received::Event { from: "alice".into(), correlation_id: "c1".into(), body }]);
    assert_eq!(harness.received(idle), []);
    assert!(!harness.engine.anything_to_write());
}

#[test]
fn presence_lists_the_subscribed_names_of_a_role_in_order() {
    let mut harness = Harness::new();
    let requester = harness.connect("requester");
    let joined: Vec<ConnId> = ["zoe", "adam", "zoe"]
        .into_iter()
        .map(|name| {
            let conn = harness.connect_as(name, Some("executor"), false);
            harness.handle(conn, Command::Subscribe);
            conn
        })
        .collect();
    harness.connect_as("connected only", Some("executor"), false);
    let other = harness.connect_as("other role", Some("host"), false);
    harness.handle(other, Command::Subscribe);
    harness.subscribe("no role");
    assert_eq!(
        connected(&mut harness, requester, "executor"),
        [Received::Connected(vec!["adam".into(), "zoe".into()])]
    );
    harness.disconnect(joined[2]);
    assert_eq!(connected(&mut harness, requester, "executor"), [Received::Connected(vec!["adam".into()])]);
    assert_eq!(connected(&mut harness, requester, "unused role"), [Received::Connected(vec![])]);
}

#[test]
fn commands_of_a_closed_connection_are_ignored() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    harness.disconnect(alice);
    harness.send(alice, "bob", "a");
    assert_eq!((harness.received(alice), harness.received(bob)), (vec![], vec![]));
}

#[test]
fn the_status_shows_connections_and_mailboxes() {
    let mut harness = Harness::with(|options| options.window_messages = 1);
    let (alice, bob) = (harness.connect("alice"), harness.subscribe("bob"));
    ["a", "b"].into_iter().for_each(|id| harness.send(alice, "bob", id));
    harness.now += 7;
    let view = harness.engine.status(harness.now);
    let names: Vec<_> = view.connections.iter().map(|conn| (&*conn.agent.name, conn.subscribed)).collect();
    assert_eq!(names, [("alice", false), ("bob", true)]);
    let mailbox = &view.mailboxes[0];
    assert_eq!((&*mailbox.name, mailbox.messages, mailbox.bytes), ("bob", 2, 200));
    assert_eq!((mailbox.in_flight, mailbox.oldest_ms), (1, Some(7)));
    ["a", "b"].into_iter().for_each(|id| harness.ack(bob, id));
    let mailbox = &harness.engine.status(harness.now).mailboxes[0];
    assert_eq!((mailbox.messages, mailbox.bytes, mailbox.oldest_ms), (0, 0, None));
}

#[test]
fn the_oldest_message_of_a_mailbox_is_its_first_one_also_after_a_restart() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    for id in ["a", "b"] {
        harness.send(alice, "bob", id);
        harness.now += 5;
    }
    let oldest = |harness: &Harness| harness.engine.status(harness.now).mailboxes[0].oldest_ms;
    assert_eq!(oldest(&harness), Some(10));
    harness.sync_all();
    assert_eq!(oldest(&harness.restart()), Some(10));
}

#[test]
fn the_status_lists_the_fullest_mailboxes_first_and_counts_the_rest() {
    let mut harness = Harness::new();
    let alice = harness.connect("alice");
    for n in 0..1_500 {
        harness.send(alice, &format!("m{n:04}"), "a");
    }
    for name in ["m1400", "m0007", "m1400"] {
        harness.send(alice, name, &format!("{}", harness.engine.unsettled_bytes()));
    }
    let view = harness.engine.status(harness.now);
    let rows: Vec<(&str, u64)> = view.mailboxes.iter().map(|row| (&*row.name, row.messages)).collect();
    assert_eq!(rows[..4], [("m1400", 3), ("m0007", 2), ("m0000", 1), ("m0001", 1)]);
    assert_eq!((rows.len(), rows[999].0, view.more_mailboxes), (1_000, "m0998", 500));
}
