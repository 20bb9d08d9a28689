//! What the journal knows about a request decides whether it runs, or how it is answered instead.

use crate::requests::{call, read, replay_safe, resumed, task};
use crate::support::{Host, Step, key};
use toolbus_base::Share;
use toolbus_call::{CancelBy, Effects, Event, Now, Origin, ReplaySetting, Request, Stage};

fn delivered(delivery: u32, unsure: bool, request: Request) -> Request {
    Request { origin: Origin::Mailbox { delivery, unsure }, ..request }
}

#[test]
fn a_call_is_authorised_connected_authorised_again_started_sent_and_answered() {
    let mut host = Host::new();
    [Step::Authorise, Step::Recheck, Step::Connect, Step::Send].into_iter().for_each(|step| host.hold(step));
    host.arrives(call("w#1", "a"));
    host.expect(["authorise a"]);
    host.authorised("a");
    host.expect(["connect a"]);
    host.connected("a");
    host.expect(["authorise a again"]);
    host.authorised("a");
    host.expect(["journal a: START 1, synced"]);
    host.synced();
    host.expect(["send a"]);
    assert_eq!(host.machine.view(host.no("a")).expect("in progress").stage, Stage::Running);
    host.sent("a");
    host.expect([]);
    host.answers("a", "done");
    host.expect(["journal a: RESULT Done done, written", "reply a: done"]);
    assert!(host.machine.is_empty() && host.machine.next_wake().is_none());
}

#[test]
fn an_event_without_consequences_has_no_effects() {
    let mut host = Host::new();
    for (event, is_empty) in [(Event::Arrived(Box::new(call("w#1", "a"))), false), (Event::Tick, true)] {
        let mut effects = Effects::default();
        host.machine.handle(Now { ms: 0, wall: 0 }, event, host.journal.index(), &mut effects);
        assert_eq!(effects.is_empty(), is_empty);
    }
}

#[test]
fn another_delivery_of_a_call_in_progress_does_not_run() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.arrives(delivered(2, false, call("w#1", "a")));
    host.expect(["redelivered a"]);
    host.answers("a", "done");
    host.expect(["journal a: RESULT Done done, written", "reply a: done"]);
}

#[test]
fn the_same_id_of_another_caller_is_another_call() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    let first = host.no("a");
    host.running(call("v#1", "a"));
    assert_ne!(host.no("a"), first);
    let found: Vec<_> = host.machine.find("a").iter().map(|view| view.key.caller.to_string()).collect();
    assert_eq!(found, ["w#1", "v#1"]);
    assert_eq!((host.machine.find("b").len(), host.machine.len()), (0, 2));
    host.answers("a", "done");
    assert_eq!(host.machine.find("a").len(), 1);
}

#[test]
fn an_answered_call_gets_the_same_reply_again_before_and_after_a_restart() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.answers("a", "done");
    host.seen();
    host.arrives(call("w#1", "a"));
    host.expect(["resend a reply-1"]);
    host.restarts();
    host.arrives(delivered(2, true, call("w#1", "a")));
    host.expect(["resend a reply-1"]);
    assert!(host.machine.is_empty());
}

#[test]
fn an_id_that_is_known_with_other_content_is_refused() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.answers("a", "done");
    host.seen();
    host.arrives(Request { content: [9; 32], ..call("w#1", "a") });
    host.expect(["reply a: id conflict with write"]);
    host.running(Request { content: [9; 32], ..call("w#2", "a") });
}

#[test]
fn the_outcome_of_an_interrupted_call_is_unknown_and_stays_so() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.restarts();
    host.arrives(delivered(2, false, call("w#1", "a")));
    host.expect(["journal a: RESULT Unknown outcome of attempt 1 of a unknown, synced"]);
    host.synced();
    host.expect(["reply a: outcome of attempt 1 of a unknown"]);
    host.arrives(call("w#1", "a"));
    host.expect(["resend a reply-1"]);
}

#[test]
fn a_call_whose_start_was_lost_with_the_process_runs() {
    let mut host = Host::new();
    host.arrives(call("w#1", "a"));
    host.expect(["journal a: START 1, synced"]);
    host.restarts();
    host.running(delivered(2, false, call("w#1", "a")));
}

#[test]
fn a_call_that_an_earlier_host_of_this_process_left_running_is_interrupted() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.machine = toolbus_call::CallMachine::new(toolbus_call::MachineOptions::default());
    host.arrives(call("w#1", "a"));
    host.expect(["journal a: RESULT Unknown outcome of attempt 1 of a unknown, synced"]);
}

