//! Attempts at the server: connection, START, the server's answer or death, and further attempts.

use crate::requests::{call, read, replay_safe};
use crate::states::{At, check};
use crate::support::{Host, Step};
use toolbus_call::{Event, PlantedBug, Request};
use toolbus_journal::End;

#[test]
fn a_request_is_sent_only_after_its_start_is_durable_and_a_replay_safe_one_at_once() {
    let mut host = Host::new();
    host.arrives(call("w#1", "a"));
    host.expect(["journal a: START 1, synced"]);
    host.synced();
    host.expect(["send a"]);
    host.arrives(replay_safe("w#1", "b"));
    host.expect(["journal b: START 1 replay-safe, written", "send b"]);
}

#[test]
fn a_request_that_no_connection_took_is_tried_on_another_one_with_the_same_start() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.not_taken("a");
    host.expect(["send a"]);
    host.not_taken("a");
    host.expect(["journal a: RESULT Failed not taken, written", "reply a: not taken"]);
}

#[test]
fn each_attempt_has_its_own_connections() {
    let mut host = Host::with(|options| options.max_connections = 2);
    host.running(replay_safe("w#1", "a"));
    host.not_taken("a");
    host.dies("a");
    host.not_taken("a");
    host.expect(["send a", "journal a: START 2 replay-safe, written", "send a", "send a"]);
}

#[test]
fn a_call_whose_server_died_fails_unless_it_is_replay_safe() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.dies("a");
    host.expect(["journal a: RESULT Failed died, written", "reply a: died"]);
    host.running(replay_safe("w#1", "b"));
    host.dies("b");
    host.expect(["journal b: START 2 replay-safe, written", "send b"]);
    host.died("b", false);
    host.expect(["journal b: RESULT Failed died, written", "reply b: died"]);
}

#[test]
fn a_call_that_used_up_its_attempts_is_dead_lettered_before_it_is_answered() {
    let mut host = Host::new();
    host.running(replay_safe("w#1", "a"));
    host.dies("a");
    host.dies("a");
    host.seen();
    host.dies("a");
    let history = [1, 2, 3].map(|attempt| format!("attempt {attempt}: exit code 1"));
    host.expect([&format!("journal a: DEAD 3 {history:?}, synced")]);
    host.synced();
    host.expect(["journal a: RESULT Failed poisoned after 3, synced"]);
    host.synced();
    host.expect(["reply a: poisoned after 3"]);
}

#[test]
fn the_attempts_of_an_earlier_process_are_in_the_history_of_a_dead_letter() {
    let mut host = Host::with(|options| options.max_attempts = 2);
    host.running(replay_safe("w#1", "a"));
    host.restarts();
    host.running(replay_safe("w#1", "a"));
    host.dies("a");
    let history = ["attempt 1: the host ended before the call was answered", "attempt 2: exit code 1"];
    host.expect([&format!("journal a: DEAD 2 {history:?}, synced")]);
}

#[test]
fn a_read_is_not_repeated_when_its_server_died() {
    let mut host = Host::new();
    host.arrives(Request { has_effect: false, ..replay_safe("w#1", "a") });
    host.dies("a");
    host.expect(["send a", "reply a: died"]);
}

#[test]
fn a_server_that_cannot_be_reached_is_reported_without_a_start() {
    let mut host = Host::new();
    host.hold(Step::Connect);
    host.arrives(call("w#1", "a"));
    host.unreachable("a");
    host.expect(["connect a", "reply a: unreachable"]);
    // The second attempt has the START of the first.
    host.arrives(replay_safe("w#1", "b"));
    host.connected("b");
    host.dies("b");
    host.unreachable("b");
    host.expect([
        "connect b",
        "journal b: START 1 replay-safe, written",
        "send b",
        "connect b",
        "journal b: RESULT Failed unreachable, written",
        "reply b: unreachable",
    ]);
}

#[test]
fn a_connection_that_is_not_open_in_time_is_given_up() {
    let mut host = Host::with(|options| options.wait_limit = 10_000);
    host.hold(Step::Connect);
    host.arrives(call("w#1", "a"));
    host.passes(9_999);
    host.expect(["connect a"]);
    host.passes(1);
    host.expect(["abort a", "reply a: Timeout"]);
}

