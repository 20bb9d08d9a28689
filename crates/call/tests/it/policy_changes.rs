//! Changes of the rules: a stricter policy applies to every call that has not begun, whatever it waits for.

use crate::requests::{call, in_session, task};
use crate::states::{At, check, host_at};
use crate::support::{Host, Step};
use std::num::NonZeroU32;
use std::time::Duration;
use toolbus_call::{Event, Limit, Request};
use toolbus_policy::{LimitKind, Rate};

/// Every `a` that its server does not have yet ends with the refusal. One whose START is written leaves a RESULT.
#[test]
fn a_stricter_policy_applies_to_what_has_not_begun() {
    let denied = &["reply a: denied"][..];
    check(
        |host| {
            host.denies = true;
            host.handle(Event::PolicyChanged);
            // The verdicts of the old rules arrive.
            for step in [Step::Authorise, Step::Recheck, Step::Connect, Step::Reserve, Step::Send] {
                host.release(step);
            }
        },
        &[
            // Its verdict is on its way; `an_old_verdict_does_not_start_a_call`.
            (&[At::Authorising, At::Rechecking], &[], &[]),
            (
                &[
                    At::AskingToJoin,
                    At::AwaitingReceipt,
                    At::AwaitingAbsence,
                    At::Joined,
                    At::ReadingAnswer,
                    At::AwaitingCaller,
                    At::Ordered,
                    At::Queued,
                ],
                denied,
                &[],
            ),
            (&[At::Parked], &["unpark a", "reply a: denied"], &[]),
            (&[At::Connecting], &["abort a", "reply a: denied"], &[]),
            (&[At::TaskShare], &["journal a: RESULT Failed denied, synced"], &[]),
            (&[At::Reserving], &["abort a", "journal a: RESULT Failed denied, synced"], &[]),
            (&[At::Accepting], &[], &["accepted a", "journal a: RESULT Failed denied, synced"]),
            (&[At::Starting], &[], &["journal a: RESULT Failed denied, written", "reply a: denied"]),
            (&[At::Ready], &["journal a: RESULT Failed denied, written", "reply a: denied"], &[]),
            // The server may have it.
            (&[At::Sending, At::Running, At::Cancelling], &[], &[]),
            (&[At::DeadLettering], &[], &["journal a: RESULT Failed poisoned after 1, synced"]),
            (&[At::Finishing], &[], &["reply a: done"]),
        ],
    );
}

#[test]
fn an_old_verdict_does_not_start_a_call() {
    for (at, expected) in [(At::Authorising, "reply a: denied"), (At::Rechecking, "reply a: denied")] {
        let mut host = host_at(at);
        host.denies = true;
        host.handle(Event::PolicyChanged);
        host.release(Step::Recheck);
        host.authorised("a");
        assert_eq!(host.seen(), [expected], "{at:?}");
    }
}

/// No call is lost, and none is sent twice.
#[test]
fn a_change_of_the_rules_that_allows_the_call_changes_nothing() {
    for at in [At::Queued, At::Connecting, At::Rechecking, At::Starting, At::Ready, At::Parked] {
        let mut host = host_at(at);
        for step in [Step::Recheck, Step::Connect, Step::Send] {
            host.release(step);
        }
        host.handle(Event::PolicyChanged);
        match at {
            At::Queued => host.answers("x", "done"),
            At::Connecting => host.connected("a"),
            At::Rechecking => host.authorised("a"),
            At::Ready => host.sent("x"),
            At::Parked => host.approved("a", Ok(())),
            _ => {}
        }
        host.synced();
        let seen = host.seen();
        assert_eq!(seen.iter().filter(|effect| *effect == "send a").count(), 1, "{at:?}: {seen:?}");
    }
}

#[test]
fn a_rule_that_requires_an_approval_meanwhile_refuses_the_call() {
    let mut host = Host::new();
    host.hold(Step::Connect);
    host.arrives(call("w#1", "a"));
    host.grant.ask = true;
    host.connected("a");
    host.expect(["connect a", "reply a: NeedsApproval"]);
    host.arrives(Request { continues: true, ..call("w#1", "b") });
    host.connected("b");
    host.expect(["connect b", "journal b: START 1, synced"]);
}

#[test]
fn the_next_attempt_of_a_call_is_authorised_again_after_a_change_of_the_rules() {
    let mut host = Host::new();
    host.running(crate::requests::replay_safe("w#1", "a"));
    host.hold(Step::Connect);
    host.hold(Step::Recheck);
    host.dies("a");
    host.handle(Event::PolicyChanged);
    host.expect(["connect a", "authorise a again"]);
    host.refused("a");
    host.expect(["abort a", "journal a: RESULT Failed denied, written", "reply a: denied"]);
}

fn limit(kind: &str, rate: Option<Rate>, concurrency: Option<u32>) -> Limit {
    Limit { kind: LimitKind::Role(kind.into()), rate, concurrency: concurrency.and_then(NonZeroU32::new) }
}

fn once_a_minute() -> Rate {
    Rate { count: NonZeroU32::MIN, per: Duration::from_secs(60) }
}

