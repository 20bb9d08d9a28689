//! Who may send what to whom, where credentials say who is who: a host, two workers, an operator, and the rules that
//! `ana` may write to `bo`.

use crate::support::{Bench, Told, delivery, message, receipt, refused};
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

struct Town {
    bench: Bench,
    ana: ConnId,
    bo: ConnId,
    host: ConnId,
    other: ConnId,
    operator: ConnId,
}

fn town() -> Town {
    let mut bench = Bench::new();
    let mut town = |name, rights| join(&mut bench, name, rights);
    let (ana, bo) = (town("ana", WORKER), town("bo", WORKER));
    let (host, other, operator) = (town("host", HOST), town("other", HOST), town("operator", OPERATOR));
    bench.engine.set_names(Arc::new(Rules));
    Town { bench, ana, bo, host, other, operator }
}

fn join(bench: &mut Bench, name: &str, rights: Rights) -> ConnId {
    let conn = bench.connect_with(name, Some("some role"), false, rights);
    bench.handle(conn, Command::Subscribe);
    conn
}

fn of(purpose: Purpose, to: &str, id: &str) -> Delivery {
    Delivery { purpose, ..delivery(to, id) }
}

fn reply(purpose: Purpose, to: &str, id: &str, request: &str) -> Delivery {
    Delivery { correlation_id: Some(request.into()), ..of(purpose, to, id) }
}

fn may_not_send(to: &str, id: &str) -> Told {
    refused(Refusal::MayNotSend { mailbox: to.into() }, id)
}

fn not_yours(to: &str, id: &str, request: &str) -> Told {
    refused(Refusal::NotYourRequest { request: request.into(), mailbox: to.into() }, id)
}

impl Town {
    fn refuses(&mut self, conn: ConnId, delivery: Delivery, with: Told) {
        let pending = |bench: &Bench| {
            bench.engine.status(bench.now).mailboxes.iter().map(|mailbox| mailbox.messages).sum::<u64>()
        };
        let before = pending(&self.bench);
        self.bench.told(conn);
        self.bench.deliver(conn, delivery);
        assert_eq!(self.bench.told(conn), [with]);
        assert_eq!(pending(&self.bench), before, "nothing was taken in");
    }

    fn takes(&mut self, conn: ConnId, delivery: Delivery) {
        let id = delivery.id.to_string();
        self.bench.told(conn);
        self.bench.deliver(conn, delivery);
        self.bench.sync_all();
        let told = self.bench.told(conn);
        assert!(matches!(&told[..], [Told::Receipt { id: receipted, .. }] if *receipted == id), "{told:?}");
    }

    /// `ana` asks `host`, which has the request in its hands.
    fn ask(&mut self, id: &str) {
        let request = of(Purpose::Request, "host", id);
        self.takes(self.ana, request);
        assert_eq!(self.bench.told(self.host), [message(id, 1)]);
    }
}

#[test]
fn requests_go_to_hosts_and_to_nobody_else() {
    let mut town = town();
    town.takes(town.ana, of(Purpose::Request, "host", "1"));
    town.takes(town.host, of(Purpose::Request, "other", "2"));
    for conn in [town.ana, town.host, town.operator] {
        town.refuses(conn, of(Purpose::Request, "bo", "3"), may_not_send("bo", "3"));
    }
}

#[test]
fn messages_go_where_the_rules_say_and_an_operators_to_everybody() {
    let mut town = town();
    town.takes(town.ana, of(Purpose::Other, "bo", "1"));
    town.takes(town.operator, of(Purpose::Other, "ana", "2"));
    for conn in [town.bo, town.host] {
        town.refuses(conn, of(Purpose::Other, "ana#x", "3"), may_not_send("ana#x", "3"));
    }
    town.refuses(town.ana, of(Purpose::Other, "host", "4"), may_not_send("host", "4"));
}

