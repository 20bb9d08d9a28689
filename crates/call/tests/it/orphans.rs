//! Calls whose callers stay disconnected are cancelled after a grace time, unless other calls wait for them. The broker
//! reports when a caller disconnects or returns.

use crate::requests::{call, equal, task};
use crate::support::Host;

const GRACE: u64 = 120_000;

fn host() -> Host {
    Host::with(|options| options.caller_grace = Some(GRACE))
}

#[test]
fn a_call_is_cancelled_when_its_caller_was_absent_for_the_grace() {
    let mut host = host();
    host.running(call("w#1", "a"));
    host.running(call("w#2", "b"));
    host.passes(1_000);
    host.expect(["follow w#1", "follow w#2"]);
    host.followed("w#1", Some(false));
    host.followed("w#2", Some(true));
    host.passes(GRACE - 1);
    host.expect([]);
    host.passes(1);
    host.expect(["cancel a at its server: the caller is gone"]);
    host.passes(1_000);
    host.expect(["abort a", "journal a: RESULT Failed CallerGone, written", "reply a: CallerGone", "unfollow w#1"]);
    assert_eq!(host.machine.next_wake(), None, "no question is repeated");
}

#[test]
fn a_caller_that_returns_gets_a_new_grace() {
    for back in [Some(true), None] {
        let mut host = host();
        host.running(call("w#1", "a"));
        host.passes(1_000);
        host.followed("w#1", Some(false));
        host.passes(GRACE - 1);
        host.followed("w#1", back);
        host.passes(GRACE);
        host.followed("w#1", Some(false));
        host.passes(GRACE - 1);
        host.expect(["follow w#1"]);
        host.passes(1);
        host.expect(["cancel a at its server: the caller is gone"]);
    }
}

#[test]
fn a_repeated_report_does_not_extend_the_grace() {
    let mut host = host();
    host.running(call("w#1", "a"));
    host.passes(1_000);
    host.followed("w#1", Some(false));
    host.passes(GRACE - 1);
    host.followed("w#1", Some(false));
    host.passes(1);
    host.expect(["follow w#1", "cancel a at its server: the caller is gone"]);
}

#[test]
fn a_call_for_whose_answer_another_one_waits_lives_and_gets_a_new_grace_afterwards() {
    let mut host = host();
    host.running(equal("w#1", "a"));
    host.arrives(equal("w#2", "b"));
    host.inspected(&[false], &[]);
    host.passes(2_000);
    host.inspected(&[false], &[]);
    host.followed("w#1", Some(false));
    host.seen();
    host.passes(2 * GRACE);
    host.expect([]);
    assert_eq!(host.machine.view(host.no("a")).expect("in progress").joiners, 1);
    host.cancels("b");
    host.synced();
    host.seen();
    host.passes(GRACE - 1);
    host.expect([]);
    host.passes(1);
    host.expect(["cancel a at its server: the caller is gone"]);
}

#[test]
fn a_caller_is_followed_once_while_it_has_calls_that_take_a_while() {
    let mut host = host();
    host.running(call("w#1", "a"));
    host.running(call("w#1", "b"));
    host.passes(999);
    host.answers("b", "done");
    host.seen();
    host.running(call("w#1", "c"));
    host.passes(1_000);
    host.expect(["follow w#1"]);
    host.answers("a", "done");
    host.seen();
    host.followed("w#1", Some(false));
    host.answers("c", "done");
    assert_eq!(host.seen().last().map(String::as_str), Some("unfollow w#1"));
    assert!(host.machine.is_empty());
    // A report that was on its way.
    host.followed("w#1", Some(true));
    host.expect([]);
}

#[test]
fn a_call_of_a_caller_that_is_known_to_be_absent_gets_a_whole_grace() {
    let mut host = host();
    host.running(call("w#1", "a"));
    host.passes(1_000);
    host.followed("w#1", Some(false));
    host.passes(GRACE - 2_000);
    host.running(call("w#1", "b"));
    host.passes(2_000);
    host.expect(["cancel a at its server: the caller is gone"]);
    host.passes(GRACE - 1_001);
    assert!(!host.seen().iter().any(|effect| effect.starts_with("cancel b")));
    host.passes(1);
    host.expect(["cancel b at its server: the caller is gone"]);
}

#[test]
fn the_callers_of_accepted_tasks_are_not_followed() {
    let mut host = Host::with(|options| options.caller_grace = Some(4_000));
    host.arrives(task("w#1", "a"));
    host.passes(1_000);
    host.synced();
    host.synced();
    host.seen();
    host.passes(40_000);
    host.expect([]);
    assert!(host.has("a"));
}

#[test]
fn without_a_grace_calls_live_until_their_deadline() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.passes(1_000_000);
    host.expect([]);
    assert_eq!(host.machine.next_wake(), None);
}
