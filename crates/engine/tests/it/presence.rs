//! What is not stored: presence, cancels, live events, and the view of the whole.

use crate::support::{Bench, Told};
use bytes::Bytes;
use toolbus_engine::{Command, ConnId};

fn cancel(bench: &mut Bench, conn: ConnId, to: &str) {
    bench.handle(conn, Command::Cancel { to: to.into(), correlation_id: "c1".into() });
}

fn event(bench: &mut Bench, conn: ConnId, to: &str) {
    let body = Bytes::from_static(b"half done");
    bench.handle(conn, Command::Event { to: to.into(), correlation_id: "c1".into(), body });
}

fn connected(bench: &mut Bench, conn: ConnId, role: &str) -> Vec<Told> {
    bench.handle(conn, Command::ListConnected { role: role.into() });
    bench.told(conn)
}

#[test]
fn a_cancel_reaches_only_the_live_subscriber() {
    let mut bench = Bench::new();
    let (alice, idle, carol) = (bench.connect("alice"), bench.connect("bob"), bench.join("carol"));
    cancel(&mut bench, alice, "bob");
    let bob = bench.join("bob");
    assert_eq!(bench.told(bob), [], "a cancel does not wait for anyone");
    cancel(&mut bench, alice, "bob");
    assert_eq!(bench.told(bob), [Told::Cancel("c1".into())]);
    assert_eq!((bench.told(idle), bench.told(carol)), (vec![], vec![]));
    assert!(!bench.engine.anything_to_write());
}

#[test]
fn a_live_event_reaches_only_the_live_subscriber_and_names_its_sender() {
    let mut bench = Bench::new();
    let (alice, idle) = (bench.connect("alice"), bench.connect("bob"));
    event(&mut bench, alice, "bob");
    let bob = bench.join("bob");
    assert_eq!(bench.told(bob), []);
    event(&mut bench, alice, "bob");
    let body = Bytes::from_static(b"half done");
    assert_eq!(bench.told(bob), [Told::Event { from: "alice".into(), correlation_id: "c1".into(), body }]);
    assert_eq!(bench.told(idle), []);
    assert!(!bench.engine.anything_to_write());
}

#[test]
fn presence_lists_the_subscribed_names_of_a_role_in_order() {
    let mut bench = Bench::new();
    let asking = bench.connect("asking");
    let joined: Vec<ConnId> = ["zoe", "adam", "zoe"]
        .into_iter()
        .map(|name| {
            let conn = bench.connect_as(name, Some("executor"), false);
            bench.handle(conn, Command::Subscribe);
            conn
        })
        .collect();
    bench.connect_as("connected only", Some("executor"), false);
    let other = bench.connect_as("other role", Some("host"), false);
    bench.handle(other, Command::Subscribe);
    bench.join("no role");
    assert_eq!(connected(&mut bench, asking, "executor"), [Told::Connected(vec!["adam".into(), "zoe".into()])]);
    bench.disconnect(joined[2]);
    assert_eq!(connected(&mut bench, asking, "executor"), [Told::Connected(vec!["adam".into()])]);
    assert_eq!(connected(&mut bench, asking, "nobody"), [Told::Connected(vec![])]);
}

#[test]
fn a_connection_that_left_is_heard_no_more() {
    let mut bench = Bench::new();
    let (alice, bob) = (bench.connect("alice"), bench.join("bob"));
    bench.disconnect(alice);
    bench.send(alice, "bob", "a");
    assert_eq!((bench.told(alice), bench.told(bob)), (vec![], vec![]));
}

#[test]
fn the_status_shows_connections_and_mailboxes() {
    let mut bench = Bench::with(|options| options.window_messages = 1);
    let (alice, _bob) = (bench.connect("alice"), bench.join("bob"));
    ["a", "b"].into_iter().for_each(|id| bench.send(alice, "bob", id));
    bench.now += 7;
    let view = bench.engine.status(bench.now);
    let names: Vec<_> = view.connections.iter().map(|conn| (&*conn.agent.name, conn.subscribed)).collect();
    assert_eq!(names, [("alice", false), ("bob", true)]);
    let mailbox = &view.mailboxes[0];
    assert_eq!((&*mailbox.name, mailbox.messages, mailbox.bytes), ("bob", 2, 200));
    assert_eq!((mailbox.in_flight, mailbox.oldest_ms), (1, Some(7)));
}

#[test]
fn the_view_shows_the_fullest_mailboxes_first_and_counts_the_rest() {
    let mut bench = Bench::new();
    let alice = bench.connect("alice");
    for n in 0..1_500 {
        bench.send(alice, &format!("m{n:04}"), "a");
    }
    for name in ["m1400", "m0007", "m1400"] {
        bench.send(alice, name, &format!("{}", bench.engine.unsettled_bytes()));
    }
    let view = bench.engine.status(bench.now);
    let rows: Vec<(&str, u64)> = view.mailboxes.iter().map(|row| (&*row.name, row.messages)).collect();
    assert_eq!(rows[..4], [("m1400", 3), ("m0007", 2), ("m0000", 1), ("m0001", 1)]);
    assert_eq!((rows.len(), rows[999].0, view.more_mailboxes), (1_000, "m0998", 500));
}
