//! Session order, and concurrency limits with their release.

use crate::requests::{call, equal, in_session, initialize, read, session, task};
use crate::support::{Host, Step};
use std::num::NonZeroU32;
use toolbus_call::{Event, Limit, NotificationNo, Request};
use toolbus_policy::LimitKind;

fn host_for(max_concurrency: usize) -> Host {
    Host::with(|options| options.servers[0].max_concurrency = max_concurrency)
}

#[test]
fn calls_above_the_limit_of_a_server_wait_for_their_turn() {
    let mut host = host_for(2);
    for id in ["a", "b"] {
        host.running(call("w#1", id));
    }
    for id in ["c", "d"] {
        host.arrives(call("w#1", id));
    }
    host.expect([]);
    host.answers("b", "done");
    host.expect(["journal b: RESULT Done done, written", "reply b: done", "journal c: START 1, synced"]);
    host.answers("a", "done");
    host.expect(["journal a: RESULT Done done, written", "reply a: done", "journal d: START 1, synced"]);
}

#[test]
fn a_call_that_stops_waiting_gives_its_turn_to_the_next() {
    let mut host = host_for(1);
    host.running(call("w#1", "a"));
    for id in ["b", "c"] {
        host.arrives(call("w#1", id));
    }
    host.refused("b");
    host.expect(["reply b: denied"]);
    host.answers("a", "done");
    host.expect(["journal a: RESULT Done done, written", "reply a: done", "journal c: START 1, synced"]);
}

#[test]
fn requests_that_need_no_permit_do_not_wait() {
    let mut host = host_for(1);
    host.running(call("w#1", "a"));
    host.running(Request { needs_permit: false, ..read("w#1", "listen") });
}

#[test]
fn a_server_without_permits_still_runs_one_call_at_a_time() {
    let mut host = host_for(0);
    host.running(call("w#1", "a"));
    host.arrives(call("w#1", "b"));
    host.expect([]);
}

#[test]
fn a_call_that_waits_for_permits_is_not_started_by_a_notification_of_its_session() {
    // Of two permits, tasks get one.
    for (permits, first, waiting) in [(1, call("w#1", "x"), call("w#1", "a")), (2, task("w#1", "x"), task("w#1", "a"))]
    {
        let mut host = host_for(permits);
        host.arrives(first);
        host.synced();
        host.arrives(in_session(waiting));
        host.synced();
        host.seen();
        host.handle(Event::Notification { notification: NotificationNo(1), session: session("s") });
        host.expect([]);
    }
}

#[test]
fn calls_with_the_same_exclusive_resource_run_one_at_a_time() {
    let mut host = Host::new();
    let exclusive = |id, name: &'static str| Request { exclusive: Some(name.into()), ..call("w#1", id) };
    host.running(exclusive("a", "requests"));
    host.running(exclusive("b", "others"));
    host.arrives(exclusive("c", "requests"));
    host.expect([]);
    host.answers("a", "done");
    host.expect(["journal a: RESULT Done done, written", "reply a: done", "journal c: START 1, synced"]);
}

#[test]
fn a_call_that_waits_for_a_session_slot_holds_no_permit() {
    let mut host = host_for(1);
    host.hold(Step::Reserve);
    host.arrives(Request { reserves: true, ..call("w#1", "a") });
    host.expect(["reserve a"]);
    host.running(call("v#1", "b"));
    host.handle(Event::Reserved { call: host.no("a") });
    host.expect([]);
    host.answers("b", "done");
    host.expect(["journal b: RESULT Done done, written", "reply b: done", "journal a: START 1, synced"]);
}

#[test]
fn a_limit_of_the_policy_counts_running_calls() {
    let mut host = Host::new();
    let concurrency = NonZeroU32::new(1);
    host.grant.limits = vec![Limit { kind: LimitKind::Pattern("write".into()), rate: None, concurrency }];
    host.running(call("w#1", "a"));
    host.arrives(call("v#1", "b"));
    host.expect([]);
    host.answers("a", "done");
    host.expect(["journal a: RESULT Done done, written", "reply a: done", "journal b: START 1, synced"]);
}

#[test]
fn a_call_that_waits_for_a_limit_does_not_hold_up_calls_without_that_limit() {
    let mut host = Host::new();
    host.grant.limits =
        vec![Limit { kind: LimitKind::Pattern("write".into()), rate: None, concurrency: NonZeroU32::new(1) }];
    host.running(call("w#1", "a"));
    host.arrives(call("w#1", "b"));
    host.grant.limits = Vec::new();
    host.running(call("v#1", "c"));
}

#[test]
fn every_end_of_a_call_returns_its_permit() {
    let ends: [fn(&mut Host); 8] = [
        |host| host.answers("a", "done"),
        |host| host.dies("a"),
        |host| host.crashes("a"),
        |host| host.handle(Event::Refused { call: host.no("a"), answer: "refused" }),
        |host| host.passes(1_000_000),
        |host| {
            host.cancels("a");
            host.passes(1_000);
        },
        |host| {
            host.not_taken("a");
            host.not_taken("a");
        },
        |host| {
            host.handle(Event::Shutdown);
            host.dies("a");
        },
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let mut host = host_for(1);
        host.running(Request { timeout: Some(5_000), ..call("w#1", "a") });
        host.arrives(call("w#1", "b"));
        end(&mut host);
        host.synced();
        assert!(host.seen().contains(&"journal b: START 1, synced".to_owned()), "end {number}");
    }
}

