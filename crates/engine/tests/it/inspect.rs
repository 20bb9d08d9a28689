//! A look at peers, messages and mailboxes: what it shows, wherever a message stands, and to whom.

use crate::support::{Bench, Told, delivery};
use std::sync::Arc;
use toolbus_engine::{
    Command, ConnId, Delivery, Inspect, InspectView, MessageAt, MessageView, Names, Refusal, Rights, Sender,
};

const WORKER: Rights = Rights { unrestricted: false, host: false, operator: false };
const HOST: Rights = Rights { host: true, ..WORKER };
const OPERATOR: Rights = Rights { operator: true, ..WORKER };

struct Rules;

impl Names for Rules {
    fn is_host(&self, mailbox: &str) -> bool {
        mailbox == "host"
    }

    fn may_message(&self, _from: &Sender, _to: &str) -> bool {
        true
    }
}

fn dated(to: &str, id: &str) -> Delivery {
    Delivery { deadline_ms: Some(60_000), ..delivery(to, id) }
}

fn at(to: &str, ids: &[&str]) -> Inspect {
    let messages = ids.iter().map(|id| MessageAt { to: to.into(), id: (*id).into() }).collect();
    Inspect { messages, ..Inspect::default() }
}

fn rows_of(mailbox: &str) -> Inspect {
    Inspect { rows_of: Some(mailbox.into()), ..Inspect::default() }
}

fn inspect(bench: &Bench, conn: ConnId, inspect: &Inspect) -> InspectView {
    bench.engine.inspect(bench.now, conn, inspect)
}

fn ids(rows: &[MessageView]) -> Vec<&str> {
    rows.iter().map(|row| &*row.id).collect()
}

#[test]
fn a_peer_is_there_while_a_connection_of_its_name_stands() {
    let mut bench = Bench::new();
    let asking = bench.connect("asking");
    let first = bench.connect("bob#1");
    let second = bench.join("bob#1");
    let peers = Inspect { peers: vec!["bob#1".into(), "bob".into(), "asking".into()], ..Inspect::default() };
    assert_eq!(inspect(&bench, asking, &peers).peers, [true, false, true]);
    bench.disconnect(second);
    assert_eq!(inspect(&bench, asking, &peers).peers, [true, false, true], "one is left");
    bench.disconnect(first);
    assert_eq!(inspect(&bench, asking, &peers).peers, [false, false, true]);
}

#[test]
fn a_letter_has_as_many_before_it_as_are_pending_wherever_they_stand() {
    let mut bench = Bench::with(|options| options.window_messages = 1);
    let (alice, other) = (bench.join("alice"), bench.join("other"));
    let all = at("host", &["a", "b", "c", "d"]);
    bench.deliver(alice, dated("host", "a"));
    bench.deliver(other, dated("host", "between"));
    bench.sync_all();
    for id in ["b", "c"] {
        bench.deliver(alice, dated("host", id));
    }
    // Two on disk, two in memory, one elsewhere.
    bench.deliver(alice, dated("elsewhere", "d"));
    assert_eq!(inspect(&bench, alice, &all).messages, [Some(0), Some(2), Some(3), None]);
    let host = bench.join("host");
    bench.serve_fetches();
    assert_eq!(inspect(&bench, alice, &all).messages, [Some(0), Some(2), Some(3), None], "one is in flight");
    bench.ack(host, "a");
    bench.serve_fetches();
    assert_eq!(inspect(&bench, alice, &all).messages, [None, Some(1), Some(2), None]);
    bench.disconnect(host);
    bench.sync_all();
    assert_eq!(inspect(&bench, alice, &all).messages, [None, Some(1), Some(2), None], "back on disk");
    bench.handle(alice, Command::Cancel { to: "host".into(), correlation_id: "b".into() });
    assert_eq!(inspect(&bench, alice, &all).messages, [None, None, Some(1), None], "taken back");
    bench.now += 60_001;
    bench.tick();
    assert_eq!(inspect(&bench, alice, &all).messages, [None; 4], "expired");
}

