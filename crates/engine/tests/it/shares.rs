//! Shares: what one agent has stored does not keep others from storing, and hosts and operators have a reserve.

use crate::support::{Harness, Received, delivery, refused};
use std::sync::Arc;
use toolbus_engine::{Command, ConnId, Delivery, Names, Purpose, Refusal, Rights, Sender, Share};

const WORKER: Rights = Rights { unrestricted: false, host: false, operator: false };
const HOST: Rights = Rights { host: true, ..WORKER };
const OPERATOR: Rights = Rights { operator: true, ..WORKER };

struct AnyMessage;

impl Names for AnyMessage {
    fn is_host(&self, mailbox: &str) -> bool {
        mailbox == "host"
    }

    fn may_message(&self, _from: &Sender, _to: &str) -> bool {
        true
    }
}

/// A broker of 21 messages, of which one agent may store 5 and only hosts and operators the last one.
fn harness() -> Harness {
    let mut harness = Harness::with(|options| options.total_messages = 21);
    harness.engine.set_names(Arc::new(AnyMessage));
    harness
}

fn connect(harness: &mut Harness, name: &str, rights: Rights) -> ConnId {
    harness.connect_with(name, None, true, rights)
}

fn send(harness: &mut Harness, conn: ConnId, prefix: &str, count: usize) -> Vec<Received> {
    (0..count).for_each(|number| harness.deliver(conn, delivery("sink", &format!("{prefix}{number}"))));
    harness.received(conn)
}

fn share_full(id: &str) -> Received {
    refused(Refusal::ShareFull { messages: 5, bytes: 500 }, id)
}

#[test]
fn an_agent_that_used_up_its_share_is_refused_and_others_are_not() {
    let mut harness = harness();
    let hostile = connect(&mut harness, "hostile#1", WORKER);
    let other_mailbox = connect(&mut harness, "hostile#2", WORKER);
    let honest = connect(&mut harness, "honest", WORKER);
    assert_eq!(send(&mut harness, hostile, "a", 6), [share_full("a5")]);
    assert_eq!(send(&mut harness, other_mailbox, "b", 1), [share_full("b0")], "the share is that of the agent");
    assert_eq!(send(&mut harness, honest, "c", 4), []);
}

#[test]
fn a_share_is_free_again_when_messages_are_taken() {
    let mut harness = harness();
    let worker = connect(&mut harness, "worker", WORKER);
    assert_eq!(send(&mut harness, worker, "a", 6), [share_full("a5")]);
    let sink = harness.subscribe("sink");
    harness.ack(sink, "a0");
    harness.received(worker);
    assert_eq!(send(&mut harness, worker, "b", 2), [share_full("b1")]);
}

#[test]
fn restored_messages_count_against_the_share_of_their_sender() {
    let mut harness = harness();
    let worker = connect(&mut harness, "worker#1", WORKER);
    assert_eq!(send(&mut harness, worker, "a", 5), []);
    harness.sync_all();
    let mut harness = harness.restart();
    harness.engine.set_names(Arc::new(AnyMessage));
    let worker = connect(&mut harness, "worker#2", WORKER);
    assert_eq!(send(&mut harness, worker, "b", 1), [share_full("b0")]);
}

#[test]
fn the_more_agents_use_the_less_each_may_add_and_something_is_left() {
    let mut harness = harness();
    let workers = ["one", "two", "three", "four", "five"].map(|name| connect(&mut harness, name, WORKER));
    let mut stored = [0; 5];
    for round in 0..6 {
        for (number, worker) in workers.into_iter().enumerate() {
            stored[number] += usize::from(send(&mut harness, worker, &format!("{number}-{round}-"), 1).is_empty());
        }
    }
    assert_eq!(stored, [3, 3, 3, 3, 2]);
    let newcomer = connect(&mut harness, "newcomer", WORKER);
    assert_eq!(send(&mut harness, newcomer, "a", 1), []);
}

struct Roles;

impl Names for Roles {
    fn is_host(&self, _mailbox: &str) -> bool {
        false
    }

    fn may_message(&self, _from: &Sender, _to: &str) -> bool {
        true
    }

    fn share(&self, role: Option<&str>) -> Share {
        if role == Some("big") { Share::percent(100).expect("a percentage") } else { Share::LEAST }
    }
}

