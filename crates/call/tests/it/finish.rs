//! RESULT is journaled, then the caller gets the reply.

use crate::requests::{call, equal, read, replay_safe};
use crate::support::{Host, Step, key};
use toolbus_call::Event;
use toolbus_journal::{End, Entry, Finish, Wait};

#[test]
fn an_answer_is_written_before_it_is_given_and_synced_if_the_operator_wants_it() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.answers("a", "done");
    host.expect(["journal a: RESULT Done done, written", "reply a: done"]);
    let mut host = Host::with(|options| options.sync_results = true);
    host.running(call("w#1", "a"));
    host.answers("a", "done");
    host.expect(["journal a: RESULT Done done, synced"]);
    host.synced();
    host.expect(["reply a: done"]);
    host.running(replay_safe("w#1", "b"));
    host.answers("b", "done");
    host.expect(["journal b: RESULT Done done, written", "reply b: done"]);
}

#[test]
fn the_answer_of_a_cancelled_call_is_durable_first_because_it_has_no_start() {
    let mut host = Host::new();
    host.hold(Step::Connect);
    host.arrives(call("w#1", "a"));
    host.cancels("a");
    host.expect(["connect a", "abort a", "journal a: RESULT Cancelled cancelled, synced"]);
    host.synced();
    host.expect(["reply a: cancelled"]);
    host.arrives(call("w#1", "a"));
    host.expect(["resend a reply-1"]);
}

#[test]
fn the_first_answer_is_final() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    let (reply_id, reply) = ("first".into(), "first answer".into());
    let first = Finish { key: key("w#1", "a"), reply_id, reply, end: End::Done, at: 0 };
    host.journal.append(Entry::Finish(first), Wait::Written, 0).expect("written");
    host.answers("a", "second");
    host.expect(["journal a: RESULT Done second, written", "resend a first"]);
    assert!(host.machine.is_empty());
}

#[test]
fn reads_are_not_journaled() {
    let mut host = Host::new();
    host.arrives(read("w#1", "a"));
    host.cancels("a");
    host.passes(1_000);
    host.expect(["send a", "cancel a at its server", "abort a", "reply a: cancelled"]);
    assert!(host.journal.index().is_empty());
}

#[test]
fn an_end_of_a_call_is_reported_once_even_if_its_server_answers_again() {
    let mut host = Host::with(|options| options.sync_results = true);
    host.running(call("w#1", "a"));
    host.answers("a", "done");
    host.answers("a", "twice");
    host.dies("a");
    host.not_taken("a");
    host.sent("a");
    host.handle(Event::Refused { call: host.no("a"), answer: "refused" });
    host.expect(["journal a: RESULT Done done, synced"]);
    host.synced();
    host.answers("a", "late");
    host.expect(["reply a: done"]);
}

#[test]
fn a_reply_is_unsettled_until_every_copy_of_it_is_receipted() {
    let mut host = Host::new();
    host.running(equal("w#1", "a"));
    host.answers("a", "done");
    host.arrives(equal("w#1", "a"));
    host.seen();
    host.arrives(equal("w#2", "b"));
    host.receipted("w#1", "other");
    host.receipted("w#1", "a");
    host.expect([]);
    host.receipted("w#1", "a");
    host.expect(["inspect w#1 w#1/reply-1"]);
}
