//! Authorisation: two hosts, two workers and an operator with credentials, and rules that let `ana` send to `bo`.

use crate::support::{Harness, Received, delivery, message, receipt, refused};
use std::sync::Arc;
use toolbus_engine::{Command, ConnId, Delivery, Inspect, MessageAt, Names, Purpose, Refusal, Rights, Sender};

const WORKER: Rights = Rights { unrestricted: false, host: false, operator: false };
const HOST: Rights = Rights { host: true, ..WORKER };
const OPERATOR: Rights = Rights { operator: true, ..WORKER };

struct Rules;

impl Names for Rules {
    fn is_host(&self, mailbox: &str) -> bool {
        matches!(mailbox, "host" | "host#dead" | "other")
    }

    fn may_message(&self, from: &Sender, to: &str) -> bool {
        &*from.name == "ana" && (to == "bo" || to == "bo#dead")
    }
}

struct Fixture {
    harness: Harness,
    ana: ConnId,
    bo: ConnId,
    host: ConnId,
    other: ConnId,
    operator: ConnId,
}

fn fixture() -> Fixture {
    let mut harness = Harness::new();
    let mut peer = |name, rights| subscribe(&mut harness, name, rights);
    let (ana, bo) = (peer("ana", WORKER), peer("bo", WORKER));
    let (host, other, operator) = (peer("host", HOST), peer("other", HOST), peer("operator", OPERATOR));
    harness.engine.set_names(Arc::new(Rules));
    Fixture { harness, ana, bo, host, other, operator }
}

#[test]
fn without_rules_there_are_no_hosts_and_no_unsolicited_messages() {
    let mut harness = Harness::new();
    let ana = harness.connect_with("ana", None, false, WORKER);
    for purpose in [Purpose::Request, Purpose::Event, Purpose::Other] {
        harness.deliver(ana, of(purpose, "bo", "m"));
        assert_eq!(harness.received(ana), [may_not_send("bo", "m")], "{purpose:?}");
    }
}

fn subscribe(harness: &mut Harness, name: &str, rights: Rights) -> ConnId {
    let conn = harness.connect_with(name, Some("some role"), false, rights);
    harness.handle(conn, Command::Subscribe);
    conn
}

fn of(purpose: Purpose, to: &str, id: &str) -> Delivery {
    Delivery { purpose, ..delivery(to, id) }
}

fn reply(purpose: Purpose, to: &str, id: &str, request: &str) -> Delivery {
    Delivery { correlation_id: Some(request.into()), ..of(purpose, to, id) }
}

fn may_not_send(to: &str, id: &str) -> Received {
    refused(Refusal::MayNotSend { mailbox: to.into() }, id)
}

fn not_your_request(to: &str, id: &str, request: &str) -> Received {
    refused(Refusal::NotYourRequest { request: request.into(), mailbox: to.into() }, id)
}

impl Fixture {
    fn refuses(&mut self, conn: ConnId, delivery: Delivery, with: Received) {
        let pending = |harness: &Harness| {
            harness.engine.status(harness.now).mailboxes.iter().map(|mailbox| mailbox.messages).sum::<u64>()
        };
        let before = pending(&self.harness);
        self.harness.received(conn);
        self.harness.deliver(conn, delivery);
        assert_eq!(self.harness.received(conn), [with]);
        assert_eq!(pending(&self.harness), before, "nothing was stored");
    }

    fn accepts(&mut self, conn: ConnId, delivery: Delivery) {
        let id = delivery.id.to_string();
        self.harness.received(conn);
        self.harness.deliver(conn, delivery);
        self.harness.sync_all();
        let received = self.harness.received(conn);
        assert!(matches!(&received[..], [Received::Receipt { id: receipted, .. }] if *receipted == id), "{received:?}");
    }

    /// Sends a request from `ana` that is pushed to `host`.
    fn request(&mut self, id: &str) {
        let request = of(Purpose::Request, "host", id);
        self.accepts(self.ana, request);
        assert_eq!(self.harness.received(self.host), [message(id, 1)]);
    }
}

#[test]
fn requests_may_be_sent_only_to_hosts() {
    let mut fixture = fixture();
    fixture.accepts(fixture.ana, of(Purpose::Request, "host", "1"));
    fixture.accepts(fixture.host, of(Purpose::Request, "other", "2"));
    for conn in [fixture.ana, fixture.host, fixture.operator] {
        fixture.refuses(conn, of(Purpose::Request, "bo", "3"), may_not_send("bo", "3"));
    }
}