#[test]
fn requests_of_a_session_are_sent_in_the_order_of_their_arrival() {
    let mut host = Host::new();
    host.hold(Step::Send);
    for id in ["a", "b", "c"] {
        host.arrives(in_session(call("w#1", id)));
    }
    host.synced();
    host.expect(["journal a: START 1, synced", "journal b: START 1, synced", "journal c: START 1, synced", "send a"]);
    host.sent("a");
    host.expect(["send b"]);
    host.cancels("b");
    host.not_taken("b");
    host.expect(["abort b", "journal b: RESULT Cancelled cancelled, written", "reply b: cancelled", "send c"]);
    host.arrives(call("w#1", "d"));
    host.synced();
    host.expect(["journal d: START 1, synced", "send d"]);
}

#[test]
fn a_request_takes_permits_only_after_its_predecessors() {
    let mut host = Host::new();
    host.hold(Step::Authorise);
    host.arrives(in_session(call("w#1", "a")));
    host.release(Step::Authorise);
    host.hold(Step::Connect);
    host.arrives(in_session(call("w#1", "b")));
    host.expect(["authorise a"]);
    host.authorised("a");
    host.expect(["connect a", "connect b"]);
}

#[test]
fn a_predecessor_that_ends_lets_its_successors_go_on() {
    let mut host = Host::new();
    host.hold(Step::Authorise);
    host.arrives(in_session(call("w#1", "a")));
    host.release(Step::Authorise);
    host.arrives(in_session(call("w#1", "b")));
    host.refused("a");
    host.expect(["authorise a", "reply a: denied", "journal b: START 1, synced"]);
}

#[test]
fn a_call_whose_deadline_passed_while_it_waited_for_its_predecessor_is_not_sent() {
    let mut host = Host::new();
    host.hold(Step::Send);
    host.arrives(in_session(call("w#1", "a")));
    host.arrives(Request { deadline: Some(5_000), ..in_session(call("w#1", "b")) });
    host.synced();
    host.seen();
    host.now = 5_000;
    host.sent("a");
    host.expect(["journal b: RESULT Failed Expired, written", "reply b: Expired"]);
}

#[test]
fn nothing_of_a_session_passes_its_initialize_before_the_answer() {
    let mut host = Host::new();
    host.arrives(initialize("i"));
    host.arrives(in_session(call("w#1", "a")));
    host.handle(Event::Notification { notification: NotificationNo(1), session: session("s") });
    host.expect(["send i"]);
    host.answers("i", "ready");
    host.synced();
    host.expect(["reply i: ready", "journal a: START 1, synced", "send a", "forward 1"]);
    host.handle(Event::NotificationSent { notification: NotificationNo(1) });
    assert_eq!(host.machine.views().map(|view| view.call).collect::<Vec<_>>(), [host.no("a")]);
    host.answers("a", "done");
    assert!(host.machine.is_empty());
}

#[test]
fn notifications_keep_their_place_and_are_forwarded_once() {
    let notification = |number| Event::Notification { notification: NotificationNo(number), session: session("s") };
    let sent = |number| Event::NotificationSent { notification: NotificationNo(number) };
    let mut host = Host::new();
    host.hold(Step::Send);
    host.arrives(in_session(call("w#1", "a")));
    host.handle(notification(1));
    host.handle(notification(2));
    host.arrives(in_session(call("w#1", "b")));
    host.synced();
    host.expect(["journal a: START 1, synced", "journal b: START 1, synced", "send a"]);
    host.sent("a");
    host.expect(["forward 1"]);
    host.handle(notification(3));
    host.expect([]);
    host.answers("a", "done");
    host.seen();
    host.handle(sent(1));
    host.expect(["forward 2"]);
    assert!(!host.machine.is_empty());
    host.handle(sent(2));
    host.expect(["send b"]);
    host.handle(sent(2));
    host.expect([]);
}

#[test]
fn a_notification_of_an_idle_session_is_forwarded_at_once() {
    let mut host = Host::new();
    host.handle(Event::Notification { notification: NotificationNo(7), session: session("other") });
    host.expect(["forward 7"]);
    assert!(!host.machine.is_empty());
    host.handle(Event::NotificationSent { notification: NotificationNo(7) });
    assert!(host.machine.is_empty());
}

#[test]
fn sessions_do_not_wait_for_each_other() {
    let mut host = Host::new();
    host.arrives(initialize("i"));
    let other = session("other");
    host.arrives(Request { session: Some((other, toolbus_call::SessionHold::UntilSent)), ..read("w#1", "a") });
    host.expect(["send i", "send a"]);
}

#[test]
fn equal_calls_of_one_session_are_meant_twice_and_keep_their_order() {
    let mut host = Host::new();
    host.hold(Step::Send);
    host.arrives(in_session(equal("w#1", "a")));
    host.arrives(in_session(equal("w#1", "b")));
    host.synced();
    host.sent("a");
    host.expect(["journal a: START 1, synced", "journal b: START 1, synced", "send a", "send b"]);
}