#[test]
fn an_interrupted_replay_safe_call_runs_again_until_its_attempts_are_used_up() {
    let mut host = Host::new();
    for attempt in 1..=3 {
        host.arrives(replay_safe("w#1", "a"));
        host.expect([&format!("journal a: START {attempt} replay-safe, written"), "send a"]);
        host.restarts();
    }
    host.arrives(replay_safe("w#1", "a"));
    let history = [1, 2, 3]
        .map(|attempt| format!("attempt {attempt}: the server or the host ended before the call was answered"));
    host.expect([&format!("journal a: DEAD 3 {history:?}, synced")]);
    host.synced();
    host.expect(["journal a: RESULT Failed poisoned after 3, synced"]);
    host.synced();
    host.expect(["reply a: poisoned after 3"]);
}

#[test]
fn a_call_that_was_dead_lettered_before_the_host_ended_is_not_dead_lettered_again() {
    let mut host = Host::with(|options| options.max_attempts = 1);
    host.running(replay_safe("w#1", "a"));
    host.dies("a");
    host.synced();
    host.expect([
        "journal a: DEAD 1 [\"attempt 1: exit code 1\"], synced",
        "journal a: RESULT Failed poisoned after 1, synced",
    ]);
    host.restarts();
    host.arrives(replay_safe("w#1", "a"));
    host.expect(["journal a: RESULT Failed poisoned after 1, synced"]);
    host.synced();
    host.expect(["reply a: poisoned after 1"]);
    // The dead letter of another caller with the same id is not its own.
    host.arrives(replay_safe("w#2", "a"));
    host.expect(["journal a: START 1 replay-safe, written", "send a"]);
}

#[test]
fn while_annotations_are_unknown_a_call_is_as_replay_safe_as_when_it_was_started() {
    for (was, expected) in [
        (ReplaySetting::Safe, "journal a: START 2 replay-safe, written"),
        (ReplaySetting::Never, "journal a: RESULT Unknown outcome of attempt 1 of a unknown, synced"),
    ] {
        let mut host = Host::new();
        host.running(Request { replay: was, ..call("w#1", "a") });
        host.restarts();
        host.arrives(Request { replay: ReplaySetting::AsStarted, ..call("w#1", "a") });
        assert_eq!(host.seen()[0], expected);
    }
}

#[test]
fn annotations_that_become_known_before_the_start_count() {
    let mut host = Host::new();
    host.hold(Step::Recheck);
    host.arrives(Request { replay: ReplaySetting::AsStarted, ..call("w#1", "a") });
    let grant = toolbus_call::Grant { replay: ReplaySetting::Safe, ..Default::default() };
    host.handle(Event::Authorised { call: host.no("a"), verdict: Ok(grant) });
    host.expect(["authorise a again", "journal a: START 1 replay-safe, written", "send a"]);
}

#[test]
fn a_call_that_another_journal_may_have_started_does_not_run_unless_it_is_replay_safe() {
    let mut host = Host::new();
    host.arrives(delivered(1, true, call("w#1", "a")));
    host.expect(["journal a: RESULT Unknown outcome of attempt 1 of a unknown, synced"]);
    host.arrives(delivered(4, true, call("w#1", "b")));
    host.expect(["journal b: RESULT Unknown outcome of attempt 3 of b unknown, synced"]);
    host.synced();
    host.seen();
    host.running(delivered(1, true, replay_safe("w#1", "c")));
}

#[test]
fn after_damage_to_the_journal_only_first_deliveries_run() {
    let mut host = Host::with(|options| options.journal_damaged = true);
    host.running(delivered(1, false, call("w#1", "a")));
    host.arrives(delivered(2, false, call("w#1", "b")));
    host.expect(["journal b: RESULT Unknown outcome of attempt 1 of b unknown, synced"]);
    let mut host = Host::new();
    host.running(delivered(2, false, call("w#1", "b")));
}

#[test]
fn after_damage_to_the_journal_an_accepted_task_does_not_run_because_its_start_may_be_lost() {
    for is_damaged in [false, true] {
        let mut host = Host::with(|options| options.journal_damaged = is_damaged);
        host.hold(Step::Reserve);
        host.arrives(task("w#1", "a"));
        host.synced();
        host.restarts();
        host.arrives(resumed(task("w#1", "a")));
        let unknown = "journal a: RESULT Unknown outcome of attempt 1 of a unknown, synced";
        host.expect([if is_damaged { unknown } else { "reserve a" }]);
    }
}

