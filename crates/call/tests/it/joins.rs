//! A call that repeats a running call of a disconnected caller gets that one's answer.

use crate::requests::{call, equal, in_session, replay_safe, task, until};
use crate::support::{Host, Step};
use toolbus_call::{AskNo, Event, Inspected, JoinMode, Origin, Request, Stage};

/// A call `a` of `w#1` runs, and its caller is gone.
fn abandoned() -> Host {
    let mut host = Host::new();
    host.running(equal("w#1", "a"));
    host
}

/// The broker says at both checks that all these callers are disconnected.
fn join(host: &mut Host, callers: usize) {
    host.inspected(&vec![false; callers], &[]);
    host.passes(2_000);
    host.inspected(&vec![false; callers], &[]);
}

#[test]
fn a_repeated_call_gets_the_answer_of_the_abandoned_one() {
    let mut host = abandoned();
    host.arrives(equal("w#2", "b"));
    host.expect(["inspect w#1"]);
    host.inspected(&[false], &[]);
    host.passes(1_999);
    host.expect([]);
    host.passes(1);
    host.expect(["inspect w#1"]);
    host.inspected(&[false], &[]);
    host.expect([]);
    assert_eq!(host.machine.view(host.no("b")).expect("in progress").stage, Stage::Joined);
    assert_eq!(host.machine.joiners_of(host.no("a")), [host.no("b")]);
    host.answers("a", "done");
    host.expect(["journal a: RESULT Done done, written", "reply a: done"]);
    host.receipted("w#1", "a");
    host.expect(["inspect w#1 w#1/reply-1"]);
    host.inspected(&[false], &[true]);
    host.expect(["read the answer for b"]);
    host.handle(Event::AnswerRead { call: host.no("b"), answer: Ok(Some("done")) });
    host.expect(["journal b: JOINED to a, synced", "journal b: RESULT Done done of a, synced"]);
    host.synced();
    host.expect(["reply b: done of a"]);
    assert!(host.machine.is_empty());
    host.restarts();
    host.arrives(equal("w#2", "b"));
    host.expect(["resend b reply-2"]);
}

#[test]
fn a_call_of_a_connected_caller_is_not_joined() {
    let mut host = abandoned();
    host.arrives(equal("w#2", "b"));
    host.inspected(&[true], &[]);
    host.expect(["inspect w#1", "journal b: START 1, synced"]);
}

#[test]
fn a_call_whose_caller_came_back_is_not_joined() {
    let mut host = abandoned();
    host.arrives(equal("w#2", "b"));
    host.inspected(&[false], &[]);
    host.passes(2_000);
    host.inspected(&[true], &[]);
    host.expect(["inspect w#1", "inspect w#1", "journal b: START 1, synced"]);
}

#[test]
fn only_equal_calls_of_the_same_agent_are_joined() {
    let mut host = abandoned();
    host.running(equal("v#1", "other-agent"));
    host.running(call("w#2", "other-content"));
    host.running(equal("w#1", "same-worker"));
}

#[test]
fn only_new_plain_calls_that_must_not_run_twice_join() {
    let plain = || equal("w#2", "b");
    for request in [
        Request { join: JoinMode::Never, ..plain() },
        Request { continues: true, ..plain() },
        Request { origin: Origin::Operator, ..plain() },
        Request { content: [7; 32], ..replay_safe("w#2", "b") },
        Request { has_effect: false, ..plain() },
    ] {
        let mut host = abandoned();
        host.running(request);
    }
    let mut host = abandoned();
    host.arrives(Request { content: [7; 32], ..task("w#2", "b") });
    host.synced();
    host.expect(["journal b: TASK, synced", "accepted b", "journal b: START 1, synced"]);
}

#[test]
fn tasks_and_reads_are_not_joined() {
    let mut host = Host::new();
    host.arrives(Request { content: [7; 32], ..task("w#1", "a") });
    host.synced();
    host.synced();
    host.seen();
    host.running(Request { has_effect: false, ..equal("w#2", "b") });
    host.running(equal("w#3", "c"));
}

#[test]
fn an_operator_may_allow_joins_to_calls_of_connected_callers() {
    let mut host = abandoned();
    host.arrives(Request { join: JoinMode::Always, ..equal("w#2", "b") });
    host.expect([]);
    assert_eq!(host.machine.joiners_of(host.no("a")), [host.no("b")]);
}

#[test]
fn a_chain_of_joiners_waits_for_the_first_call_and_all_its_callers_must_be_gone() {
    let mut host = abandoned();
    host.arrives(equal("w#2", "b"));
    join(&mut host, 1);
    host.seen();
    host.arrives(equal("w#3", "c"));
    host.expect(["inspect w#2 w#1"]);
    host.inspected(&[false, true], &[]);
    host.expect(["journal c: START 1, synced"]);
    host.arrives(equal("w#4", "d"));
    host.expect(["inspect w#3"]);
    let mut host = abandoned();
    host.arrives(equal("w#2", "b"));
    join(&mut host, 1);
    host.arrives(equal("w#3", "c"));
    join(&mut host, 2);
    assert_eq!(host.machine.joiners_of(host.no("a")), [host.no("b"), host.no("c")]);
    assert_eq!(host.machine.view(host.no("a")).expect("in progress").joiners, 1);
}

#[test]
fn an_answer_of_the_broker_that_does_not_come_is_not_awaited_forever_and_the_call_does_not_run() {
    let mut host = Host::with(|options| options.wait_limit = 10_000);
    host.running(equal("w#1", "a"));
    host.arrives(equal("w#2", "b"));
    host.passes(9_999);
    host.expect(["inspect w#1"]);
    host.passes(1);
    host.expect(["reply b: Timeout"]);
    host.inspected(&[true], &[]);
    host.expect([]);
}

