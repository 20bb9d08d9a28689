//! What a call waits for before it may start: its caller, approval, rate limits and time limits.

use crate::requests::{call, equal, in_session, resumed, task, until};
use crate::support::{Host, Step};
use std::num::NonZeroU32;
use std::time::Duration;
use toolbus_call::{Event, Limit, Request, SessionHold, Stage};
use toolbus_policy::{LimitKind, Rate};

fn asking() -> Host {
    let mut host = Host::new();
    host.grant.ask = true;
    host
}

#[test]
fn an_approved_call_runs_and_is_not_asked_for_again() {
    let mut host = asking();
    host.arrives(call("w#1", "a"));
    host.expect(["park a for 86400000"]);
    assert_eq!(host.machine.view(host.no("a")).expect("in progress").stage, Stage::Approval);
    host.approved("a", Ok(()));
    host.synced();
    host.expect(["journal a: START 1, synced", "send a"]);
    host.approved("a", Err("too late"));
    host.expect([]);
}

#[test]
fn a_denied_call_is_answered_with_the_refusal() {
    let mut host = asking();
    host.arrives(call("w#1", "a"));
    host.approved("a", Err("denied by bob"));
    host.expect(["park a for 86400000", "reply a: denied by bob"]);
}

#[test]
fn an_approval_expires_after_its_time() {
    let mut host = Host::with(|options| options.approval_time = 5_000);
    host.grant.ask = true;
    host.arrives(call("w#1", "a"));
    host.passes(4_999);
    host.expect(["park a for 5000"]);
    host.passes(1);
    host.expect(["unpark a, expired", "reply a: NotApproved"]);
}

#[test]
fn an_approval_expires_shortly_before_the_deadline_so_that_the_caller_gets_the_reason() {
    let mut host = asking();
    host.grant.time_limit = Some((10_000, "role".into()));
    host.arrives(until(6_000, call("w#1", "a")));
    host.expect(["park a for 4900"]);
    host.arrives(until(60_000, call("w#1", "b")));
    host.expect(["park b for 9900"]);
    host.arrives(until(1_050, call("w#1", "c")));
    host.expect(["park c for 0"]);
}

#[test]
fn the_follow_up_of_an_approved_call_needs_no_approval() {
    let mut host = asking();
    host.running(Request { continues: true, ..call("w#1", "a") });
}

#[test]
fn an_approval_that_is_repeated_by_changed_rules_changes_nothing() {
    let mut host = asking();
    host.arrives(call("w#1", "a"));
    host.hold(Step::Recheck);
    host.handle(Event::PolicyChanged);
    host.authorised("a");
    host.expect(["park a for 86400000", "authorise a again"]);
    host.approved("a", Ok(()));
    host.authorised("a");
    host.expect(["authorise a again", "journal a: START 1, synced"]);
}

#[test]
fn a_parked_call_does_not_hold_up_its_session_and_then_goes_to_its_end() {
    let mut host = asking();
    host.arrives(in_session(call("w#1", "a")));
    host.grant.ask = false;
    host.hold(Step::Connect);
    host.arrives(in_session(call("w#1", "b")));
    host.expect(["park a for 86400000", "connect b"]);
    host.arrives(Request {
        session: Some((crate::requests::session("s"), SessionHold::UntilAnswered)),
        ..call("w#1", "c")
    });
    host.expect(["connect c"]);
    host.approved("a", Ok(()));
    host.expect([]);
    host.refused("c");
    host.expect(["abort c", "reply c: denied", "connect a"]);
}

fn limited(rate: u32, per: u64) -> Host {
    let mut host = Host::new();
    let rate = Rate { count: NonZeroU32::new(rate).expect("not 0"), per: Duration::from_secs(per) };
    host.grant.limits = vec![Limit { kind: LimitKind::Role("r".into()), rate: Some(rate), concurrency: None }];
    host
}

#[test]
fn calls_above_the_rate_are_refused_and_do_not_count() {
    let mut host = limited(2, 60);
    for id in ["a", "b"] {
        host.running(call("w#1", id));
    }
    for id in ["c", "d", "e"] {
        host.arrives(call("w#1", id));
        host.expect([&format!("reply {id}: rate limited for 30s")]);
    }
    host.passes(30_000);
    host.running(call("w#1", "f"));
}

