//! Shutdown: no call starts any more, running calls may end, and servers are closed.

use crate::requests::{call, read, replay_safe, resumed, task};
use crate::states::{At, check};
use crate::support::{Host, Step};
use toolbus_call::{Event, Request};

#[test]
fn calls_that_were_not_started_are_left_to_the_next_host() {
    check(
        |host| host.handle(Event::Drain),
        &[
            (
                &[
                    At::Authorising,
                    At::AskingToJoin,
                    At::AwaitingReceipt,
                    At::AwaitingAbsence,
                    At::Joined,
                    At::ReadingAnswer,
                    At::AwaitingCaller,
                    At::TaskShare,
                    At::Queued,
                    At::Rechecking,
                ],
                &["left a"],
                &[],
            ),
            (&[At::Ordered], &["left x", "left a"], &[]),
            (&[At::Parked], &["unpark a", "left a"], &[]),
            (&[At::Reserving, At::Connecting], &["abort a", "left a"], &[]),
            (&[At::Accepting], &[], &["accepted a", "left a"]),
            (&[At::Starting], &[], &["send a"]),
            (&[At::Ready, At::Sending, At::Running, At::Cancelling], &[], &[]),
            (&[At::DeadLettering], &[], &["journal a: RESULT Failed poisoned after 1, synced"]),
            (&[At::Finishing], &[], &["reply a: done"]),
        ],
    );
}

#[test]
fn during_a_drain_running_calls_end_and_new_ones_are_left() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.handle(Event::Drain);
    host.arrives(call("w#1", "b"));
    host.arrives(read("w#1", "c"));
    host.arrives(task("w#1", "d"));
    host.expect(["left b", "left c", "left d"]);
    host.answers("a", "done");
    host.expect(["journal a: RESULT Done done, written", "reply a: done"]);
    host.arrives(call("w#1", "a"));
    host.expect(["resend a reply-1"]);
}

#[test]
fn a_pool_gets_back_what_was_not_started_and_it_never_runs_here() {
    let pooled = |id| Request { hands_back: true, ..call("w#1", id) };
    let mut host = Host::new();
    host.running(pooled("a"));
    host.handle(Event::Drain);
    host.arrives(pooled("b"));
    host.expect(["journal b: RESULT Cancelled handed back, synced"]);
    host.synced();
    host.expect(["reply b: handed back"]);
    host.arrives(Request { hands_back: true, ..read("w#1", "c") });
    host.expect(["reply c: handed back"]);
    host.arrives(Request { continues: true, ..pooled("d") });
    host.arrives(Request { hands_back: true, ..task("w#1", "e") });
    host.expect(["left d", "left e"]);
    host.answers("a", "done");
    host.expect(["journal a: RESULT Done done, written", "reply a: done"]);
    // The broker lost the acknowledgement: the next process answers the same and runs nothing.
    host.restarts();
    host.arrives(pooled("b"));
    host.expect(["resend b reply-1"]);
}

#[test]
fn a_pool_gets_back_a_call_that_it_withdrew_before_its_start() {
    let pooled = |id| Request { hands_back: true, ..call("w#1", id) };
    let mut host = Host::new();
    host.running(pooled("a"));
    host.hold(Step::Connect);
    host.arrives(pooled("b"));
    host.seen();
    host.cancels("b");
    host.expect(["abort b", "journal b: RESULT Cancelled handed back, synced"]);
    host.synced();
    host.expect(["reply b: handed back"]);
    host.cancels("a");
    assert!(host.seen().iter().all(|seen| !seen.contains("handed back")), "it has begun");
}

#[test]
fn a_started_call_is_handed_back_only_if_it_may_run_twice() {
    let mut host = Host::new();
    host.running(Request { hands_back: true, ..replay_safe("w#1", "a") });
    host.running(Request { hands_back: true, ..call("w#1", "b") });
    host.handle(Event::Drain);
    host.handle(Event::Shutdown);
    host.dies("a");
    host.dies("b");
    host.expect([
        "abort a",
        "journal a: RESULT Cancelled handed back, written",
        "reply a: handed back",
        "journal b: RESULT Unknown outcome of attempt 1 of b unknown, written",
        "reply b: outcome of attempt 1 of b unknown",
    ]);
}

#[test]
fn a_call_that_was_left_runs_at_the_next_host() {
    let mut host = Host::new();
    host.handle(Event::Drain);
    host.arrives(call("w#1", "a"));
    host.restarts();
    host.running(call("w#1", "a"));
}

#[test]
fn the_next_attempt_of_a_call_is_left_to_the_next_host_during_a_drain() {
    let mut host = Host::new();
    host.running(replay_safe("w#1", "a"));
    host.handle(Event::Drain);
    host.dies("a");
    host.expect(["abort a", "left a"]);
    let mut host = Host::new();
    host.running(replay_safe("w#1", "a"));
    host.hold(Step::Connect);
    host.dies("a");
    host.handle(Event::Drain);
    host.expect(["connect a", "abort a", "left a"]);
    let mut host = Host::new();
    host.running(replay_safe("w#1", "a"));
    host.restarts();
    host.handle(Event::Drain);
    host.arrives(replay_safe("w#1", "a"));
    host.expect(["left a"]);
}

#[test]
fn a_request_with_a_start_may_try_another_connection_during_a_drain() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.handle(Event::Drain);
    host.not_taken("a");
    host.expect(["send a"]);
}

#[test]
fn a_read_that_its_server_has_is_awaited_and_another_is_left() {
    for (step, expected) in [(Step::Send, &[][..]), (Step::Connect, &["abort a", "left a"])] {
        let mut host = Host::new();
        host.hold(step);
        host.arrives(read("w#1", "a"));
        host.seen();
        host.handle(Event::Drain);
        assert_eq!(host.seen(), expected);
    }
    let mut host = Host::new();
    host.arrives(read("w#1", "a"));
    host.handle(Event::Drain);
    host.cancels("a");
    host.handle(Event::Drain);
    host.expect(["send a", "cancel a at its server"]);
}

#[test]
fn a_call_that_ends_with_its_server_is_left_if_it_may_run_again_and_unknown_otherwise() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.running(replay_safe("w#1", "b"));
    host.arrives(read("w#1", "c"));
    host.arrives(task("w#1", "d"));
    host.synced();
    host.synced();
    host.handle(Event::Drain);
    host.handle(Event::Shutdown);
    host.seen();
    host.dies("a");
    host.expect([
        "journal a: RESULT Unknown outcome of attempt 1 of a unknown, written",
        "reply a: outcome of attempt 1 of a unknown",
    ]);
    for id in ["b", "c", "d"] {
        host.dies(id);
    }
    host.expect(["abort b", "left b", "abort c", "left c", "abort d", "left d"]);
    assert!(host.machine.is_empty());
    host.restarts();
    host.arrives(replay_safe("w#1", "b"));
    host.expect(["journal b: START 2 replay-safe, written", "send b"]);
    host.arrives(resumed(task("w#1", "d")));
    host.expect(["journal d: RESULT Unknown outcome of attempt 1 of d unknown, synced"]);
}

#[test]
fn at_shutdown_a_request_that_was_not_taken_fails_and_one_without_a_connection_is_left() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.hold(Step::Connect);
    host.arrives(call("w#1", "b"));
    host.handle(Event::Shutdown);
    host.seen();
    host.not_taken("a");
    host.expect(["journal a: RESULT Failed not taken, written", "reply a: not taken"]);
    host.unreachable("b");
    host.expect(["abort b", "left b"]);
}
