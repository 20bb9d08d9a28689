//! Cancellation and deadlines, before, while and after a call starts.

use crate::requests::{call, read, replay_safe, until};
use crate::states::{At, check};
use crate::support::{Host, Step};
use toolbus_call::{CancelBy, Cause, Event};

#[test]
fn a_cancelled_call_ends_at_once_unless_the_journal_or_its_server_has_to_report_first() {
    let cancelled = "journal a: RESULT Cancelled cancelled, synced";
    check(
        |host| host.cancels("a"),
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
                ],
                &[cancelled],
                &["reply a: cancelled"],
            ),
            (&[At::Parked], &["unpark a", cancelled], &["reply a: cancelled"]),
            (&[At::Connecting], &["abort a", cancelled], &["reply a: cancelled"]),
            (&[At::Accepting], &[], &["accepted a", cancelled]),
            (&[At::TaskShare], &[cancelled], &[]),
            (&[At::Reserving], &["abort a", cancelled], &[]),
            (&[At::Starting], &[], &["journal a: RESULT Cancelled cancelled, written", "reply a: cancelled"]),
            (&[At::Ready], &["journal a: RESULT Cancelled cancelled, written", "reply a: cancelled"], &[]),
            (&[At::Sending, At::Cancelling], &[], &[]),
            (&[At::Running], &["cancel a at its server"], &[]),
            (&[At::DeadLettering], &[], &["journal a: RESULT Failed poisoned after 1, synced"]),
            (&[At::Finishing], &[], &["reply a: done"]),
        ],
    );
}

#[test]
fn a_call_ends_at_its_deadline_and_does_not_run_later() {
    check(
        |host| host.passes(70_000),
        &[
            (
                &[
                    At::Authorising,
                    At::AskingToJoin,
                    At::AwaitingReceipt,
                    At::Joined,
                    At::ReadingAnswer,
                    At::AwaitingCaller,
                    At::Ordered,
                    At::Queued,
                    At::Rechecking,
                ],
                &["reply a: Expired"],
                &[],
            ),
            (&[At::AwaitingAbsence], &["inspect w#1", "reply a: Expired"], &[]),
            (&[At::Parked], &["unpark a, expired", "reply a: NotApproved"], &[]),
            (&[At::Connecting], &["abort a", "reply a: Expired"], &[]),
            (&[At::Starting], &[], &["journal a: RESULT Failed Expired, written", "reply a: Expired"]),
            (&[At::Ready], &["journal a: RESULT Failed Expired, written", "reply a: Expired"], &[]),
            (
                &[At::Running],
                &["cancel a at its server", "abort a", "journal a: RESULT Failed Expired, written", "reply a: Expired"],
                &[],
            ),
            (
                &[At::Cancelling],
                &["abort a", "journal a: RESULT Cancelled cancelled, written", "reply a: cancelled"],
                &[],
            ),
            (&[At::Sending], &["abort a", "journal a: RESULT Failed Expired, written", "reply a: Expired"], &[]),
            // An accepted task has its own lifetime, which here is a minute.
            (&[At::Accepting], &[], &["accepted a", "journal a: START 1, synced"]),
            (&[At::Reserving], &["abort a", "journal a: RESULT Failed Expired, synced"], &[]),
            (
                &[At::TaskShare],
                &[
                    "cancel x at its server",
                    "journal a: RESULT Failed Expired, synced",
                    "abort x",
                    "journal x: RESULT Failed Expired, synced",
                ],
                &[],
            ),
            (&[At::DeadLettering], &[], &["journal a: RESULT Failed poisoned after 1, synced"]),
            (&[At::Finishing], &[], &["reply a: done"]),
        ],
    );
}

#[test]
fn a_call_ends_when_its_agent_is_revoked_and_others_do_not() {
    let mut host = Host::new();
    host.hold(Step::Connect);
    host.arrives(call("w#1", "a"));
    host.arrives(call("w#2", "b"));
    host.arrives(call("wx#1", "c"));
    host.seen();
    host.handle(Event::Revoked { agent: "w".into() });
    let reason = "cancelled: the agent's credential was revoked";
    let result = format!("RESULT Cancelled {reason}, synced");
    host.expect(["abort a", &format!("journal a: {result}"), "abort b", &format!("journal b: {result}")]);
    host.synced();
    host.expect([&format!("reply a: {reason}"), &format!("reply b: {reason}")]);
}

#[test]
fn the_answer_of_a_server_to_a_cancelled_call_counts() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.cancels("a");
    host.answers("a", "done all the same");
    host.expect([
        "cancel a at its server",
        "journal a: RESULT Done done all the same, written",
        "reply a: done all the same",
    ]);
}

#[test]
fn a_server_has_a_second_to_answer_a_cancelled_call() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.cancels("a");
    host.passes(999);
    host.expect(["cancel a at its server"]);
    host.passes(1);
    host.expect(["abort a", "journal a: RESULT Cancelled cancelled, written", "reply a: cancelled"]);
}