#[test]
fn a_letter_of_somebody_else_is_not_there() {
    let mut bench = Bench::new();
    let (alice, other) = (bench.join("alice"), bench.join("other"));
    bench.deliver(alice, dated("host", "a"));
    assert_eq!(inspect(&bench, other, &at("host", &["a"])).messages, [None]);
    assert_eq!(inspect(&bench, alice, &at("host", &["a"])).messages, [Some(0)]);
}

#[test]
fn letters_before_one_are_counted_up_to_a_thousand() {
    let mut bench = Bench::new();
    let alice = bench.join("alice");
    for number in 0..1_500 {
        bench.deliver(alice, dated("host", &format!("m{number}")));
        if number == 700 {
            bench.sync_all();
        }
    }
    let view = inspect(&bench, alice, &at("host", &["m0", "m999", "m1000", "m1001", "m1499"]));
    assert_eq!(view.messages, [Some(0), Some(999), Some(1000), Some(1000), Some(1000)]);
}

#[test]
fn rows_show_what_waits_in_order_with_age_attempts_and_what_is_left() {
    let mut bench = Bench::with(|options| options.window_messages = 1);
    let alice = bench.join("alice");
    bench.deliver(alice, dated("host", "a"));
    bench.sync_all();
    let gone = bench.join("host");
    bench.serve_fetches();
    bench.disconnect(gone);
    bench.now += 5_000;
    bench.deliver(alice, dated("host", "b"));
    let _host = bench.join("host");
    bench.serve_fetches();
    bench.now += 1_000;
    let view = inspect(&bench, alice, &rows_of("host"));
    let row = |id: &str, age_ms, attempt, in_flight| MessageView {
        id: id.into(),
        from: Arc::from("alice"),
        age_ms,
        attempt,
        in_flight,
        deadline_ms: Some(60_000 - age_ms),
    };
    assert_eq!(view.rows, [row("a", 6_000, 2, true), row("b", 1_000, 0, false)]);
    assert!(!view.more);
    bench.sync_all();
    assert_eq!(inspect(&bench, alice, &rows_of("host")), view, "on disk as in memory");
    assert_eq!(inspect(&bench, alice, &rows_of("nobody")), InspectView::default());
}

#[test]
fn rows_are_the_same_after_a_restart() {
    let mut bench = Bench::new();
    let alice = bench.join("alice");
    ["a", "b", "c"].into_iter().for_each(|id| bench.deliver(alice, dated("host", id)));
    bench.send(alice, "host", "without a deadline");
    bench.sync_all();
    let mut bench = bench.restart();
    let alice = bench.join("alice");
    let view = inspect(&bench, alice, &rows_of("host"));
    assert_eq!(ids(&view.rows), ["a", "b", "c"]);
    assert!(view.more, "one can't be shown");
    assert_eq!(inspect(&bench, alice, &at("host", &["without a deadline", "a"])).messages, [Some(3), Some(0)]);
}

#[test]
fn rows_end_after_a_thousand() {
    let mut bench = Bench::new();
    let alice = bench.join("alice");
    (0..1_001).for_each(|number| bench.deliver(alice, dated("host", &format!("m{number}"))));
    let view = inspect(&bench, alice, &rows_of("host"));
    assert_eq!((view.rows.len(), view.more), (1_000, true));
    assert_eq!(view.rows[999].id, "m999");
}