#[test]
fn a_refused_call_does_not_run_when_it_is_delivered_again() {
    let mut host = Host::new();
    host.hold(Step::Authorise);
    host.arrives(call("w#1", "a"));
    host.refused("a");
    host.expect(["authorise a", "reply a: denied"]);
    host.arrives(delivered(2, false, call("w#1", "a")));
    host.expect(["ignored"]);
    host.arrives(call("w#2", "a"));
    host.expect(["authorise a"]);
}

#[test]
fn a_read_is_answered_every_time() {
    let mut host = Host::new();
    for _ in 0..2 {
        host.arrives(read("w#1", "a"));
        host.answers("a", "tools");
        host.expect(["send a", "reply a: tools"]);
    }
    assert!(host.journal.index().is_empty());
}

#[test]
fn a_cancel_that_arrives_before_its_call_is_applied_to_it() {
    let mut host = Host::new();
    host.cancels_from("w#1", "a");
    host.arrives(call("w#2", "a"));
    host.expect(["journal a: START 1, synced"]);
    host.hold(Step::Authorise);
    host.arrives(call("w#1", "a"));
    host.expect(["authorise a", "journal a: RESULT Cancelled cancelled, synced"]);
}

#[test]
fn a_cancel_without_a_caller_that_arrives_before_its_call_cancels_no_other_callers_call() {
    let mut host = Host::new();
    host.handle(Event::CancelId { id: "a".into(), by: CancelBy::Broker, reason: None });
    host.running(call("w#1", "a"));
}

#[test]
fn a_refused_request_is_decided_again_or_acknowledged_depending_on_whether_its_reply_reached_the_broker() {
    let mut host = Host::with(|options| options.max_calls = 1);
    host.running(call("v#1", "x"));
    host.arrives(call("w#1", "a"));
    host.arrives(call("w#1", "a"));
    host.expect(["reply a: TooManyCalls", "ignored"]);
    host.handle(Event::ReplySettled { key: key("w#1", "a"), refused: true });
    host.arrives(call("w#1", "a"));
    host.expect(["reply a: TooManyCalls"]);
    host.handle(Event::ReplySettled { key: key("w#1", "a"), refused: false });
    host.arrives(call("w#1", "a"));
    host.expect(["acknowledged"]);
}

#[test]
fn an_agent_has_its_share_of_the_calls_and_leaves_room_for_others() {
    let mut host = Host::with(|options| options.max_calls = 8);
    host.running(call("a#1", "a1"));
    host.running(call("a#2", "a2"));
    host.arrives(call("a#3", "a3"));
    host.expect(["reply a3: TooManyCalls"]);
    for (caller, id) in [("b", "b1"), ("c", "c1"), ("d", "d1"), ("e", "e1"), ("f", "f1"), ("g", "g1")] {
        host.running(call(caller, id));
    }
    host.arrives(call("h", "h1"));
    host.expect(["reply h1: TooManyCalls"]);
    host.answers("a1", "done");
    host.seen();
    host.running(call("h", "h2"));
}

#[test]
fn the_share_of_a_role_can_be_set() {
    let mut host = Host::with(|options| options.max_calls = 2);
    let all = |id| Request { share: Share::percent(100), ..call("a", id) };
    host.running(all("a1"));
    host.running(all("a2"));
}

#[test]
fn a_small_limit_allows_every_agent_one_call() {
    let mut host = Host::with(|options| options.max_calls = 2);
    host.running(call("a", "a1"));
    host.arrives(call("a", "a2"));
    host.expect(["reply a2: TooManyCalls"]);
    host.running(call("b", "b1"));
}

#[test]
fn the_limit_on_calls_applies_only_to_calls_that_the_journal_does_not_know() {
    let mut host = Host::with(|options| options.max_calls = 1);
    host.running(call("w#1", "started"));
    host.arrives(task("w#1", "accepted"));
    host.expect(["reply accepted: TooManyCalls"]);
    host.restarts();
    host.running(call("v#1", "x"));
    host.arrives(call("w#1", "started"));
    host.expect(["journal started: RESULT Unknown outcome of attempt 1 of started unknown, synced"]);
    host.arrives(resumed(task("w#1", "resumed")));
    host.expect(["journal resumed: START 1, synced"]);
}
