//! The end of an agent: what it began ends with it, and the next agent of its name inherits nothing.

use crate::support::{Harness, Received, delivery, message, receipt, refused};
use std::sync::Arc;
use toolbus_engine::{AgentEnd, Command, ConnId, Delivery, Names, Purpose, Refusal, Rights, Sender};

const WORKER: Rights = Rights { unrestricted: false, host: false, operator: false };
const HOST: Rights = Rights { host: true, ..WORKER };

/// `host` is a host, and all may send to all.
struct Rules;

impl Names for Rules {
    fn is_host(&self, mailbox: &str) -> bool {
        mailbox == "host"
    }

    fn may_message(&self, _from: &Sender, _to: &str) -> bool {
        true
    }
}

fn harness() -> Harness {
    let mut harness = Harness::new();
    harness.engine.set_names(Arc::new(Rules));
    harness
}

fn connect(harness: &mut Harness, name: &str, rights: Rights) -> ConnId {
    harness.connect_with(name, None, true, rights)
}

fn subscribe(harness: &mut Harness, name: &str, rights: Rights) -> ConnId {
    let conn = connect(harness, name, rights);
    harness.handle(conn, Command::Subscribe);
    conn
}

fn request(id: &str) -> Delivery {
    Delivery { purpose: Purpose::Request, deadline_ms: Some(60_000), ..delivery("host", id) }
}

fn reply(to: &str, id: &str, request: &str, purpose: Purpose) -> Delivery {
    Delivery { correlation_id: Some(request.into()), purpose, ..delivery(to, id) }
}

fn end(harness: &mut Harness, name: &str) -> u64 {
    let mut before = 0;
    harness.step(|engine, now, effects| before = engine.end_generation(now, name, effects).0);
    before
}

fn ended(name: &str, generation: u64, expired: bool) -> Received {
    Received::AgentsEnded(vec![AgentEnd { name: name.into(), generation, expired }])
}

fn not_yours(to: &str, id: &str, request: &str) -> Received {
    refused(Refusal::NotYourRequest { request: request.into(), mailbox: to.into() }, id)
}

/// Ids that a new subscriber of the mailbox gets.
fn pending(harness: &mut Harness, name: &str, rights: Rights) -> Vec<Received> {
    let conn = subscribe(harness, name, rights);
    harness.serve_fetches();
    let received = harness.received(conn);
    harness.disconnect(conn);
    received.into_iter().filter(|frame| matches!(frame, Received::Message { .. })).collect()
}

#[test]
fn queued_messages_from_and_to_a_revoked_agent_are_removed_durably_and_others_stay() {
    let mut harness = harness();
    let (ana, bo) = (connect(&mut harness, "ana", WORKER), connect(&mut harness, "bo", WORKER));
    let other = connect(&mut harness, "ana#two", WORKER);
    harness.deliver(ana, request("call"));
    harness.deliver(other, Delivery { deadline_ms: None, ..request("no deadline") });
    harness.send(ana, "bo", "mail");
    harness.deliver(bo, request("bo's call"));
    harness.sync_all();
    harness.send(bo, "ana", "to ana");
    harness.send(bo, "ana#two", "to ana too");
    harness.deliver(ana, request("not durable"));
    end(&mut harness, "ana");
    harness.sync_all();
    for restart in [false, true] {
        if restart {
            harness = harness.restart();
            harness.engine.set_names(Arc::new(Rules));
        }
        assert_eq!(pending(&mut harness, "ana", WORKER), []);
        assert_eq!(pending(&mut harness, "ana#two", WORKER), []);
        assert_eq!(pending(&mut harness, "bo", WORKER), []);
        let of_host = pending(&mut harness, "host", HOST);
        assert!(matches!(&of_host[..], [Received::Message { id, .. }] if id == "bo's call"), "{of_host:?}");
    }
}

#[test]
fn the_end_of_an_agent_lists_what_was_removed() {
    let mut harness = harness();
    let (ana, bo) = (connect(&mut harness, "ana", WORKER), connect(&mut harness, "bo", WORKER));
    harness.deliver(ana, request("call"));
    harness.send(ana, "bo", "mail");
    harness.send(bo, "ana", "to ana");
    harness.send(ana, "ana", "to itself");
    harness.step(|engine, now, effects| {
        let (_, removed) = engine.end_generation(now, "ana", effects);
        let sent: Vec<_> = removed.sent.iter().map(|(to, id)| (&**to, id.as_deref())).collect();
        assert_eq!(sent, [("host", Some("call")), ("bo", Some("mail"))]);
        assert_eq!(removed.received, 2);
    });
}

#[test]
fn the_sender_of_a_message_to_a_revoked_agent_is_notified() {
    let mut harness = harness();
    let bo = subscribe(&mut harness, "bo", WORKER);
    harness.send(bo, "ana", "to ana");
    end(&mut harness, "ana");
    harness.sync_all();
    let withdrawn = Refusal::Cancelled { id: "to ana".into(), mailbox: "ana".into() };
    assert_eq!(harness.received(bo), [refused(withdrawn, "to ana")]);
}

