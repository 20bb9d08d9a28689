//! A call that repeats an ended call gets its answer if no caller has collected it.

use crate::requests::equal;
use crate::support::{Host, key};
use toolbus_call::{Event, Inspected, JoinMode, Request};

/// A call `a` of `w#1` was answered, and the broker has the reply.
fn answered() -> Host {
    let mut host = Host::new();
    host.running(equal("w#1", "a"));
    host.answers("a", "done");
    host.receipted("w#1", "a");
    host.seen();
    host
}

/// The call joins a run that these callers share, with these replies, all uncollected.
fn join(host: &mut Host, id: &str, callers: usize, replies: usize) {
    host.inspected(&vec![false; callers], &vec![true; replies]);
    host.passes(2_000);
    host.inspected(&vec![false; callers], &vec![true; replies]);
    host.handle(Event::AnswerRead { call: host.no(id), answer: Ok(Some("done")) });
    host.synced();
}

#[test]
fn a_reply_that_the_broker_does_not_know_is_uncollected_only_if_the_broker_would_remember_it() {
    for (is_pending, is_settled, remembers, expected) in [
        (true, false, false, true),
        (false, true, true, false),
        (false, false, true, true),
        (false, false, false, false),
    ] {
        let is_uncollected = Inspected::is_uncollected(is_pending, is_settled, remembers);
        assert_eq!(is_uncollected, expected, "{is_pending} {is_settled} {remembers}");
    }
}

#[test]
fn an_uncollected_answer_is_given_to_the_repeated_call() {
    let mut host = answered();
    host.arrives(equal("w#2", "b"));
    host.expect(["inspect w#1 w#1/reply-1"]);
    join(&mut host, "b", 1, 1);
    host.expect([
        "inspect w#1 w#1/reply-1",
        "read the answer for b",
        "journal b: JOINED to a, synced",
        "journal b: RESULT Done done of a, synced",
        "reply b: done of a",
    ]);
}

#[test]
fn an_answer_that_was_collected_at_either_check_is_not_shared() {
    for first in [true, false] {
        let mut host = answered();
        host.arrives(equal("w#2", "b"));
        host.inspected(&[false], &[first]);
        if first {
            host.passes(2_000);
            host.inspected(&[false], &[false]);
        }
        assert_eq!(host.seen().last().map(String::as_str), Some("journal b: START 1, synced"));
    }
}

#[test]
fn a_third_call_runs_if_one_of_two_sharers_has_collected_the_answer() {
    for (collected, third_runs) in [([true, true], false), ([false, true], true), ([true, false], true)] {
        let mut host = answered();
        host.arrives(equal("w#2", "b"));
        join(&mut host, "b", 1, 1);
        host.receipted("w#2", "b");
        host.seen();
        host.arrives(equal("w#3", "c"));
        host.expect(["inspect w#2 w#1 w#2/reply-2 w#1/reply-1"]);
        host.inspected(&[false, false], &collected);
        assert_eq!(host.seen() == ["journal c: START 1, synced"], third_runs, "{collected:?}");
    }
}

#[test]
fn a_third_call_joins_if_nobody_has_collected_the_answer() {
    let mut host = answered();
    host.arrives(equal("w#2", "b"));
    join(&mut host, "b", 1, 1);
    host.receipted("w#2", "b");
    host.arrives(equal("w#3", "c"));
    join(&mut host, "c", 2, 2);
    assert_eq!(host.seen().last().map(String::as_str), Some("reply c: done of b"));
}

#[test]
fn a_reply_that_the_broker_refused_is_uncollected() {
    let mut host = answered();
    host.handle(Event::ReplySettled { key: key("w#1", "a"), refused: true });
    host.arrives(equal("w#2", "b"));
    host.expect(["inspect w#1"]);
    // The same reply, sent again and receipted this time.
    host.handle(Event::ReplySettled { key: key("w#1", "a"), refused: false });
    host.inspected(&[false], &[]);
    host.passes(2_000);
    host.expect(["inspect w#1 w#1/reply-1"]);
}