#[test]
fn an_answer_to_an_earlier_question_of_the_call_does_not_count() {
    let mut host = abandoned();
    host.arrives(equal("w#2", "b"));
    host.inspected(&[false], &[]);
    host.passes(2_000);
    host.expect(["inspect w#1", "inspect w#1"]);
    let view = Inspected { connected: vec![true], uncollected: Vec::new() };
    host.handle(Event::Inspected { call: host.no("b"), ask: AskNo(1), view });
    host.expect([]);
    host.inspected(&[true], &[]);
    host.expect(["journal b: START 1, synced"]);
}

#[test]
fn a_call_that_was_cancelled_by_its_caller_is_not_joined() {
    let mut host = abandoned();
    host.cancels("a");
    host.seen();
    host.running(equal("w#2", "b"));
    // One that expired may have had its effect.
    let mut host = Host::new();
    host.running(until(5_000, equal("w#1", "a")));
    host.passes(4_000);
    host.seen();
    host.arrives(equal("w#2", "b"));
    host.expect(["inspect w#1"]);
}

#[test]
fn a_call_that_joined_one_that_was_cancelled_later_does_not_run() {
    let mut host = abandoned();
    host.arrives(equal("w#2", "b"));
    join(&mut host, 1);
    host.cancels("a");
    host.passes(1_000);
    host.receipted("w#1", "a");
    host.seen();
    host.inspected(&[false], &[true]);
    host.expect(["journal b: JOINED to a, synced", "journal b: RESULT Unknown joined call a was cancelled, synced"]);
    host.synced();
    host.expect(["reply b: joined call a was cancelled"]);
}

#[test]
fn a_joiner_that_was_given_up_is_not_joined_but_the_call_before_it() {
    let mut host = abandoned();
    host.arrives(equal("w#2", "b"));
    join(&mut host, 1);
    host.cancels("b");
    host.seen();
    host.arrives(equal("w#3", "c"));
    host.expect(["inspect w#1"]);
    join(&mut host, 1);
    assert_eq!(host.machine.joiners_of(host.no("a")), [host.no("c")]);
}

#[test]
fn a_cancelled_joiner_leaves_the_joined_call_alone() {
    let mut host = abandoned();
    host.arrives(equal("w#2", "b"));
    join(&mut host, 1);
    host.seen();
    host.cancels("b");
    host.synced();
    host.expect(["journal b: RESULT Cancelled cancelled, synced", "reply b: cancelled"]);
    assert!(host.machine.joiners_of(host.no("a")).is_empty());
    host.answers("a", "done");
    host.expect(["journal a: RESULT Done done, written", "reply a: done"]);
}

#[test]
fn a_joiner_extends_the_deadline_of_all_calls_that_it_waits_for() {
    let mut host = Host::new();
    host.running(until(10_000, equal("w#1", "a")));
    host.arrives(until(11_000, equal("w#2", "b")));
    join(&mut host, 1);
    host.arrives(until(20_000, equal("w#3", "c")));
    join(&mut host, 2);
    host.seen();
    host.passes(14_999);
    host.expect([]);
    host.passes(1);
    host.expect(["cancel a at its server", "reply b: Expired", "reply c: Expired"]);
}

#[test]
fn a_joiner_with_an_earlier_deadline_does_not_shorten_that_of_the_joined_call() {
    let mut host = Host::new();
    host.running(until(20_000, equal("w#1", "a")));
    host.arrives(until(10_000, equal("w#2", "b")));
    join(&mut host, 1);
    host.seen();
    host.passes(10_000);
    host.expect(["reply b: Expired"]);
    assert!(host.has("a"));
}

#[test]
fn a_call_that_is_overtaken_while_it_waits_asks_about_the_call_that_overtook_it() {
    let mut host = abandoned();
    host.arrives(equal("w#2", "b"));
    host.inspected(&[false], &[]);
    host.answers("a", "done");
    host.receipted("w#1", "a");
    host.seen();
    host.arrives(equal("w#3", "c"));
    host.cancels("b");
    host.synced();
    host.seen();
    // `c` asked about `b`, which has ended meanwhile.
    host.inspected(&[true], &[]);
    host.synced();
    host.expect(["journal c: START 1, synced", "send c"]);
}

#[test]
fn a_later_equal_call_that_started_meanwhile_is_joined_while_it_runs() {
    let mut host = abandoned();
    host.arrives(equal("w#2", "b"));
    host.inspected(&[false], &[]);
    host.answers("a", "done");
    host.receipted("w#1", "a");
    host.running(Request { join: JoinMode::Never, ..equal("w#3", "c") });
    host.passes(2_000);
    host.expect(["inspect w#3"]);
    host.inspected(&[false], &[]);
    host.expect([]);
    assert_eq!(host.machine.joiners_of(host.no("c")), [host.no("b")]);
}

#[test]
fn a_call_that_waits_to_join_does_not_hold_up_its_session() {
    let mut host = abandoned();
    host.arrives(in_session(equal("w#2", "b")));
    host.arrives(in_session(call("w#2", "c")));
    host.expect(["inspect w#1"]);
    host.inspected(&[false], &[]);
    host.synced();
    host.expect(["journal c: START 1, synced", "send c"]);
}

#[test]
fn a_rule_that_refuses_the_joiner_while_it_waits_ends_only_it() {
    let mut host = abandoned();
    host.arrives(equal("w#2", "b"));
    join(&mut host, 1);
    host.hold(Step::Recheck);
    host.seen();
    host.handle(Event::PolicyChanged);
    host.expect(["authorise b again"]);
    host.refused("b");
    host.expect(["reply b: denied"]);
    assert!(host.has("a") && host.machine.joiners_of(host.no("a")).is_empty());
}