#[test]
fn the_host_may_refuse_a_request_until_it_is_answered() {
    for step in [Step::Connect, Step::Recheck, Step::Send] {
        let mut host = Host::new();
        host.hold(step);
        host.arrives(read("w#1", "a"));
        host.seen();
        host.handle(Event::Refused { call: host.no("a"), answer: "no session" });
        host.expect(["reply a: no session"]);
    }
    let mut host = Host::new();
    host.hold(Step::Authorise);
    host.arrives(read("w#1", "a"));
    host.handle(Event::Refused { call: host.no("a"), answer: "no session" });
    host.expect(["authorise a"]);
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.handle(Event::Refused { call: host.no("a"), answer: "no session" });
    host.expect(["journal a: RESULT Failed no session, written", "reply a: no session"]);
}

#[test]
fn a_server_that_does_not_answer_in_time_gets_a_cancel_and_the_caller_an_error() {
    let mut host = Host::new();
    host.running(Request { timeout: Some(5_000), ..call("w#1", "a") });
    host.passes(4_999);
    host.expect([]);
    host.passes(1);
    host.expect([
        "cancel a at its server: the call exceeded its time limit",
        "journal a: RESULT Failed Timeout, written",
        "reply a: Timeout",
    ]);
}

#[test]
fn an_error_of_the_server_is_an_answer() {
    let mut host = Host::new();
    host.running(replay_safe("w#1", "a"));
    host.handle(Event::Answered { call: host.no("a"), answer: "bad arguments", end: End::Failed });
    host.expect(["journal a: RESULT Failed bad arguments, written", "reply a: bad arguments"]);
}

#[test]
fn a_call_whose_code_panicked_never_runs_again() {
    let crashed = "journal a: RESULT Unknown Crashed, synced";
    check(
        |host| host.crashes("a"),
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
                    At::Ordered,
                    At::Queued,
                    At::Rechecking,
                    At::Starting,
                    At::Ready,
                ],
                &[crashed],
                &["reply a: Crashed"],
            ),
            (&[At::Connecting, At::Sending, At::Running, At::Cancelling], &["abort a", crashed], &["reply a: Crashed"]),
            (&[At::Parked], &["unpark a", crashed], &["reply a: Crashed"]),
            // A redelivered request would be answered with the accepted task.
            (&[At::Accepting], &[], &["accepted a", crashed]),
            // The acceptance may not have been sent.
            (&[At::TaskShare], &["accepted a", crashed], &[]),
            (&[At::Reserving], &["accepted a", "abort a", crashed], &[]),
            // The answer is on its way.
            (&[At::DeadLettering], &[], &["journal a: RESULT Failed poisoned after 1, synced"]),
            (&[At::Finishing], &[], &["reply a: done"]),
        ],
    );
}

#[test]
fn a_read_whose_code_panicked_leaves_no_record() {
    let mut host = Host::new();
    host.arrives(read("w#1", "a"));
    host.crashes("a");
    host.expect(["send a", "abort a", "reply a: Crashed"]);
}

#[test]
fn a_call_that_a_bug_would_send_without_its_start_ends_with_an_error_and_is_not_sent() {
    let mut host = Host::with(|options| options.planted = Some(PlantedBug::StartSkipped));
    host.arrives(call("w#1", "a"));
    host.synced();
    let broken = "BrokenInvariant(\"no request is sent before its START is written\")";
    host.expect([&*format!("journal a: RESULT Unknown {broken}, synced"), &*format!("reply a: {broken}")]);
}

#[test]
fn a_connection_that_does_not_take_the_request_is_not_awaited_forever() {
    for (timeout, limit) in [(None, 10_000), (Some(3_000), 3_000), (Some(20_000), 10_000)] {
        let mut host = Host::with(|options| options.wait_limit = 10_000);
        host.hold(Step::Send);
        host.arrives(Request { timeout, ..call("w#1", "a") });
        host.synced();
        host.seen();
        host.passes(limit - 1);
        host.expect([]);
        host.passes(1);
        host.expect(["abort a", "journal a: RESULT Failed Timeout, written", "reply a: Timeout"]);
    }
}

#[test]
fn a_cancelled_call_waits_only_a_little_for_the_connection_to_take_it() {
    let mut host = Host::new();
    host.hold(Step::Send);
    host.arrives(call("w#1", "a"));
    host.synced();
    host.seen();
    host.cancels("a");
    host.passes(999);
    host.expect([]);
    host.passes(1);
    host.expect(["abort a", "journal a: RESULT Cancelled cancelled, written", "reply a: cancelled"]);
}