#[test]
fn nobody_but_an_operator_writes_among_the_dead_letters() {
    let mut town = town();
    town.refuses(town.ana, of(Purpose::Request, "host#dead", "1"), may_not_send("host#dead", "1"));
    town.refuses(town.ana, of(Purpose::Other, "bo#dead", "2"), may_not_send("bo#dead", "2"));
    town.refuses(town.host, of(Purpose::Event, "bo#dead", "3"), may_not_send("bo#dead", "3"));
    town.takes(town.operator, of(Purpose::Other, "bo#dead", "4"));
}

#[test]
fn events_come_from_hosts_and_from_those_who_may_write() {
    let mut town = town();
    town.takes(town.host, of(Purpose::Event, "ana#y", "1"));
    town.takes(town.ana, of(Purpose::Event, "bo", "2"));
    town.refuses(town.bo, of(Purpose::Event, "ana", "3"), may_not_send("ana", "3"));
    let event = |to: &str| Command::Event { to: to.into(), correlation_id: "c".into(), body: "1".into() };
    town.bench.handle(town.bo, event("ana"));
    let no = Told::Refused { refusal: Refusal::MayNotSend { mailbox: "ana".into() }, id: None };
    assert_eq!((town.bench.told(town.bo), town.bench.told(town.ana)), (vec![no], vec![]));
    town.bench.handle(town.host, event("ana"));
    assert!(matches!(&town.bench.told(town.ana)[..], [Told::Event { from, .. }] if from == "host"));
}

#[test]
fn only_the_holder_of_a_request_replies_to_it_and_only_to_its_sender() {
    for purpose in [Purpose::HostReply, Purpose::Reply] {
        let mut town = town();
        town.ask("q");
        for conn in [town.bo, town.other, town.operator] {
            town.refuses(conn, reply(purpose, "ana", "r", "q"), not_yours("ana", "r", "q"));
        }
        // Not to somebody else, and not for something else.
        town.refuses(town.host, reply(purpose, "bo", "r", "q"), not_yours("bo", "r", "q"));
        town.refuses(town.host, reply(purpose, "ana#x", "r", "q"), not_yours("ana#x", "r", "q"));
        town.refuses(town.host, reply(purpose, "ana", "r", "p"), not_yours("ana", "r", "p"));
        town.refuses(town.host, of(purpose, "ana", "r"), not_yours("ana", "r", ""));
        town.takes(town.host, reply(purpose, "ana", "r", "q"));
        assert_eq!(town.bench.told(town.ana), [message("r", 1)]);
    }
}

#[test]
fn a_reply_goes_to_the_very_mailbox_that_asked() {
    let mut town = town();
    let sub = join(&mut town.bench, "ana#mcp", WORKER);
    town.takes(sub, of(Purpose::Request, "host", "q"));
    town.bench.told(town.host);
    town.refuses(town.host, reply(Purpose::HostReply, "ana", "r", "q"), not_yours("ana", "r", "q"));
    town.takes(town.host, reply(Purpose::HostReply, "ana#mcp", "r", "q"));
}

#[test]
fn a_reply_that_settles_its_request_is_taken_and_a_second_one_is_not() {
    let mut town = town();
    town.ask("q");
    let ack = Some(town.bench.tag("q"));
    town.takes(town.host, Delivery { ack, ..reply(Purpose::HostReply, "ana", "r", "q") });
    town.bench.told(town.ana);
    town.bench.ack(town.ana, "r");
    town.bench.sync_all();
    // The same once more, as after a lost receipt, counts as the first.
    town.bench.told(town.host);
    town.takes(town.host, reply(Purpose::HostReply, "ana", "r", "q"));
    town.refuses(town.host, reply(Purpose::HostReply, "ana", "r2", "q"), not_yours("ana", "r2", "q"));
    // A human may answer what the mailbox was cleared of.
    town.takes(town.host, reply(Purpose::Reply, "ana", "r3", "q"));
    assert_eq!(town.bench.told(town.ana), [message("r3", 1)]);
}