#[test]
fn the_reserve_is_for_hosts_and_operators() {
    let mut harness = harness();
    harness.engine.set_names(Arc::new(Roles));
    let big = harness.connect_with("big", Some("big"), true, WORKER);
    let full = |messages: u64| Refusal::BrokerFull { messages, bytes: messages * 100 };
    assert_eq!(send(&mut harness, big, "a", 21), [refused(full(20), "a20")]);
    let operator = connect(&mut harness, "operator", OPERATOR);
    assert_eq!(send(&mut harness, operator, "b", 2), [refused(full(21), "b1")]);
    let sink = harness.subscribe("sink");
    harness.ack(sink, "a0");
    let host = connect(&mut harness, "host", HOST);
    assert_eq!(send(&mut harness, host, "c", 1), []);
}

#[test]
fn the_share_depends_on_the_role() {
    let mut harness = harness();
    harness.engine.set_names(Arc::new(Roles));
    let small = harness.connect_with("small", Some("other"), true, WORKER);
    let one = refused(Refusal::ShareFull { messages: 1, bytes: 100 }, "a1");
    assert_eq!(send(&mut harness, small, "a", 2), [one]);
}

#[test]
fn on_a_tight_disk_only_hosts_and_operators_may_send() {
    let mut harness = harness();
    let (worker, host) = (connect(&mut harness, "worker", WORKER), connect(&mut harness, "host", HOST));
    harness.engine.set_disk_tight(true);
    assert_eq!(send(&mut harness, worker, "a", 1), [refused(Refusal::DiskFull, "a0")]);
    assert_eq!(send(&mut harness, host, "b", 1), []);
    harness.engine.set_disk_tight(false);
    assert_eq!(send(&mut harness, worker, "a", 1), []);
}

#[test]
fn shares_are_a_fraction_of_what_the_disk_holds() {
    let mut harness = Harness::new();
    harness.engine.set_names(Arc::new(AnyMessage));
    harness.engine.set_capacity(2_100);
    let worker = connect(&mut harness, "worker", WORKER);
    assert_eq!(send(&mut harness, worker, "a", 6), [share_full("a5")]);
}

#[test]
fn a_refused_request_is_reported_once_and_only_by_its_recipient() {
    let mut harness = harness();
    let worker = connect(&mut harness, "worker#1", WORKER);
    send(&mut harness, worker, "a", 2);
    let sink = harness.subscribe("sink");
    harness.subscribe("other");
    let tags: Vec<_> = (0..10).collect();
    assert_eq!(harness.engine.refused("other", &tags), Vec::<Arc<str>>::new());
    let refused = harness.engine.refused("sink", &tags);
    assert_eq!(refused.iter().map(|name| &**name).collect::<Vec<_>>(), ["worker#1"; 2]);
    assert_eq!(harness.engine.refused("sink", &tags), Vec::<Arc<str>>::new(), "once");
    harness.ack(sink, "a0");
    assert_eq!(harness.engine.refused("nowhere", &tags), Vec::<Arc<str>>::new());
}

fn subscribed_host(harness: &mut Harness) -> ConnId {
    let host = connect(harness, "host", HOST);
    harness.handle(host, Command::Subscribe);
    host
}

/// A reply that settles the request.
fn reply(harness: &Harness, request: &str, to: &str) -> Delivery {
    Delivery {
        correlation_id: Some(request.into()),
        purpose: Purpose::HostReply,
        ack: Some(harness.tag(request)),
        ..delivery(to, &format!("reply-{request}"))
    }
}

#[test]
fn replies_that_an_agent_does_not_read_use_its_share() {
    let mut harness = harness();
    let (worker, host) = (connect(&mut harness, "worker#1", WORKER), subscribed_host(&mut harness));
    for number in 0..5 {
        let request = format!("a{number}");
        harness.deliver(worker, delivery("host", &request));
        let reply = reply(&harness, &request, "worker#1");
        harness.deliver(host, reply);
    }
    harness.received(worker);
    assert_eq!(send(&mut harness, worker, "b", 1), [share_full("b0")]);
    let same = connect(&mut harness, "worker#2", WORKER);
    assert_eq!(send(&mut harness, same, "c", 1), [share_full("c0")], "in whichever of its mailboxes");
    let other = connect(&mut harness, "other", WORKER);
    assert_eq!(send(&mut harness, other, "d", 1), []);
    let subscriber = harness.subscribe("worker#1");
    (0..5).for_each(|number| harness.ack(subscriber, &format!("reply-a{number}")));
    harness.received(worker);
    assert_eq!(send(&mut harness, worker, "b", 1), []);
}