/// A host whose server is used up by the calls `x` and `y`.
fn busy() -> Host {
    let mut host = Host::with(|options| options.servers[0].max_concurrency = 2);
    for id in ["x", "y"] {
        host.running(call("w#1", id));
    }
    host
}

/// Lets `x` and `y` end, and returns the calls that are sent then.
fn sent_afterwards(mut host: Host) -> Vec<String> {
    host.answers("x", "done");
    host.answers("y", "done");
    host.synced();
    host.seen().into_iter().filter(|effect| effect.starts_with("send")).collect()
}

#[test]
fn calls_that_wait_for_permits_start_one_by_one_under_a_new_limit() {
    let mut host = busy();
    for id in ["a", "b"] {
        host.arrives(call("w#1", id));
    }
    host.grant.limits = vec![limit("r", None, Some(1))];
    host.handle(Event::PolicyChanged);
    assert_eq!(sent_afterwards(host), ["send a"]);
}

#[test]
fn a_call_that_holds_a_permit_and_waits_for_another_takes_both_once_under_a_new_limit() {
    let mut host = busy();
    host.grant.limits = vec![limit("r", None, Some(1))];
    host.arrives(call("w#1", "a"));
    host.grant.limits.push(limit("s", None, Some(1)));
    host.handle(Event::PolicyChanged);
    assert_eq!(sent_afterwards(host), ["send a"]);
}

#[test]
fn a_call_whose_limits_stay_the_same_keeps_its_place() {
    let mut host = busy();
    for id in ["a", "b"] {
        host.arrives(call("w#1", id));
    }
    host.hold(Step::Recheck);
    host.handle(Event::PolicyChanged);
    host.authorised("a");
    host.release(Step::Recheck);
    host.answers("x", "done");
    host.synced();
    assert!(host.seen().contains(&"send a".to_owned()));
}

#[test]
fn a_task_that_waits_for_permits_under_a_new_limit_keeps_its_share() {
    let mut host = busy();
    for id in ["a", "b"] {
        host.arrives(task("v#1", id));
        host.synced();
    }
    host.grant.limits = vec![limit("r", None, Some(5))];
    host.handle(Event::PolicyChanged);
    assert_eq!(sent_afterwards(host), ["send a"], "one task at a time");
}

/// Otherwise the first call would wait for the permit of the second one, which is sent after it.
#[test]
fn a_new_limit_does_not_take_permits_from_the_first_call_of_a_session() {
    let mut host = Host::with(|options| options.servers[0].max_concurrency = 2);
    host.hold(Step::Connect);
    for id in ["a", "b", "c"] {
        host.arrives(in_session(call("w#1", id)));
    }
    host.grant.limits = vec![limit("r", None, Some(1))];
    host.handle(Event::PolicyChanged);
    host.connected("b");
    host.connected("a");
    host.synced();
    let sent: Vec<String> = host.seen().into_iter().filter(|effect| effect.starts_with("send")).collect();
    assert_eq!(sent, ["send a", "send b"]);
}

#[test]
fn a_new_rate_counts_a_call_that_awaits_its_caller_when_it_goes_on() {
    let mut host = host_at(At::AwaitingCaller);
    host.grant.limits = vec![limit("r", Some(once_a_minute()), None)];
    host.handle(Event::PolicyChanged);
    host.followed("w#2", Some(true));
    host.expect(["journal a: START 1, synced"]);
}

#[test]
fn a_rate_counts_a_call_once_when_another_limit_is_added() {
    let mut host = busy();
    host.grant.limits = vec![limit("r", Some(once_a_minute()), None)];
    host.arrives(call("w#1", "a"));
    host.grant.limits.push(limit("s", None, Some(1)));
    host.handle(Event::PolicyChanged);
    assert_eq!(sent_afterwards(host), ["send a"]);
}

#[test]
fn a_new_rate_counts_a_call_that_waits_once() {
    let mut host = Host::new();
    host.grant.limits = vec![limit("r", None, Some(5))];
    host.hold(Step::Connect);
    for id in ["a", "b"] {
        host.arrives(call("w#1", id));
    }
    host.seen();
    host.grant.limits = vec![limit("r", Some(once_a_minute()), None)];
    host.release(Step::Connect);
    host.connected("a");
    host.connected("b");
    host.expect(["journal a: START 1, synced", "reply b: rate limited for 60s"]);
}

#[test]
fn a_new_time_limit_counts_from_the_first_authorisation() {
    let mut host = Host::new();
    host.hold(Step::Connect);
    host.arrives(call("w#1", "a"));
    host.passes(6_000);
    host.grant.time_limit = Some((5_000, "role".into()));
    host.connected("a");
    host.expect(["connect a", "reply a: time limit of role"]);
}

#[test]
fn a_refused_call_lets_its_session_go_on() {
    let mut host = Host::new();
    host.hold(Step::Send);
    for id in ["x", "a", "b"] {
        host.arrives(in_session(call("w#1", id)));
    }
    host.synced();
    host.seen();
    host.hold(Step::Recheck);
    host.handle(Event::PolicyChanged);
    host.expect(["authorise a again", "authorise b again"]);
    host.refused("a");
    host.authorised("b");
    host.seen();
    host.sent("x");
    host.expect(["send b"]);
}