#[test]
fn a_reply_to_what_expired_or_was_taken_back_comes_too_late() {
    let mut town = town();
    let request = Delivery { deadline_ms: Some(50), ..of(Purpose::Request, "host", "q") };
    town.takes(town.ana, request);
    town.bench.now += 60;
    town.bench.tick();
    let late = reply(Purpose::HostReply, "ana", "r", "q");
    town.bench.told(town.host);
    town.refuses(town.host, late, not_yours("ana", "r", "q"));

    town.bench.disconnect(town.host);
    town.bench.told(town.ana);
    town.bench.send(town.operator, "nobody", "x");
    town.takes(town.ana, of(Purpose::Request, "host", "p"));
    town.bench.handle(town.ana, Command::Cancel { to: "host".into(), correlation_id: "p".into() });
    let host = join(&mut town.bench, "host", HOST);
    town.refuses(host, reply(Purpose::HostReply, "ana", "r", "p"), not_yours("ana", "r", "p"));
}

#[test]
fn what_was_cancelled_in_flight_may_still_be_answered() {
    let mut town = town();
    town.ask("q");
    town.bench.handle(town.ana, Command::Cancel { to: "host".into(), correlation_id: "q".into() });
    assert_eq!(town.bench.told(town.host), [Told::Cancel("q".into())]);
    town.takes(town.host, reply(Purpose::HostReply, "ana", "r", "q"));
}

#[test]
fn a_dead_letter_is_answered_from_the_mailbox_of_dead_letters_alone() {
    let mut town = town();
    town.ask("q");
    let message = town.bench.pushed("q");
    town.bench.handle(town.host, Command::Unreadable { message });
    town.bench.told(town.host);
    town.refuses(town.host, reply(Purpose::HostReply, "ana", "r", "q"), not_yours("ana", "r", "q"));
    let dead = join(&mut town.bench, "host#dead", HOST);
    town.bench.told(dead);
    town.takes(dead, reply(Purpose::HostReply, "ana", "r", "q"));
}

#[test]
fn after_a_restart_the_holder_is_still_known() {
    let mut town = town();
    town.ask("q");
    let mut bench = town.bench.restart();
    bench.engine.set_names(Arc::new(Rules));
    let (bo, host) = (join(&mut bench, "bo", WORKER), join(&mut bench, "host", HOST));
    bench.serve_fetches();
    assert_eq!(bench.told(host), [message("q", 1)]);
    bench.deliver(bo, reply(Purpose::HostReply, "ana", "forged", "q"));
    assert_eq!(bench.told(bo), [not_yours("ana", "forged", "q")]);
    bench.deliver(host, reply(Purpose::HostReply, "ana", "r", "q"));
    bench.sync_all();
    assert_eq!(bench.told(host), [receipt(1, "r")]);
}

#[test]
fn a_disk_that_refuses_the_reply_leaves_the_request_open_for_it() {
    let mut town = town();
    town.ask("q");
    let ack = Some(town.bench.tag("q"));
    town.bench.deliver(town.host, Delivery { ack, ..reply(Purpose::HostReply, "ana", "r", "q") });
    let batch = town.bench.take_all();
    town.bench.refuse(batch, 5_000);
    assert_eq!(town.bench.told(town.host), [refused(Refusal::DiskFull, "r")]);
    town.bench.engine.set_disk_low(false);
    town.takes(town.host, reply(Purpose::HostReply, "ana", "r", "q"));
}

#[test]
fn nobody_learns_from_a_refusal_which_ids_there_are() {
    let mut town = town();
    town.takes(town.operator, of(Purpose::Other, "ana", "secret"));
    town.bench.deliver(town.bo, of(Purpose::Other, "ana", "secret"));
    assert_eq!(town.bench.told(town.bo), [may_not_send("ana", "secret")]);
}

#[test]
fn a_cancel_of_what_somebody_else_sent_reaches_nobody() {
    let mut town = town();
    town.ask("q");
    for conn in [town.bo, town.other] {
        town.bench.handle(conn, Command::Cancel { to: "host".into(), correlation_id: "q".into() });
        assert_eq!((town.bench.told(conn), town.bench.told(town.host)), (vec![], vec![]));
    }
    let anyone = town.bench.connect("anyone");
    town.bench.handle(anyone, Command::Cancel { to: "host".into(), correlation_id: "q".into() });
    assert_eq!(town.bench.told(town.host), [Told::Cancel("q".into())], "without rules it does");
}