#[test]
fn no_agent_can_use_up_the_share_of_another_one() {
    let mut harness = harness();
    let victim = connect(&mut harness, "victim", WORKER);
    let hostile = connect(&mut harness, "hostile", WORKER);
    let host = connect(&mut harness, "host", HOST);
    for (sender, name) in [(hostile, "a"), (host, "b")] {
        (0..6).for_each(|number| harness.deliver(sender, delivery("victim#never", &format!("{name}{number}"))));
        assert!(!harness.received(sender).is_empty(), "its own share is used up, also that of a host");
    }
    assert_eq!(send(&mut harness, victim, "c", 2), []);
}

#[test]
fn a_reply_that_settles_nothing_uses_the_share_of_its_sender() {
    let mut harness = harness();
    let (victim, host) = (connect(&mut harness, "victim", WORKER), subscribed_host(&mut harness));
    harness.deliver(victim, delivery("host", "request"));
    for number in 0..6 {
        let reply = Delivery { ack: None, ..reply(&harness, "request", "victim") };
        harness.deliver(host, Delivery { id: format!("reply{number}").into(), ..reply });
    }
    assert_eq!(send(&mut harness, victim, "a", 3), []);
}

/// A broker of 21 mailboxes, of which one agent may have 5 and only hosts and operators the last one.
fn few_mailboxes() -> Harness {
    let mut harness = Harness::with(|options| options.mailboxes = 21);
    harness.engine.set_names(Arc::new(AnyMessage));
    harness
}

fn send_to(harness: &mut Harness, conn: ConnId, to: &str) -> Vec<Received> {
    harness.deliver(conn, delivery(to, to));
    harness.received(conn)
}

fn mailboxes_full(id: &str) -> Received {
    refused(Refusal::MailboxShareFull { mailboxes: 5 }, id)
}

#[test]
fn an_agent_can_create_only_its_share_of_the_mailboxes() {
    let mut harness = few_mailboxes();
    let hostile = connect(&mut harness, "hostile", WORKER);
    let honest = connect(&mut harness, "honest", WORKER);
    (0..5).for_each(|number| assert_eq!(send_to(&mut harness, hostile, &format!("honest#{number}")), []));
    assert_eq!(send_to(&mut harness, hostile, "honest#5"), [mailboxes_full("honest#5")]);
    harness.deliver(hostile, delivery("honest#4", "another"));
    assert_eq!(harness.received(hostile), [], "an existing one");
    assert_eq!(send_to(&mut harness, honest, "sink"), []);
}

#[test]
fn the_mailboxes_of_unread_replies_use_the_share_of_their_owner() {
    let mut harness = few_mailboxes();
    let host = subscribed_host(&mut harness);
    for number in 0..5 {
        let name = format!("hostile#{number}");
        let conn = connect(&mut harness, &name, WORKER);
        let request = format!("a{number}");
        harness.deliver(conn, Delivery { purpose: Purpose::Request, ..delivery("host", &request) });
        harness.disconnect(conn);
        let reply = reply(&harness, &request, &name);
        harness.deliver(host, reply);
    }
    let again = connect(&mut harness, "hostile#5", WORKER);
    harness.deliver(again, Delivery { purpose: Purpose::Request, ..delivery("host", "a5") });
    assert_eq!(harness.received(again), [mailboxes_full("a5")]);
    let honest = connect(&mut harness, "honest", WORKER);
    harness.deliver(honest, Delivery { purpose: Purpose::Request, ..delivery("host", "b") });
    assert_eq!(harness.received(honest), []);
}

#[test]
fn a_mailbox_that_is_gone_uses_no_share() {
    let mut harness = few_mailboxes();
    let worker = connect(&mut harness, "worker", WORKER);
    for number in 0..12 {
        let name = format!("sink#{number}");
        assert_eq!(send_to(&mut harness, worker, &name), []);
        let sink = harness.subscribe(&name);
        harness.ack(sink, &name);
        harness.disconnect(sink);
        harness.received(worker);
    }
}
