//! Follows: the state of peers and messages is reported at once and after every change.

use crate::support::{Harness, Received, delivery, refused};
use toolbus_engine::{Command, ConnId, Delivery, Follow, FollowView, Inspect, MessageAt, Refusal, Rights};

const WORKER: Rights = Rights { unrestricted: false, host: false, operator: false };
const HOST: Rights = Rights { host: true, ..WORKER };

fn follow(harness: &mut Harness, conn: ConnId, request_id: &str, peers: &[&str], messages: &[(&str, &str)]) {
    let peers = peers.iter().map(|peer| (*peer).into()).collect();
    let messages = messages.iter().map(|(to, id)| MessageAt { to: (*to).into(), id: (*id).into() }).collect();
    harness
        .handle(conn, Command::Follow { request_id: request_id.into(), follow: Box::new(Follow { peers, messages }) });
}

fn unfollow(harness: &mut Harness, conn: ConnId, request_id: &str) {
    harness.handle(conn, Command::Unfollow { request_id: request_id.into() });
}

fn followed(request_id: &str, peers: &[bool], uncollected: &[bool]) -> Received {
    let view = FollowView { peers: peers.to_vec(), uncollected: uncollected.to_vec() };
    Received::Followed { request_id: request_id.into(), view }
}

/// Connects as the shell does: followers are notified.
fn connect(harness: &mut Harness, name: &str) -> ConnId {
    let conn = harness.connect(name);
    harness.notify_followers();
    conn
}

#[test]
fn peers_are_reported_at_once_and_when_the_first_connects_or_the_last_disconnects() {
    let mut harness = Harness::new();
    let (host, _bob) = (harness.connect("host"), harness.connect("bob"));
    follow(&mut harness, host, "f", &["alice", "bob"], &[]);
    assert_eq!(harness.received(host), [followed("f", &[false, true], &[])]);
    let first = connect(&mut harness, "alice");
    assert_eq!(harness.received(host), [followed("f", &[true, true], &[])]);
    let second = connect(&mut harness, "alice");
    connect(&mut harness, "alice#other");
    harness.disconnect(first);
    assert_eq!(harness.received(host), [], "one connection is left");
    harness.disconnect(second);
    assert_eq!(harness.received(host), [followed("f", &[false, true], &[])]);
}

#[test]
fn a_message_is_uncollected_from_its_acceptance_until_it_is_settled() {
    type Settle = fn(&mut Harness, ConnId);
    let acknowledge: Settle = |harness, _| {
        let alice = harness.subscribe("alice");
        harness.ack(alice, "m");
    };
    let withdraw: Settle = |harness, host| {
        let (to, correlation_id) = ("alice".into(), "m".into());
        harness.handle(host, Command::Cancel { to, correlation_id, request_id: None });
    };
    let expire: Settle = |harness, _| {
        harness.now += 1000;
        harness.tick();
    };
    let make_unreadable: Settle = |harness, _| {
        let alice = harness.subscribe("alice");
        let message = harness.pushed("m");
        harness.handle(alice, Command::Unreadable { message });
    };
    let refuse: Settle = |harness, _| {
        let (batch, now) = (harness.take_all(), harness.now);
        harness.refuse(batch, now);
    };
    for (how, settle) in [
        ("acknowledged", acknowledge),
        ("withdrawn", withdraw),
        ("expired", expire),
        ("dead-lettered", make_unreadable),
        ("refused", refuse),
    ] {
        let mut harness = Harness::new();
        let host = harness.connect("host");
        follow(&mut harness, host, "f", &[], &[("alice", "m"), ("alice", "never")]);
        assert_eq!(harness.received(host), [followed("f", &[], &[false, false])]);
        harness.deliver(host, Delivery { deadline_ms: Some(1000), ..delivery("alice", "m") });
        assert_eq!(harness.received(host), [followed("f", &[], &[true, false])]);
        settle(&mut harness, host);
        let reported = harness.received(host);
        assert!(reported.contains(&followed("f", &[], &[false, false])), "{how}: {reported:?}");
    }
}

#[test]
fn a_message_whose_settlement_is_reverted_is_uncollected_again() {
    let mut harness = Harness::new();
    let (alice, bob) = (harness.subscribe("alice"), harness.subscribe("bob"));
    harness.send(alice, "bob", "a");
    harness.sync_all();
    harness.received(alice);
    follow(&mut harness, alice, "f", &[], &[("bob", "a")]);
    let ack = Some(harness.tag("a"));
    harness.deliver(bob, Delivery { ack, ..delivery("carol", "reply") });
    assert_eq!(harness.received(alice), [followed("f", &[], &[true]), followed("f", &[], &[false])]);
    let (batch, now) = (harness.take_all(), harness.now);
    harness.refuse(batch, now);
    assert_eq!(harness.received(alice), [followed("f", &[], &[true])]);
}