/// Two agents and an operator at a host's mailbox that holds one letter of each of three mailboxes.
fn town() -> (Bench, [ConnId; 5]) {
    let mut bench = Bench::new();
    bench.engine.set_names(Arc::new(Rules));
    let mut join = |name: &str, rights| {
        let conn = bench.connect_with(name, None, false, rights);
        bench.handle(conn, Command::Subscribe);
        conn
    };
    let (ana, ana2, bo) = (join("ana#1", WORKER), join("ana#2", WORKER), join("bo", WORKER));
    let (beside, operator) = (join("host#beside", HOST), join("op", OPERATOR));
    for (conn, id) in [(ana, "a1"), (ana2, "a2"), (bo, "b")] {
        bench.deliver(conn, dated("host", id));
    }
    bench.sync_all();
    (bench, [ana, ana2, bo, beside, operator])
}

#[test]
fn rows_of_a_mailbox_are_all_for_its_owner_and_operators_and_their_own_agents_for_others() {
    let (bench, [ana, ana2, bo, beside, operator]) = town();
    for (conn, expected) in [
        (ana, &["a1", "a2"][..]),
        (ana2, &["a1", "a2"]),
        (bo, &["b"]),
        (beside, &["a1", "a2", "b"]),
        (operator, &["a1", "a2", "b"]),
    ] {
        let view = inspect(&bench, conn, &rows_of("host"));
        assert_eq!((ids(&view.rows), view.more), (expected.to_vec(), false));
    }
}

#[test]
fn only_hosts_and_operators_ask_about_peers_of_other_agents() {
    let (mut bench, [ana, _, bo, beside, operator]) = town();
    let mut ask = |conn, peers: &[&str]| {
        let inspect = Inspect { peers: peers.iter().map(|peer| (*peer).into()).collect(), ..Inspect::default() };
        bench.outgoing(conn);
        bench.handle(conn, Command::Inspect { request_id: "l".into(), inspect: Box::new(inspect) });
        match bench.outgoing(conn).pop() {
            Some(toolbus_engine::Outgoing::Inspected { view, .. }) => Ok(view.peers),
            Some(toolbus_engine::Outgoing::Refused { refusal, id }) => Err((refusal, id.map(|id| id.to_string()))),
            other => panic!("{other:?}"),
        }
    };
    let refused = Err((Refusal::OperatorOnly, Some("l".to_owned())));
    assert_eq!(ask(ana, &["ana#2", "ana#9", "host", "host#beside"]), Ok(vec![true, false, false, true]));
    assert_eq!(ask(ana, &["ana#2", "bo"]), refused);
    assert_eq!(ask(bo, &["ana#1"]), refused);
    assert_eq!(ask(bo, &["nobody"]), refused, "nothing is told of who is not there");
    for conn in [beside, operator] {
        assert_eq!(ask(conn, &["ana#1", "bo", "nobody"]), Ok(vec![true, true, false]));
    }
}

#[test]
fn an_operator_takes_back_what_others_sent_and_they_are_told() {
    let (mut bench, [ana, _, bo, _, operator]) = town();
    [ana, bo, operator].into_iter().for_each(|conn| drop(bench.told(conn)));
    for (conn, id) in [(bo, "a1"), (operator, "a1"), (operator, "unknown")] {
        bench.handle(conn, Command::Cancel { to: "host".into(), correlation_id: id.into() });
    }
    bench.sync_all();
    let taken_back = Refusal::Cancelled { id: "a1".into(), mailbox: "host".into() };
    assert_eq!(bench.told(ana), [Told::Refused { refusal: taken_back, id: Some("a1".into()) }]);
    assert_eq!((bench.told(bo), bench.told(operator)), (vec![], vec![]));
    assert_eq!(ids(&inspect(&bench, operator, &rows_of("host")).rows), ["a2", "b"]);
}

#[test]
fn a_look_changes_nothing() {
    let (mut bench, [ana, ..]) = town();
    let before = format!("{:?}", bench.engine.status(bench.now).mailboxes);
    bench.told(ana);
    inspect(&bench, ana, &rows_of("host"));
    assert_eq!(bench.told(ana), Vec::<Told>::new());
    assert_eq!(format!("{:?}", bench.engine.status(bench.now).mailboxes), before);
    assert!(!bench.engine.anything_to_write());
}