#[test]
fn messages_may_be_sent_where_the_rules_allow_and_by_operators_anywhere() {
    let mut fixture = fixture();
    fixture.accepts(fixture.ana, of(Purpose::Other, "bo", "1"));
    fixture.accepts(fixture.operator, of(Purpose::Other, "ana", "2"));
    for conn in [fixture.bo, fixture.host] {
        fixture.refuses(conn, of(Purpose::Other, "ana#x", "3"), may_not_send("ana#x", "3"));
    }
    fixture.refuses(fixture.ana, of(Purpose::Other, "host", "4"), may_not_send("host", "4"));
}

#[test]
fn only_operators_may_send_to_a_dead_letter_mailbox() {
    let mut fixture = fixture();
    fixture.refuses(fixture.ana, of(Purpose::Request, "host#dead", "1"), may_not_send("host#dead", "1"));
    fixture.refuses(fixture.ana, of(Purpose::Other, "bo#dead", "2"), may_not_send("bo#dead", "2"));
    fixture.refuses(fixture.host, of(Purpose::Event, "bo#dead", "3"), may_not_send("bo#dead", "3"));
    fixture.accepts(fixture.operator, of(Purpose::Other, "bo#dead", "4"));
}

#[test]
fn events_may_be_sent_by_hosts_and_where_the_rules_allow() {
    let mut fixture = fixture();
    fixture.accepts(fixture.host, of(Purpose::Event, "ana#y", "1"));
    fixture.accepts(fixture.ana, of(Purpose::Event, "bo", "2"));
    fixture.refuses(fixture.bo, of(Purpose::Event, "ana", "3"), may_not_send("ana", "3"));
    let event = |to: &str| Command::Event { to: to.into(), correlation_id: "c".into(), body: "1".into(), batch: false };
    fixture.harness.handle(fixture.bo, event("ana"));
    let no = Received::Refused { refusal: Refusal::MayNotSend { mailbox: "ana".into() }, id: None };
    assert_eq!((fixture.harness.received(fixture.bo), fixture.harness.received(fixture.ana)), (vec![no], vec![]));
    fixture.harness.handle(fixture.host, event("ana"));
    assert!(matches!(&fixture.harness.received(fixture.ana)[..], [Received::Event { from, .. }] if from == "host"));
}

#[test]
fn only_the_holder_of_a_request_may_reply_and_only_to_its_sender() {
    for purpose in [Purpose::HostReply, Purpose::Reply] {
        let mut fixture = fixture();
        fixture.request("q");
        for conn in [fixture.bo, fixture.other, fixture.operator] {
            fixture.refuses(conn, reply(purpose, "ana", "r", "q"), not_your_request("ana", "r", "q"));
        }
        // Neither to another mailbox, nor for another request.
        fixture.refuses(fixture.host, reply(purpose, "bo", "r", "q"), not_your_request("bo", "r", "q"));
        fixture.refuses(fixture.host, reply(purpose, "ana#x", "r", "q"), not_your_request("ana#x", "r", "q"));
        fixture.refuses(fixture.host, reply(purpose, "ana", "r", "p"), not_your_request("ana", "r", "p"));
        fixture.refuses(fixture.host, of(purpose, "ana", "r"), not_your_request("ana", "r", ""));
        fixture.accepts(fixture.host, reply(purpose, "ana", "r", "q"));
        assert_eq!(fixture.harness.received(fixture.ana), [message("r", 1)]);
    }
}

#[test]
fn a_reply_may_be_sent_only_to_the_mailbox_that_sent_the_request() {
    let mut fixture = fixture();
    let sub = subscribe(&mut fixture.harness, "ana#mcp", WORKER);
    fixture.accepts(sub, of(Purpose::Request, "host", "q"));
    fixture.harness.received(fixture.host);
    fixture.refuses(fixture.host, reply(Purpose::HostReply, "ana", "r", "q"), not_your_request("ana", "r", "q"));
    fixture.accepts(fixture.host, reply(Purpose::HostReply, "ana#mcp", "r", "q"));
}

#[test]
fn a_second_host_reply_after_the_request_is_settled_is_refused() {
    let mut fixture = fixture();
    fixture.request("q");
    let ack = Some(fixture.harness.tag("q"));
    fixture.accepts(fixture.host, Delivery { ack, ..reply(Purpose::HostReply, "ana", "r", "q") });
    fixture.harness.received(fixture.ana);
    fixture.harness.ack(fixture.ana, "r");
    fixture.harness.sync_all();
    // A duplicate, as after a lost receipt, is accepted.
    fixture.harness.received(fixture.host);
    fixture.accepts(fixture.host, reply(Purpose::HostReply, "ana", "r", "q"));
    fixture.refuses(fixture.host, reply(Purpose::HostReply, "ana", "r2", "q"), not_your_request("ana", "r2", "q"));
    // A plain reply is accepted after the request was acknowledged.
    fixture.accepts(fixture.host, reply(Purpose::Reply, "ana", "r3", "q"));
    assert_eq!(fixture.harness.received(fixture.ana), [message("r3", 1)]);
}