#[test]
fn a_host_is_notified_and_its_reply_to_a_revoked_agent_is_refused() {
    let mut harness = harness();
    let host = subscribe(&mut harness, "host", HOST);
    let (ana, bo) = (connect(&mut harness, "ana", WORKER), subscribe(&mut harness, "bo", WORKER));
    harness.deliver(ana, request("call"));
    harness.received(host);
    end(&mut harness, "ana");
    assert_eq!(harness.received(host), [ended("ana", 1, false)]);
    assert_eq!(harness.received(bo), [], "only hosts are notified");
    harness.deliver(host, reply("ana", "answer", "call", Purpose::HostReply));
    assert_eq!(harness.received(host), [not_yours("ana", "answer", "call")]);
    harness.disconnect(host);
    assert_eq!(pending(&mut harness, "host", HOST), [], "the call is not pushed again");
}

#[test]
fn an_answer_to_an_acknowledged_message_of_a_revoked_agent_does_not_reach_the_next_one() {
    let mut harness = harness();
    let (ana, bo) = (connect(&mut harness, "ana", WORKER), subscribe(&mut harness, "bo", WORKER));
    harness.send(ana, "bo", "question");
    harness.ack(bo, "question");
    harness.received(bo);
    end(&mut harness, "ana");
    connect(&mut harness, "ana", WORKER);
    harness.deliver(bo, reply("ana", "answer", "question", Purpose::Reply));
    assert_eq!(harness.received(bo), [not_yours("ana", "answer", "question")]);
}

#[test]
fn a_new_agent_of_the_same_name_can_send_and_be_answered() {
    let mut harness = harness();
    let host = subscribe(&mut harness, "host", HOST);
    end(&mut harness, "ana");
    harness.received(host);
    let ana = subscribe(&mut harness, "ana", WORKER);
    harness.deliver(ana, request("call"));
    assert_eq!(harness.received(host), [message("call", 1)]);
    harness.deliver(host, reply("ana", "answer", "call", Purpose::HostReply));
    assert_eq!(harness.received(ana), [message("answer", 1)]);
}

#[test]
fn commands_of_a_connection_that_has_not_noticed_the_end_have_no_effect() {
    let mut harness = harness();
    let (ana, bo) = (subscribe(&mut harness, "ana", WORKER), connect(&mut harness, "bo", WORKER));
    end(&mut harness, "ana");
    harness.deliver(ana, request("late"));
    harness.send(bo, "ana", "for the next");
    assert_eq!(harness.received(ana), []);
    assert_eq!(pending(&mut harness, "host", HOST), []);
    assert_eq!(pending(&mut harness, "ana", WORKER), [message("for the next", 1)]);
}

#[test]
fn a_removal_that_a_crash_lost_is_repeated_for_earlier_messages_only() {
    // The first of them has the first number that is not below the end.
    for mail_first in [false, true] {
        let mut harness = harness();
        let (ana, bo) = (connect(&mut harness, "ana", WORKER), connect(&mut harness, "bo", WORKER));
        harness.deliver(ana, request("old call"));
        harness.send(bo, "ana", "old mail");
        harness.sync_all();
        // Not synced.
        let before = end(&mut harness, "ana");
        let mut harness = harness.restart_with(|engine| engine.restore_generation("ana", 1));
        harness.engine.set_names(Arc::new(Rules));
        let (ana, bo) = (connect(&mut harness, "ana", WORKER), connect(&mut harness, "bo", WORKER));
        for is_mail in [mail_first, !mail_first] {
            let new = if is_mail { delivery("ana", "new mail") } else { request("new call") };
            harness.deliver(if is_mail { bo } else { ana }, new);
        }
        harness.step(|engine, now, effects| drop(engine.remove_earlier(now, &[("ana", before)], effects)));
        assert_eq!(pending(&mut harness, "ana", WORKER), [message("new mail", 1)]);
        let host = subscribe(&mut harness, "host", HOST);
        assert_eq!(harness.received(host), [ended("ana", 1, false), message("new call", 1)]);
        harness.deliver(host, reply("ana", "answer", "new call", Purpose::HostReply));
        harness.sync_all();
        assert_eq!(harness.received(host), [receipt(1, "answer")]);
    }
}

#[test]
fn an_expired_agent_keeps_its_mailbox_and_its_requests_to_hosts_are_withdrawn() {
    let mut harness = harness();
    let host = subscribe(&mut harness, "host", HOST);
    let (ana, bo) = (connect(&mut harness, "ana", WORKER), connect(&mut harness, "bo", WORKER));
    harness.deliver(ana, request("call"));
    harness.send(ana, "bo", "mail");
    harness.send(bo, "ana", "to ana");
    harness.received(host);
    harness.step(|engine, now, effects| drop(engine.expire_agent(now, "ana", effects)));
    assert_eq!(harness.received(host), [ended("ana", 0, true)]);
    harness.disconnect(host);
    let host = subscribe(&mut harness, "host", HOST);
    assert_eq!(harness.received(host), [ended("ana", 0, true)], "and the call is not pushed again");
    assert_eq!(pending(&mut harness, "bo", WORKER), [message("mail", 1)]);
    assert_eq!(pending(&mut harness, "ana", WORKER), [message("to ana", 1)]);
    harness.step(|engine, _, _| engine.renew_agent("ana"));
    let host = subscribe(&mut harness, "host", HOST);
    assert_eq!(harness.received(host), []);
}
