//! Calls whose callers stay disconnected are cancelled after a grace time, unless other calls wait for them.

use crate::requests::{call, equal, task};
use crate::support::Host;
use toolbus_call::Inspected;

/// Callers are checked every 30 seconds.
fn host() -> Host {
    Host::with(|options| options.caller_grace = Some(120_000))
}

/// The next check, at which these callers are connected or not.
fn checked(host: &mut Host, connected: &[bool]) {
    host.passes(30_000);
    host.inspected(connected, &[]);
}

#[test]
fn a_call_is_cancelled_when_its_caller_was_absent_for_the_grace() {
    let mut host = host();
    host.running(call("w#1", "a"));
    host.running(call("w#2", "b"));
    for _ in 0..4 {
        checked(&mut host, &[false, true]);
        host.expect(["inspect w#1 w#2"]);
    }
    checked(&mut host, &[false, true]);
    host.expect(["inspect w#1 w#2", "cancel a at its server: the caller is gone"]);
    host.passes(1_000);
    host.expect(["abort a", "journal a: RESULT Failed CallerGone, written", "reply a: CallerGone"]);
}

#[test]
fn an_answer_that_the_broker_could_not_give_starts_the_grace_again() {
    for unusable in [None, Some(Inspected::default())] {
        let mut host = host();
        host.running(call("w#1", "a"));
        (0..4).for_each(|_| checked(&mut host, &[false]));
        host.passes(30_000);
        host.broker_answers(unusable);
        host.seen();
        (0..4).for_each(|_| checked(&mut host, &[false]));
        host.expect(["inspect w#1"; 4]);
        checked(&mut host, &[false]);
        host.expect(["inspect w#1", "cancel a at its server: the caller is gone"]);
    }
}

#[test]
fn a_call_for_whose_answer_another_one_waits_lives() {
    let mut host = host();
    host.running(equal("w#1", "a"));
    host.arrives(equal("w#2", "b"));
    host.inspected(&[false], &[]);
    host.passes(2_000);
    host.inspected(&[false], &[]);
    host.seen();
    (0..6).for_each(|_| checked(&mut host, &[false, true]));
    host.expect(["inspect w#1 w#2"; 6]);
    assert_eq!(host.machine.view(host.no("a")).expect("in progress").joiners, 1);
    // The grace of its caller is over, so it ends when the other call stops waiting.
    host.cancels("b");
    host.synced();
    host.seen();
    checked(&mut host, &[false]);
    host.expect(["inspect w#1", "cancel a at its server: the caller is gone"]);
}

#[test]
fn the_callers_of_accepted_tasks_are_not_checked() {
    let mut host = Host::with(|options| options.caller_grace = Some(4_000));
    host.arrives(task("w#1", "a"));
    host.synced();
    host.synced();
    host.seen();
    host.passes(40_000);
    host.expect([]);
    assert!(host.has("a"));
}

#[test]
fn callers_are_asked_for_only_while_there_are_calls_and_at_most_once_a_second() {
    let mut host = Host::with(|options| options.caller_grace = Some(1_000));
    assert_eq!(host.machine.next_wake(), None);
    host.running(call("w#1", "a"));
    assert_eq!(host.machine.next_wake(), Some(2_000));
    host.passes(3_000);
    host.expect(["inspect w#1"; 3]);
    host.answers("a", "done");
    assert_eq!(host.machine.next_wake(), None);
}

#[test]
fn without_a_grace_calls_live_until_their_deadline() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.passes(1_000_000);
    host.expect([]);
    assert_eq!(host.machine.next_wake(), None);
}