#[test]
fn a_reply_to_an_expired_or_withdrawn_request_is_refused() {
    let mut fixture = fixture();
    let request = Delivery { deadline_ms: Some(50), ..of(Purpose::Request, "host", "q") };
    fixture.accepts(fixture.ana, request);
    fixture.harness.now += 60;
    fixture.harness.tick();
    let late = reply(Purpose::HostReply, "ana", "r", "q");
    fixture.harness.received(fixture.host);
    fixture.refuses(fixture.host, late, not_your_request("ana", "r", "q"));

    fixture.harness.disconnect(fixture.host);
    fixture.harness.received(fixture.ana);
    fixture.harness.send(fixture.operator, "absent", "x");
    fixture.accepts(fixture.ana, of(Purpose::Request, "host", "p"));
    fixture
        .harness
        .handle(fixture.ana, Command::Cancel { to: "host".into(), correlation_id: "p".into(), request_id: None });
    let host = subscribe(&mut fixture.harness, "host", HOST);
    fixture.refuses(host, reply(Purpose::HostReply, "ana", "r", "p"), not_your_request("ana", "r", "p"));
}

#[test]
fn a_request_cancelled_in_flight_may_still_be_answered() {
    let mut fixture = fixture();
    fixture.request("q");
    fixture
        .harness
        .handle(fixture.ana, Command::Cancel { to: "host".into(), correlation_id: "q".into(), request_id: None });
    assert_eq!(fixture.harness.received(fixture.host), [Received::Cancel("q from ana".into())]);
    fixture.accepts(fixture.host, reply(Purpose::HostReply, "ana", "r", "q"));
}

#[test]
fn a_dead_lettered_request_is_answered_only_from_the_dead_letter_mailbox() {
    let mut fixture = fixture();
    fixture.request("q");
    let message = fixture.harness.pushed("q");
    fixture.harness.handle(fixture.host, Command::Unreadable { message });
    fixture.harness.received(fixture.host);
    fixture.refuses(fixture.host, reply(Purpose::HostReply, "ana", "r", "q"), not_your_request("ana", "r", "q"));
    let dead = subscribe(&mut fixture.harness, "host#dead", HOST);
    fixture.harness.received(dead);
    fixture.accepts(dead, reply(Purpose::HostReply, "ana", "r", "q"));
}

#[test]
fn the_right_to_reply_survives_a_restart() {
    let mut fixture = fixture();
    fixture.request("q");
    let mut harness = fixture.harness.restart();
    harness.engine.set_names(Arc::new(Rules));
    let (bo, host) = (subscribe(&mut harness, "bo", WORKER), subscribe(&mut harness, "host", HOST));
    harness.serve_fetches();
    assert_eq!(harness.received(host), [message("q", 1)]);
    harness.deliver(bo, reply(Purpose::HostReply, "ana", "forged", "q"));
    assert_eq!(harness.received(bo), [not_your_request("ana", "forged", "q")]);
    harness.deliver(host, reply(Purpose::HostReply, "ana", "r", "q"));
    harness.sync_all();
    assert_eq!(harness.received(host), [receipt(1, "r")]);
}

#[test]
fn a_request_can_be_answered_again_if_the_disk_refused_the_reply() {
    let mut fixture = fixture();
    fixture.request("q");
    let ack = Some(fixture.harness.tag("q"));
    fixture.harness.deliver(fixture.host, Delivery { ack, ..reply(Purpose::HostReply, "ana", "r", "q") });
    let batch = fixture.harness.take_all();
    fixture.harness.refuse(batch, 5_000);
    assert_eq!(fixture.harness.received(fixture.host), [refused(Refusal::DiskFull, "r")]);
    fixture.harness.engine.set_disk_low(false);
    fixture.accepts(fixture.host, reply(Purpose::HostReply, "ana", "r", "q"));
}

#[test]
fn a_refusal_does_not_reveal_ids_in_other_mailboxes() {
    let mut fixture = fixture();
    fixture.accepts(fixture.operator, of(Purpose::Other, "ana", "secret"));
    fixture.harness.deliver(fixture.bo, of(Purpose::Other, "ana", "secret"));
    assert_eq!(fixture.harness.received(fixture.bo), [may_not_send("ana", "secret")]);
}