#[test]
fn a_message_of_a_mailbox_that_was_freed_in_between_is_still_followed() {
    let mut harness = Harness::new();
    let host = harness.connect("host");
    follow(&mut harness, host, "f", &[], &[("alice", "1"), ("alice", "2")]);
    for id in ["1", "2"] {
        harness.received(host);
        harness.send(host, "alice", id);
        let alice = harness.subscribe("alice");
        harness.ack(alice, id);
        harness.disconnect(alice);
        let reported = harness.received(host);
        let is_report = |frame: &&Received| matches!(frame, Received::Followed { .. });
        assert_eq!(reported.iter().filter(is_report).count(), 2, "{id}: {reported:?}");
    }
}

#[test]
fn a_step_with_many_changes_sends_one_report_per_follow() {
    let mut harness = Harness::new();
    let (host, alice) = (harness.connect("host"), harness.subscribe("alice"));
    let ids = ["1", "2", "3"];
    ids.iter().for_each(|id| harness.send(host, "alice", id));
    follow(&mut harness, host, "all", &[], &ids.map(|id| ("alice", id)));
    follow(&mut harness, host, "one", &["alice"], &[("alice", "2")]);
    harness.received(host);
    let tags = ids.map(|id| harness.tag(id)).to_vec();
    harness.handle(alice, Command::AckTags { tags });
    let mut reports = harness.received(host);
    reports.retain(|frame| matches!(frame, Received::Followed { .. }));
    assert_eq!(reports, [followed("all", &[], &[false; 3]), followed("one", &[true], &[false])]);
}

#[test]
fn a_follow_ends_with_unfollow_with_its_connection_and_when_it_is_replaced() {
    let mut harness = Harness::new();
    let (host, other, stays) = (harness.connect("host"), harness.connect("other"), harness.connect("stays"));
    for conn in [host, other, stays] {
        follow(&mut harness, conn, "f", &["alice"], &[("alice", "m")]);
        follow(&mut harness, conn, "g", &["alice"], &[]);
    }
    follow(&mut harness, host, "f", &["bob"], &[]);
    unfollow(&mut harness, host, "g");
    unfollow(&mut harness, host, "unknown");
    harness.received(host);
    harness.received(stays);
    harness.disconnect(other);
    let alice = connect(&mut harness, "alice");
    harness.send(alice, "alice", "m");
    assert_eq!(harness.received(host), []);
    assert_eq!(harness.received(stays), [followed("f", &[true], &[false]), followed("g", &[true], &[])]);
    connect(&mut harness, "bob");
    assert_eq!(harness.received(host), [followed("f", &[true], &[])]);
    assert_eq!(harness.received(other), [followed("f", &[false], &[false]), followed("g", &[false], &[]),]);
}

#[test]
fn a_message_stays_followed_when_another_follow_of_its_mailbox_ends() {
    let mut harness = Harness::new();
    let host = harness.connect("host");
    follow(&mut harness, host, "f", &[], &[("alice", "1")]);
    follow(&mut harness, host, "g", &[], &[("alice", "2")]);
    unfollow(&mut harness, host, "g");
    harness.received(host);
    harness.send(host, "alice", "1");
    assert_eq!(harness.received(host), [followed("f", &[], &[true])]);
}

#[test]
fn the_items_of_all_follows_of_a_connection_are_limited() {
    let mut harness = Harness::with(|options| options.followed_items = 4);
    let (host, other) = (harness.connect("host"), harness.connect("other"));
    let too_many = |id: &str| refused(Refusal::TooManyFollows { limit: 4 }, id);
    follow(&mut harness, host, "two", &["a"], &[("b", "m")]);
    follow(&mut harness, host, "none", &[], &[]);
    follow(&mut harness, host, "more", &["a", "b"], &[]);
    let first = [followed("two", &[false], &[false]), followed("none", &[], &[]), too_many("more")];
    assert_eq!(harness.received(host), first);
    follow(&mut harness, host, "one", &["a"], &[]);
    follow(&mut harness, host, "empty", &[], &[]);
    assert_eq!(harness.received(host), [followed("one", &[false], &[]), too_many("empty")]);
    follow(&mut harness, host, "two", &["b"], &[("b", "m")]);
    assert_eq!(harness.received(host), [followed("two", &[false], &[false])], "a replaced follow does not count");
    unfollow(&mut harness, host, "none");
    follow(&mut harness, host, "empty", &[], &[]);
    assert_eq!(harness.received(host), [followed("empty", &[], &[])]);
    follow(&mut harness, other, "four", &["a", "b", "c", "d"], &[]);
    assert_eq!(harness.received(other), [followed("four", &[false; 4], &[])], "the limit is per connection");
}