#[test]
fn a_cancelled_call_whose_server_died_or_did_not_take_it_is_cancelled_and_not_repeated() {
    for end in [Host::dies, Host::not_taken] {
        let mut host = Host::new();
        host.running(replay_safe("w#1", "a"));
        host.cancels("a");
        end(&mut host, "a");
        host.expect([
            "cancel a at its server",
            "abort a",
            "journal a: RESULT Cancelled cancelled, written",
            "reply a: cancelled",
        ]);
    }
}

#[test]
fn a_call_that_is_cancelled_while_it_is_sent_is_cancelled_at_its_server() {
    let mut host = Host::new();
    host.hold(Step::Send);
    host.arrives(call("w#1", "a"));
    host.synced();
    host.cancels("a");
    host.expect(["journal a: START 1, synced", "send a"]);
    host.sent("a");
    host.expect(["cancel a at its server"]);
}

#[test]
fn a_call_that_is_cancelled_while_it_is_sent_is_not_tried_on_another_connection() {
    let mut host = Host::new();
    host.hold(Step::Send);
    host.arrives(replay_safe("w#1", "a"));
    host.cancels("a");
    host.seen();
    host.not_taken("a");
    host.expect(["abort a", "journal a: RESULT Cancelled cancelled, written", "reply a: cancelled"]);
    host.arrives(replay_safe("w#1", "b"));
    host.cancels("b");
    host.seen();
    host.dies("b");
    host.expect(["journal b: RESULT Failed died, written", "reply b: died"]);
}

#[test]
fn the_deadline_counts_while_start_is_synced_even_if_the_clock_is_late() {
    let mut host = Host::new();
    host.arrives(until(5_000, call("w#1", "a")));
    host.now = 5_000;
    host.synced();
    host.expect(["journal a: START 1, synced", "journal a: RESULT Failed Expired, written", "reply a: Expired"]);
}

#[test]
fn the_deadline_counts_right_before_start_even_if_the_clock_is_late() {
    for (now, expected) in [(4_999, "journal a: START 1, synced"), (5_000, "reply a: Expired")] {
        let mut host = Host::new();
        host.hold(Step::Recheck);
        host.arrives(until(5_000, call("w#1", "a")));
        host.now = now;
        host.authorised("a");
        host.expect(["authorise a again", expected]);
    }
}

#[test]
fn the_first_cancellation_counts() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.cancelled_for("a", Cause::Admin, Some("by bob"));
    host.cancels("a");
    host.expect(["cancel a at its server: by bob"]);
    host.passes(1_000);
    host.expect(["abort a", "journal a: RESULT Cancelled cancelled: by bob, written", "reply a: cancelled: by bob"]);
}

#[test]
fn a_cancellation_without_a_reason_is_called_cancelled() {
    let mut host = Host::new();
    host.arrives(read("w#1", "a"));
    host.cancelled_for("a", Cause::Admin, None);
    host.passes(1_000);
    host.expect(["send a", "cancel a at its server", "abort a", "reply a: cancelled: cancelled"]);
}

#[test]
fn a_cancel_of_the_broker_applies_to_the_one_call_with_the_id() {
    let by_broker = |id: &str| Event::CancelId { id: id.into(), by: CancelBy::Broker, reason: Some("gone".into()) };
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.handle(by_broker("a"));
    host.expect(["cancel a at its server: gone"]);
    host.running(call("w#1", "b"));
    host.running(call("v#1", "b"));
    host.handle(by_broker("b"));
    host.expect([]);
}

#[test]
fn a_cancel_of_the_broker_does_not_mean_an_ended_call_with_the_id() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.answers("a", "done");
    host.running(call("v#1", "a"));
    host.seen();
    host.handle(Event::CancelId { id: "a".into(), by: CancelBy::Broker, reason: None });
    host.expect(["cancel a at its server"]);
}

#[test]
fn only_its_caller_cancels_a_call_by_id() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.cancels_from("w#2", "a");
    host.expect([]);
    host.cancels_from("w#1", "a");
    host.expect(["cancel a at its server"]);
}

#[test]
fn of_many_cancels_without_a_call_the_latest_are_remembered() {
    let mut host = Host::new();
    let remembered = 32 << 10;
    for number in 0..=remembered {
        host.cancels_from("w#1", &format!("call-{number}"));
    }
    host.running(call("w#1", "call-0"));
    host.arrives(call("w#1", "call-1"));
    host.expect(["journal call-1: RESULT Cancelled cancelled, synced"]);
}

#[test]
fn a_cancel_of_a_call_that_was_refused_is_forgotten() {
    let mut host = Host::with(|options| options.max_calls = 1);
    host.running(call("v#1", "x"));
    host.arrives(call("w#1", "a"));
    host.expect(["reply a: TooManyCalls"]);
    host.cancels_from("w#1", "a");
    host.restarts();
    host.running(call("w#1", "a"));
}