#[test]
fn a_cancel_of_a_message_of_another_agent_is_dropped() {
    let mut fixture = fixture();
    fixture.request("q");
    for conn in [fixture.bo, fixture.other] {
        fixture
            .harness
            .handle(conn, Command::Cancel { to: "host".into(), correlation_id: "q".into(), request_id: None });
        assert_eq!((fixture.harness.received(conn), fixture.harness.received(fixture.host)), (vec![], vec![]));
    }
    let anyone = fixture.harness.connect("anyone");
    fixture.harness.handle(anyone, Command::Cancel { to: "host".into(), correlation_id: "q".into(), request_id: None });
    assert_eq!(
        fixture.harness.received(fixture.host),
        [Received::Cancel("q".into())],
        "unrestricted connections are exempt"
    );
}

#[test]
fn any_mailbox_of_the_sending_agent_can_withdraw_a_message_and_no_other() {
    let mut fixture = fixture();
    fixture.harness.disconnect(fixture.host);
    let (first, second) =
        (subscribe(&mut fixture.harness, "ana#1", WORKER), subscribe(&mut fixture.harness, "ana#2", WORKER));
    let similar_name = subscribe(&mut fixture.harness, "ana2", WORKER);
    fixture.accepts(first, Delivery { deadline_ms: Some(1000), ..of(Purpose::Request, "host", "q") });
    let inspect = |fixture: &Fixture, conn| {
        let messages = vec![MessageAt { to: "host".into(), id: "q".into() }];
        fixture.harness.engine.inspect(fixture.harness.now, conn, &Inspect { messages, ..Inspect::default() }).messages
    };
    for conn in [fixture.bo, fixture.other, similar_name] {
        fixture
            .harness
            .handle(conn, Command::Cancel { to: "host".into(), correlation_id: "q".into(), request_id: None });
        fixture.harness.sync_all();
        assert_eq!((inspect(&fixture, conn), inspect(&fixture, second)), (vec![None], vec![Some(0)]));
    }
    fixture.harness.handle(second, Command::Cancel { to: "host".into(), correlation_id: "q".into(), request_id: None });
    fixture.harness.sync_all();
    assert_eq!(inspect(&fixture, second), [None]);
    let withdrawn = Refusal::Cancelled { id: "q".into(), mailbox: "host".into() };
    assert_eq!(
        (fixture.harness.received(first), fixture.harness.received(second)),
        (vec![refused(withdrawn, "q")], vec![])
    );
}

#[test]
fn list_connected_shows_only_peers_that_the_requester_may_see() {
    let mut fixture = fixture();
    let mut listed = |conn| {
        fixture.harness.handle(conn, Command::ListConnected { role: "some role".into() });
        fixture.harness.received(conn)
    };
    let list = |names: &[&str]| vec![Received::Connected(names.iter().map(|name| (*name).to_owned()).collect())];
    let all = list(&["ana", "bo", "host", "operator", "other"]);
    assert_eq!(listed(fixture.ana), list(&["bo", "host", "other"]));
    assert_eq!(listed(fixture.bo), list(&["host", "other"]));
    assert_eq!(listed(fixture.host), all);
    assert_eq!(listed(fixture.operator), all);
}

#[test]
fn only_operators_see_the_status() {
    let mut fixture = fixture();
    for conn in [fixture.ana, fixture.host] {
        fixture.harness.handle(conn, Command::Status { request_id: "s".into() });
        assert_eq!(fixture.harness.received(conn), [refused(Refusal::OperatorOnly, "s")]);
    }
    fixture.harness.handle(fixture.operator, Command::Status { request_id: "s".into() });
    assert_eq!(fixture.harness.outgoing(fixture.operator).len(), 1);
}

#[test]
fn a_host_has_a_wider_window() {
    let mut harness = Harness::with(|options| {
        (options.window_messages, options.window_bytes) = (2, 1 << 20);
        (options.host_window_messages, options.host_window_bytes) = (5, 1 << 20);
    });
    let operator = harness.connect("operator");
    let (host, worker) = (subscribe(&mut harness, "host", HOST), subscribe(&mut harness, "worker", WORKER));
    let plain = harness.subscribe("plain");
    for to in ["host", "worker", "plain"] {
        (0..8).for_each(|number| harness.send(operator, to, &format!("{to} {number}")));
    }
    harness.sync_all();
    harness.serve_fetches();
    assert_eq!([host, worker, plain].map(|conn| harness.received(conn).len()), [5, 2, 2]);
    // With the shared token, a peer is a host from its announcement until it disconnects.
    harness.handle(plain, Command::ActAsHost);
    harness.serve_fetches();
    assert_eq!(harness.received(plain).len(), 3);
    harness.handle(worker, Command::ActAsHost);
    let no = Received::Refused { refusal: Refusal::NotAHost, id: None };
    assert_eq!(harness.received(worker), [no]);
    harness.handle(host, Command::ActAsHost);
    assert_eq!(harness.received(host), [], "a host may announce itself");
    let next = harness.subscribe("plain");
    harness.serve_fetches();
    assert_eq!(harness.received(next).len(), 2);
}
