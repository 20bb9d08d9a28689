//! Queue inspection: presence of peers, positions of messages, rows of a mailbox, and who may see them.

use crate::support::{Harness, Received, delivery};
use std::sync::Arc;
use toolbus_engine::{
    Command, ConnId, Delivery, Inspect, InspectView, MessageAt, MessageView, Names, Refusal, Rights, Sender, Settled,
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

fn with_deadline(to: &str, id: &str) -> Delivery {
    Delivery { deadline_ms: Some(60_000), ..delivery(to, id) }
}

fn at(to: &str, ids: &[&str]) -> Inspect {
    let messages = ids.iter().map(|id| MessageAt { to: to.into(), id: (*id).into() }).collect();
    Inspect { messages, ..Inspect::default() }
}

fn rows_of(mailbox: &str) -> Inspect {
    Inspect { rows_of: Some(mailbox.into()), ..Inspect::default() }
}

fn inspect(harness: &Harness, conn: ConnId, inspect: &Inspect) -> InspectView {
    harness.engine.inspect(harness.now, conn, inspect)
}

fn ids(rows: &[MessageView]) -> Vec<&str> {
    rows.iter().map(|row| &*row.id).collect()
}

#[test]
fn a_peer_is_present_while_it_has_a_connection() {
    let mut harness = Harness::new();
    let requester = harness.connect("requester");
    let first = harness.connect("bob#1");
    let second = harness.subscribe("bob#1");
    let peers = Inspect { peers: vec!["bob#1".into(), "bob".into(), "requester".into()], ..Inspect::default() };
    assert_eq!(inspect(&harness, requester, &peers).peers, [true, false, true]);
    harness.disconnect(second);
    assert_eq!(inspect(&harness, requester, &peers).peers, [true, false, true], "one connection is left");
    harness.disconnect(first);
    assert_eq!(inspect(&harness, requester, &peers).peers, [false, false, true]);
}

#[test]
fn a_position_counts_leased_stored_and_waiting_messages() {
    let mut harness = Harness::with(|options| options.window_messages = 1);
    let (alice, other) = (harness.subscribe("alice"), harness.subscribe("other"));
    let all = at("host", &["a", "b", "c", "d"]);
    harness.deliver(alice, with_deadline("host", "a"));
    harness.deliver(other, with_deadline("host", "between"));
    harness.sync_all();
    for id in ["b", "c"] {
        harness.deliver(alice, with_deadline("host", id));
    }
    // Two messages are stored, two are in memory, and one is in another mailbox.
    harness.deliver(alice, with_deadline("elsewhere", "d"));
    assert_eq!(inspect(&harness, alice, &all).messages, [Some(0), Some(2), Some(3), None]);
    let host = harness.subscribe("host");
    harness.serve_fetches();
    assert_eq!(inspect(&harness, alice, &all).messages, [Some(0), Some(2), Some(3), None], "one is in flight");
    harness.ack(host, "a");
    harness.serve_fetches();
    assert_eq!(inspect(&harness, alice, &all).messages, [None, Some(1), Some(2), None]);
    harness.disconnect(host);
    harness.sync_all();
    assert_eq!(inspect(&harness, alice, &all).messages, [None, Some(1), Some(2), None], "stored again");
    harness.handle(alice, Command::Cancel { to: "host".into(), correlation_id: "b".into(), request_id: None });
    assert_eq!(inspect(&harness, alice, &all).messages, [None, None, Some(1), None], "withdrawn");
    harness.now += 60_001;
    harness.tick();
    assert_eq!(inspect(&harness, alice, &all).messages, [None; 4], "expired");
}

#[test]
fn messages_of_other_senders_are_hidden() {
    let mut harness = Harness::new();
    let (alice, other) = (harness.subscribe("alice"), harness.subscribe("other"));
    harness.deliver(alice, with_deadline("host", "a"));
    assert_eq!(inspect(&harness, other, &at("host", &["a"])).messages, [None]);
    assert_eq!(inspect(&harness, alice, &at("host", &["a"])).messages, [Some(0)]);
}

#[test]
fn settled_messages_differ_from_pending_ones_and_from_those_never_accepted() {
    let mut harness = Harness::new();
    let (host, other, worker) = (harness.subscribe("host"), harness.subscribe("other"), harness.subscribe("worker"));
    ["acked", "pending"].into_iter().for_each(|id| harness.send(host, "worker", id));
    harness.send(other, "worker", "other's");
    ["acked", "other's"].into_iter().for_each(|id| harness.ack(worker, id));
    let all = at("worker", &["acked", "pending", "unknown", "other's"]);
    let view = inspect(&harness, host, &all);
    assert_eq!((view.messages, view.settled), (vec![None, Some(0), None, None], vec![true, false, false, false]));
    assert_eq!(view.remembered_ms, harness.now, "nothing was forgotten");
    assert_eq!(inspect(&harness, worker, &all).settled, [false; 4], "the recipient is not the sender");
}

/// The sender of a message that was settled before the restart is not known any more.
#[test]
fn after_a_restart_settled_messages_are_reported_to_hosts_only() {
    let mut harness = Harness::new();
    let (host, worker) = (harness.subscribe("host"), harness.subscribe("worker"));
    harness.send(host, "worker", "acked");
    harness.ack(worker, "acked");
    harness.sync_all();
    harness.send(host, "worker", "lost");
    let mut harness = harness.restart();
    let (host, agent) =
        (harness.connect_with("host", None, false, HOST), harness.connect_with("worker", None, false, WORKER));
    let all = at("worker", &["acked", "lost"]);
    let view = inspect(&harness, host, &all);
    assert_eq!((view.messages, view.settled), (vec![None, None], vec![true, false]));
    assert_eq!(inspect(&harness, agent, &all).settled, [false, false]);
}

/// Sends and acknowledges one message at each of these times.
fn settle_at(harness: &mut Harness, times: std::ops::Range<u64>) {
    let (host, worker) = (harness.subscribe("host"), harness.subscribe("worker"));
    for time in times {
        harness.now = time;
        harness.send(host, "worker", &format!("at {time}"));
        harness.ack(worker, &format!("at {time}"));
    }
    harness.sync_all();
}

/// The messages that were settled within the reported time, and that are therefore reported as settled.
fn check_remembered(harness: &mut Harness, last: u64, at_least: u64) {
    let host = harness.connect_with("host", None, false, HOST);
    let remembered = inspect(harness, host, &Inspect::default()).remembered_ms;
    assert!(remembered > at_least, "{remembered}");
    let forgotten = harness.now - remembered;
    let ids: Vec<String> = (forgotten + 1..=last).map(|time| format!("at {time}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    assert_eq!(inspect(harness, host, &at("worker", &ids)).settled, vec![true; ids.len()], "after {forgotten}");
    let evicted = format!("at {forgotten}");
    assert_eq!(inspect(harness, host, &at("worker", &[&evicted])).settled, [false], "as early as possible");
}

#[test]
fn the_time_within_which_settled_messages_are_remembered_is_reported() {
    let mut harness = Harness::with(|options| options.history_ids = 10);
    settle_at(&mut harness, 1_000..1_035);
    check_remembered(&mut harness, 1_034, 10);

    let mut harness = Harness::with(|options| options.history_age = 10);
    settle_at(&mut harness, 1_000..1_035);
    check_remembered(&mut harness, 1_034, 10);
}

/// The store forgets ids by the same limits, and restores them in another order.
#[test]
fn after_a_restart_only_ids_that_the_store_must_have_kept_count_as_remembered() {
    let (few, short) = ((3, u64::MAX), (100, 100));
    let remembered = |limits: (usize, u64), restored: &[u64]| {
        let mut harness = Harness::with(|options| (options.history_ids, options.history_age) = limits);
        for &at in restored {
            let fingerprint = toolbus_engine::fingerprint(0, "worker", &format!("at {at}"));
            harness.engine.restore_settled(&Settled { fingerprint, content: 1, size: 0, at, stored: None });
        }
        harness.engine.finish_restore(1, 1, 0);
        harness.now = 2_000;
        let host = harness.connect("host");
        2_000 - inspect(&harness, host, &Inspect::default()).remembered_ms
    };
    assert_eq!(remembered(few, &[]), 0);
    assert_eq!(remembered(few, &[1_000, 1_001]), 0, "the store has forgotten nothing");
    assert_eq!(remembered(few, &[1_000, 1_001, 1_002]), 1_000, "the store may have forgotten one at 1000");
    assert_eq!(remembered(few, &[1_003, 1_001, 1_002, 1_004]), 1_002);
    assert_eq!(remembered(few, &[1_000, 1_001, 1_002, 1_003, 1_004, 1_005, 1_006]), 1_004);
    assert_eq!(remembered(short, &[1_050, 1_000, 1_120]), 1_020);
}

#[test]
fn positions_are_counted_up_to_a_thousand() {
    let mut harness = Harness::new();
    let alice = harness.subscribe("alice");
    for number in 0..1_500 {
        harness.deliver(alice, with_deadline("host", &format!("m{number}")));
        if number == 700 {
            harness.sync_all();
        }
    }
    let view = inspect(&harness, alice, &at("host", &["m0", "m999", "m1000", "m1001", "m1499"]));
    assert_eq!(view.messages, [Some(0), Some(999), Some(1000), Some(1000), Some(1000)]);
}

#[test]
fn rows_list_pending_messages_with_age_attempts_and_time_to_live() {
    let mut harness = Harness::with(|options| options.window_messages = 1);
    let alice = harness.subscribe("alice");
    harness.deliver(alice, with_deadline("host", "a"));
    harness.sync_all();
    let gone = harness.subscribe("host");
    harness.serve_fetches();
    harness.disconnect(gone);
    harness.now += 5_000;
    harness.deliver(alice, with_deadline("host", "b"));
    let _host = harness.subscribe("host");
    harness.serve_fetches();
    harness.now += 1_000;
    let view = inspect(&harness, alice, &rows_of("host"));
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
    harness.sync_all();
    assert_eq!(inspect(&harness, alice, &rows_of("host")), view, "the same once stored");
    assert_eq!(inspect(&harness, alice, &rows_of("absent")).rows, []);
}

#[test]
fn rows_are_the_same_after_a_restart() {
    let mut harness = Harness::new();
    let alice = harness.subscribe("alice");
    ["a", "b", "c"].into_iter().for_each(|id| harness.deliver(alice, with_deadline("host", id)));
    harness.send(alice, "host", "without a deadline");
    harness.sync_all();
    let mut harness = harness.restart();
    let alice = harness.subscribe("alice");
    let view = inspect(&harness, alice, &rows_of("host"));
    assert_eq!(ids(&view.rows), ["a", "b", "c"]);
    assert!(view.more, "a stored message without a deadline is not shown");
    assert_eq!(inspect(&harness, alice, &at("host", &["without a deadline", "a"])).messages, [Some(3), Some(0)]);
}

#[test]
fn rows_are_limited_to_a_thousand() {
    let mut harness = Harness::new();
    let alice = harness.subscribe("alice");
    (0..1_001).for_each(|number| harness.deliver(alice, with_deadline("host", &format!("m{number}"))));
    let view = inspect(&harness, alice, &rows_of("host"));
    assert_eq!((view.rows.len(), view.more), (1_000, true));
    assert_eq!(view.rows[999].id, "m999");
}

/// A host's mailbox with one message from each of three mailboxes of two agents, and their connections.
fn fixture() -> (Harness, [ConnId; 5]) {
    let mut harness = Harness::new();
    harness.engine.set_names(Arc::new(Rules));
    let mut subscribe = |name: &str, rights| {
        let conn = harness.connect_with(name, None, false, rights);
        harness.handle(conn, Command::Subscribe);
        conn
    };
    let (ana, ana2, bo) = (subscribe("ana#1", WORKER), subscribe("ana#2", WORKER), subscribe("bo", WORKER));
    let (beside, operator) = (subscribe("host#beside", HOST), subscribe("op", OPERATOR));
    for (conn, id) in [(ana, "a1"), (ana2, "a2"), (bo, "b")] {
        harness.deliver(conn, with_deadline("host", id));
    }
    harness.sync_all();
    (harness, [ana, ana2, bo, beside, operator])
}

#[test]
fn owners_and_operators_see_all_rows_and_others_those_of_their_agent() {
    let (harness, [ana, ana2, bo, beside, operator]) = fixture();
    for (conn, expected) in [
        (ana, &["a1", "a2"][..]),
        (ana2, &["a1", "a2"]),
        (bo, &["b"]),
        (beside, &["a1", "a2", "b"]),
        (operator, &["a1", "a2", "b"]),
    ] {
        let view = inspect(&harness, conn, &rows_of("host"));
        assert_eq!((ids(&view.rows), view.more), (expected.to_vec(), false));
    }
}

#[test]
fn only_hosts_and_operators_may_inspect_peers_of_other_agents() {
    let (mut harness, [ana, _, bo, beside, operator]) = fixture();
    let mut ask = |conn, peers: &[&str]| {
        let inspect = Inspect { peers: peers.iter().map(|peer| (*peer).into()).collect(), ..Inspect::default() };
        harness.outgoing(conn);
        harness.handle(conn, Command::Inspect { request_id: "l".into(), inspect: Box::new(inspect) });
        match harness.outgoing(conn).pop() {
            Some(toolbus_engine::Outgoing::Inspected { view, .. }) => Ok(view.peers),
            Some(toolbus_engine::Outgoing::Refused { refusal, id }) => Err((refusal, id.map(|id| id.to_string()))),
            other => panic!("{other:?}"),
        }
    };
    let refused = Err((Refusal::OperatorOnly, Some("l".to_owned())));
    assert_eq!(ask(ana, &["ana#2", "ana#9", "host", "host#beside"]), Ok(vec![true, false, false, true]));
    assert_eq!(ask(ana, &["ana#2", "bo"]), refused);
    assert_eq!(ask(bo, &["ana#1"]), refused);
    assert_eq!(ask(bo, &["absent"]), refused, "a refusal does not reveal who is absent");
    for conn in [beside, operator] {
        assert_eq!(ask(conn, &["ana#1", "bo", "absent"]), Ok(vec![true, true, false]));
    }
}

/// Agents whose names are prefixes of each other are different agents.
#[test]
fn a_name_that_begins_with_anothers_gives_no_access_to_it() {
    let mut harness = Harness::new();
    harness.engine.set_names(Arc::new(Rules));
    let mut subscribe = |name: &str| {
        let conn = harness.connect_with(name, None, false, WORKER);
        harness.handle(conn, Command::Subscribe);
        conn
    };
    let (w, wx, sub) = (subscribe("w"), subscribe("wx"), subscribe("w#x"));
    for (conn, id) in [(w, "of w"), (wx, "of wx"), (sub, "of w#x")] {
        harness.deliver(conn, with_deadline("host", id));
        harness.deliver(conn, with_deadline("wx", &format!("to wx {id}")));
    }
    let seen = |harness: &Harness, conn, mailbox| {
        let view = inspect(harness, conn, &rows_of(mailbox));
        view.rows.iter().map(|row| row.id.to_string()).collect::<Vec<_>>()
    };
    for own in [w, sub] {
        assert_eq!(seen(&harness, own, "host"), ["of w", "of w#x"]);
        assert_eq!(seen(&harness, own, "wx"), ["to wx of w", "to wx of w#x"]);
    }
    assert_eq!(seen(&harness, wx, "host"), ["of wx"]);
    let positions = |conn| inspect(&harness, conn, &at("host", &["of w", "of wx", "of w#x"])).messages;
    assert_eq!(positions(w), [Some(0), None, Some(2)]);
    assert_eq!(positions(wx), [None, Some(1), None]);
    for (conn, peer) in [(w, "wx"), (wx, "w"), (wx, "w#x"), (sub, "wx"), (w, "hos"), (w, "hostx")] {
        harness.outgoing(conn);
        let inspect = Box::new(Inspect { peers: vec![peer.into()], ..Inspect::default() });
        harness.handle(conn, Command::Inspect { request_id: "l".into(), inspect });
        let refused = Received::Refused { refusal: Refusal::OperatorOnly, id: Some("l".into()) };
        assert_eq!(harness.received(conn), [refused], "{peer}");
    }
    for (conn, id) in [(wx, "of w"), (w, "of wx"), (wx, "of w#x")] {
        harness.handle(conn, Command::Cancel { to: "host".into(), correlation_id: id.into(), request_id: None });
    }
    assert_eq!((seen(&harness, w, "host").len(), seen(&harness, wx, "host").len()), (2, 1), "no message was withdrawn");
}

#[test]
fn an_operator_withdraws_messages_of_others_and_their_senders_are_notified() {
    let (mut harness, [ana, _, bo, _, operator]) = fixture();
    [ana, bo, operator].into_iter().for_each(|conn| drop(harness.received(conn)));
    for (conn, id) in [(bo, "a1"), (operator, "a1"), (operator, "unknown")] {
        harness.handle(conn, Command::Cancel { to: "host".into(), correlation_id: id.into(), request_id: None });
    }
    harness.sync_all();
    let withdrawn = Refusal::Cancelled { id: "a1".into(), mailbox: "host".into() };
    assert_eq!(harness.received(ana), [Received::Refused { refusal: withdrawn, id: Some("a1".into()) }]);
    assert_eq!((harness.received(bo), harness.received(operator)), (vec![], vec![]));
    assert_eq!(ids(&inspect(&harness, operator, &rows_of("host")).rows), ["a2", "b"]);
}

#[test]
fn inspection_has_no_side_effects() {
    let (mut harness, [ana, ..]) = fixture();
    let before = format!("{:?}", harness.engine.status(harness.now).mailboxes);
    harness.received(ana);
    inspect(&harness, ana, &rows_of("host"));
    assert_eq!(harness.received(ana), Vec::<Received>::new());
    assert_eq!(format!("{:?}", harness.engine.status(harness.now).mailboxes), before);
    assert!(!harness.engine.anything_to_write());
}