#[test]
fn a_task_counts_once_before_it_is_accepted_and_not_again_when_it_is_resumed() {
    let mut host = limited(1, 1);
    host.hold(Step::Reserve);
    host.arrives(task("w#1", "a"));
    host.synced();
    host.seen();
    host.arrives(task("w#1", "b"));
    host.expect(["reply b: rate limited for 1s"]);
    host.passes(1_000);
    host.arrives(task("v#1", "c"));
    host.synced();
    host.restarts();
    host.arrives(resumed(task("w#1", "a")));
    host.arrives(resumed(task("v#1", "c")));
    host.expect(["reserve a", "reserve c"]);
}

#[test]
fn the_time_limit_of_a_rule_counts_from_the_authorisation() {
    let mut host = Host::new();
    host.grant.time_limit = Some((5_000, "role".into()));
    host.hold(Step::Authorise);
    host.arrives(until(100_000, call("w#1", "a")));
    host.passes(50_000);
    host.authorised("a");
    host.synced();
    host.seen();
    host.passes(4_999);
    host.expect([]);
    host.passes(1);
    host.expect(["cancel a at its server"]);
    host.passes(1_000);
    host.expect(["abort a", "journal a: RESULT Failed time limit of role, written", "reply a: time limit of role"]);
}

/// Requests that were queued for two minutes start only if their caller is connected.
fn with_grace() -> Host {
    Host::with(|options| options.caller_grace = Some(120_000))
}

#[test]
fn an_old_request_waits_for_its_caller() {
    let mut host = with_grace();
    host.arrives(Request { age: 120_000, ..call("w#1", "a") });
    host.followed("w#1", Some(false));
    host.passes(119_999);
    host.expect(["follow w#1"]);
    host.followed("w#1", Some(true));
    host.expect(["journal a: START 1, synced"]);
}

#[test]
fn an_old_request_whose_caller_stays_away_is_answered_without_its_server() {
    let mut host = with_grace();
    host.arrives(Request { age: 120_000, ..call("w#1", "a") });
    host.followed("w#1", Some(false));
    host.passes(120_000);
    host.expect(["follow w#1", "reply a: CallerGone", "unfollow w#1"]);
}

#[test]
fn an_old_request_that_another_one_joins_does_not_wait_for_its_caller() {
    let mut host = with_grace();
    host.arrives(Request { age: 120_000, ..equal("w#1", "a") });
    host.followed("w#1", Some(false));
    host.arrives(equal("w#2", "b"));
    host.inspected(&[false], &[]);
    host.passes(2_000);
    host.inspected(&[false], &[]);
    let seen = host.seen();
    assert_eq!(seen.last().map(String::as_str), Some("journal a: START 1, synced"), "{seen:?}");
}

#[test]
fn a_fresh_request_or_one_of_a_caller_that_is_connected_does_not_wait() {
    let mut host = with_grace();
    host.running(Request { age: 119_999, ..call("w#1", "a") });
    host.arrives(Request { age: 120_000, ..call("w#2", "b") });
    host.followed("w#2", Some(true));
    host.expect(["follow w#2", "journal b: START 1, synced"]);
    host.arrives(Request { age: 120_000, ..call("w#2", "c") });
    host.expect(["journal c: START 1, synced"]);
    let mut host = Host::new();
    host.running(Request { age: 120_000_000, ..call("w#1", "a") });
}

#[test]
fn if_the_broker_cannot_tell_an_old_request_runs() {
    let mut host = with_grace();
    host.arrives(Request { age: 120_000, ..call("w#1", "a") });
    host.followed("w#1", None);
    host.expect(["follow w#1", "journal a: START 1, synced"]);
    let mut host = Host::with(|options| (options.caller_grace, options.wait_limit) = (Some(120_000), 10_000));
    host.arrives(Request { age: 120_000, ..call("w#1", "a") });
    host.passes(9_999);
    host.expect(["follow w#1"]);
    host.passes(1);
    host.expect(["journal a: START 1, synced"]);
    host.followed("w#1", Some(false));
    host.synced();
    host.expect(["send a"]);
}

#[test]
fn an_old_task_does_not_wait_for_its_caller() {
    let mut host = with_grace();
    host.arrives(Request { age: 120_000, ..task("w#1", "a") });
    host.synced();
    host.expect(["journal a: TASK, synced", "accepted a", "journal a: START 1, synced"]);
}