#[test]
fn what_an_agent_sent_is_taken_back_from_any_of_its_mailboxes_and_from_no_other_agents() {
    let mut town = town();
    town.bench.disconnect(town.host);
    let (first, second) = (join(&mut town.bench, "ana#1", WORKER), join(&mut town.bench, "ana#2", WORKER));
    let near = join(&mut town.bench, "ana2", WORKER);
    town.takes(first, Delivery { deadline_ms: Some(1000), ..of(Purpose::Request, "host", "q") });
    let inspect = |town: &Town, conn| {
        let messages = vec![MessageAt { to: "host".into(), id: "q".into() }];
        town.bench.engine.inspect(town.bench.now, conn, &Inspect { messages, ..Inspect::default() }).messages
    };
    for conn in [town.bo, town.other, near] {
        town.bench.handle(conn, Command::Cancel { to: "host".into(), correlation_id: "q".into() });
        town.bench.sync_all();
        assert_eq!((inspect(&town, conn), inspect(&town, second)), (vec![None], vec![Some(0)]));
    }
    town.bench.handle(second, Command::Cancel { to: "host".into(), correlation_id: "q".into() });
    town.bench.sync_all();
    assert_eq!(inspect(&town, second), [None]);
    let taken_back = Refusal::Cancelled { id: "q".into(), mailbox: "host".into() };
    assert_eq!((town.bench.told(first), town.bench.told(second)), (vec![refused(taken_back, "q")], vec![]));
}

#[test]
fn who_is_connected_is_told_as_far_as_it_concerns_the_asker() {
    let mut town = town();
    let mut asked = |conn| {
        town.bench.handle(conn, Command::ListConnected { role: "some role".into() });
        town.bench.told(conn)
    };
    let list = |names: &[&str]| vec![Told::Connected(names.iter().map(|name| (*name).to_owned()).collect())];
    let all = list(&["ana", "bo", "host", "operator", "other"]);
    assert_eq!(asked(town.ana), list(&["bo", "host", "other"]));
    assert_eq!(asked(town.bo), list(&["host", "other"]));
    assert_eq!(asked(town.host), all);
    assert_eq!(asked(town.operator), all);
}

#[test]
fn only_operators_see_the_status() {
    let mut town = town();
    for conn in [town.ana, town.host] {
        town.bench.handle(conn, Command::Status { request_id: "s".into() });
        assert_eq!(town.bench.told(conn), [refused(Refusal::OperatorOnly, "s")]);
    }
    town.bench.handle(town.operator, Command::Status { request_id: "s".into() });
    assert_eq!(town.bench.outgoing(town.operator).len(), 1);
}

#[test]
fn a_host_holds_more_than_others() {
    let mut bench = Bench::with(|options| {
        (options.window_messages, options.window_bytes) = (2, 1 << 20);
        (options.host_window_messages, options.host_window_bytes) = (5, 1 << 20);
    });
    let operator = bench.connect("operator");
    let (host, worker) = (join(&mut bench, "host", HOST), join(&mut bench, "worker", WORKER));
    let plain = bench.join("plain");
    for to in ["host", "worker", "plain"] {
        (0..8).for_each(|number| bench.send(operator, to, &format!("{to} {number}")));
    }
    bench.sync_all();
    bench.serve_fetches();
    assert_eq!([host, worker, plain].map(|conn| bench.told(conn).len()), [5, 2, 2]);
    // Where credentials don't say who is a host, it is one that announced itself; for as long as it is connected.
    bench.handle(plain, Command::ActAsHost);
    bench.serve_fetches();
    assert_eq!(bench.told(plain).len(), 3);
    bench.handle(worker, Command::ActAsHost);
    let no = Told::Refused { refusal: Refusal::NotAHost, id: None };
    assert_eq!(bench.told(worker), [no]);
    let next = bench.join("plain");
    bench.serve_fetches();
    assert_eq!(bench.told(next).len(), 2);
}