#[test]
fn the_broker_is_asked_only_when_it_has_the_reply() {
    let mut host = Host::with(|options| options.wait_limit = 10_000);
    host.running(equal("w#1", "a"));
    host.answers("a", "done");
    host.seen();
    host.arrives(equal("w#2", "b"));
    host.passes(9_999);
    host.expect([]);
    // The earlier call may have had its effect.
    host.passes(1);
    host.expect(["reply b: Timeout"]);
}

#[test]
fn an_operator_may_allow_to_share_answers_of_connected_callers() {
    let mut host = answered();
    host.arrives(Request { join: JoinMode::Always, ..equal("w#2", "b") });
    host.expect(["read the answer for b"]);
}

#[test]
fn a_call_that_ended_before_the_window_is_not_joined() {
    let mut host = answered();
    host.passes(60_000);
    host.arrives(equal("w#2", "b"));
    host.expect(["inspect w#1 w#1/reply-1"]);
    let mut host = answered();
    host.passes(60_001);
    host.arrives(equal("w#2", "b"));
    host.expect(["journal b: START 1, synced"]);
}

#[test]
fn a_call_that_repeats_an_interrupted_one_does_not_run() {
    let mut host = Host::new();
    host.running(equal("w#1", "a"));
    host.restarts();
    host.arrives(equal("w#2", "b"));
    host.expect(["inspect w#1"]);
    host.inspected(&[false], &[]);
    host.passes(2_000);
    host.inspected(&[false], &[]);
    host.expect([
        "inspect w#1",
        "journal b: JOINED to a, synced",
        "journal b: RESULT Unknown outcome of attempt 1 of a unknown, synced",
    ]);
    host.synced();
    host.expect(["reply b: outcome of attempt 1 of a unknown"]);
}

#[test]
fn a_call_that_repeats_a_cancelled_one_runs() {
    let mut host = Host::new();
    host.running(equal("w#1", "a"));
    host.cancels("a");
    host.passes(1_000);
    host.receipted("w#1", "a");
    host.seen();
    host.arrives(equal("w#2", "b"));
    host.inspected(&[false], &[true]);
    host.passes(2_000);
    host.inspected(&[false], &[true]);
    host.synced();
    host.expect(["inspect w#1 w#1/reply-1", "inspect w#1 w#1/reply-1", "journal b: START 1, synced", "send b"]);
}

#[test]
fn an_answer_that_cannot_be_read_is_not_replaced_by_a_run() {
    let mut host = answered();
    host.arrives(Request { join: JoinMode::Always, ..equal("w#2", "b") });
    host.handle(Event::AnswerRead { call: host.no("b"), answer: Err("damaged".into()) });
    host.synced();
    host.expect([
        "read the answer for b",
        "journal b: JOINED to a, synced",
        "journal b: RESULT Unknown unreadable: damaged, synced",
        "reply b: unreadable: damaged",
    ]);
}

#[test]
fn a_call_whose_predecessor_has_an_answer_that_may_not_be_shared_runs() {
    let mut host = answered();
    host.arrives(Request { join: JoinMode::Always, ..equal("w#2", "b") });
    host.handle(Event::AnswerRead { call: host.no("b"), answer: Ok(None) });
    host.synced();
    host.expect(["read the answer for b", "journal b: START 1, synced", "send b"]);
    // A late second report has no effect.
    host.handle(Event::AnswerRead { call: host.no("b"), answer: Ok(Some("done")) });
    host.expect([]);
}

#[test]
fn the_repeated_call_looks_again_if_another_one_joined_while_the_broker_was_asked() {
    let mut host = answered();
    host.arrives(equal("w#2", "b"));
    host.inspected(&[false], &[true]);
    host.passes(2_000);
    // Another call takes the answer before the broker has replied.
    host.arrives(Request { join: JoinMode::Never, ..equal("w#3", "c") });
    host.synced();
    host.answers("c", "second");
    host.receipted("w#3", "c");
    host.seen();
    host.inspected(&[false], &[true]);
    host.expect(["inspect w#3 w#3/reply-2"]);
}