#[test]
fn a_follow_of_peers_needs_the_right_to_inspect_them() {
    let mut harness = Harness::new();
    let mut join = |name, rights| harness.connect_with(name, None, false, rights);
    let (worker, host) = (join("worker", WORKER), join("host", HOST));
    follow(&mut harness, worker, "f", &["worker#2", "host"], &[]);
    assert_eq!(harness.received(worker), [refused(Refusal::OperatorOnly, "f")]);
    follow(&mut harness, worker, "f", &["worker#2"], &[]);
    follow(&mut harness, host, "f", &["worker#2"], &[]);
    connect(&mut harness, "worker#2");
    for conn in [worker, host] {
        assert_eq!(harness.received(conn), [followed("f", &[false], &[]), followed("f", &[true], &[])]);
    }
}

#[test]
fn messages_of_other_agents_are_never_reported_as_uncollected() {
    let mut harness = Harness::new();
    let (sender, alice) = (harness.connect("sender"), harness.subscribe("alice"));
    let spy = harness.connect_with("spy", None, false, HOST);
    follow(&mut harness, spy, "f", &[], &[("alice", "before"), ("alice", "after")]);
    harness.send(sender, "alice", "before");
    follow(&mut harness, spy, "f", &[], &[("alice", "before"), ("alice", "after")]);
    harness.send(sender, "alice", "after");
    harness.ack(alice, "before");
    let nothing = followed("f", &[], &[false, false]);
    assert_eq!(harness.received(spy), [nothing.clone(), nothing]);
}

/// After every step, the last report equals an inspection.
#[test]
fn reports_agree_with_inspections_after_any_steps() {
    for seed in 1..=200_u64 {
        check_random_steps(seed);
    }
}

fn check_random_steps(seed: u64) {
    let mut harness = Harness::with(|options| options.max_attempts = 2);
    let host = harness.connect("host");
    let messages: Vec<(&str, String)> =
        (0..12).map(|n| (if n % 2 == 0 { "alice" } else { "bob" }, n.to_string())).collect();
    let named: Vec<(&str, &str)> = messages.iter().map(|(to, id)| (*to, id.as_str())).collect();
    let (mut state, mut conns, mut reported) = (seed, Vec::new(), FollowView::default());
    follow(&mut harness, host, "f", &["alice", "bob"], &named);
    let inspect = Inspect {
        peers: vec!["alice".into(), "bob".into()],
        messages: named.iter().map(|(to, id)| MessageAt { to: (*to).into(), id: (*id).into() }).collect(),
        rows_of: None,
    };
    for step in 0..120 {
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let (to, id) = named[draw(named.len())];
        match draw(9) {
            0..=2 => harness.deliver(host, Delivery { deadline_ms: Some(50), ..delivery(to, id) }),
            3 => {
                conns.push(harness.subscribe(to));
                harness.notify_followers();
            }
            4 if !conns.is_empty() => harness.disconnect(conns.swap_remove(draw(conns.len()))),
            5 if !conns.is_empty() => harness.ack(conns[draw(conns.len())], id),
            6 => {
                harness.now += draw(30) as u64;
                harness.tick();
            }
            7 if harness.engine.anything_to_write() => {
                let (batch, now) = (harness.take_all(), harness.now);
                match draw(3) {
                    0 => harness.refuse(batch, now),
                    _ => harness.synced(batch),
                }
                harness.engine.set_disk_low(false);
            }
            8 => harness.serve_fetches(),
            _ => {}
        }
        for frame in harness.received(host) {
            if let Received::Followed { view, .. } = frame {
                reported = view;
            }
        }
        let view = harness.engine.inspect(harness.now, host, &inspect);
        let uncollected: Vec<bool> = view.messages.iter().map(Option::is_some).collect();
        assert_eq!(reported, FollowView { peers: view.peers, uncollected }, "seed {seed}, step {step}");
    }
}
