//! The circuit breaker of a server, as its calls see it.

use crate::requests::{call, read, replay_safe};
use crate::support::{Host, Step};
use toolbus_call::{Event, Request, TripSettings};
use toolbus_journal::End;

/// The breaker opens after two failures within a minute, for 30 seconds.
fn host() -> Host {
    Host::with(|options| options.servers[0].trip = TripSettings { after: 2, window: 60_000, pause: 30_000 })
}

fn fails(host: &mut Host, id: &'static str) {
    host.running(call("w#1", id));
    host.dies(id);
}

#[test]
fn failures_open_the_breaker_and_a_probe_closes_it() {
    let mut host = host();
    fails(&mut host, "a");
    host.expect(["journal a: RESULT Failed died, written", "reply a: died"]);
    fails(&mut host, "b");
    host.expect(["journal b: RESULT Failed died, written", "reply b: died", "breaker 0 Opened"]);
    host.passes(10_000);
    host.arrives(call("w#1", "c"));
    host.expect(["reply c: tripped for 20s"]);
    host.passes(20_000);
    host.running(call("w#1", "d"));
    host.arrives(call("w#1", "e"));
    host.expect(["reply e: tripped for 30s"]);
    host.answers("d", "done");
    host.expect(["journal d: RESULT Done done, written", "reply d: done", "breaker 0 Closed"]);
    host.running(call("w#1", "f"));
}

#[test]
fn failures_count_for_the_whole_window_and_not_longer() {
    for (pause, opens) in [(60_000, true), (60_001, false)] {
        let mut host = host();
        fails(&mut host, "a");
        host.passes(pause);
        fails(&mut host, "b");
        assert_eq!(host.seen().contains(&"breaker 0 Opened".to_owned()), opens);
    }
}

#[test]
fn every_attempt_counts_as_a_failure() {
    let mut host = host();
    host.running(replay_safe("w#1", "a"));
    host.dies("a");
    host.expect(["journal a: START 2 replay-safe, written", "send a"]);
    host.dies("a");
    host.expect(["breaker 0 Opened", "journal a: START 3 replay-safe, written", "send a"]);
}

#[test]
fn connections_that_fail_count_and_answers_with_errors_do_not() {
    let mut host = host();
    host.hold(Step::Connect);
    for id in ["a", "b"] {
        host.arrives(call("w#1", id));
        host.unreachable(id);
    }
    host.expect(["connect a", "reply a: unreachable", "connect b", "reply b: unreachable", "breaker 0 Opened"]);
    let mut host = self::host();
    for id in ["a", "b"] {
        host.running(call("w#1", id));
        host.not_taken(id);
        host.not_taken(id);
    }
    assert_eq!(host.seen().last().map(String::as_str), Some("breaker 0 Opened"));
    let mut host = self::host();
    for id in ["a", "b", "c"] {
        host.running(call("w#1", id));
        host.handle(Event::Answered { call: host.no(id), answer: "bad arguments", end: End::Failed });
    }
}

#[test]
fn cancelled_and_refused_calls_say_nothing_about_the_server() {
    let mut host = host();
    for id in ["a", "b", "c"] {
        host.running(call("w#1", id));
        host.cancels(id);
        host.dies(id);
    }
    host.hold(Step::Recheck);
    for id in ["d", "e", "f"] {
        host.arrives(call("w#1", id));
        host.refused(id);
    }
    host.release(Step::Recheck);
    host.running(call("w#1", "g"));
}

#[test]
fn requests_that_the_breaker_does_not_guard_pass_and_do_not_count() {
    let mut host = host();
    let unguarded = |id| Request { guarded: false, ..read("w#1", id) };
    for id in ["a", "b", "c"] {
        host.arrives(unguarded(id));
        host.dies(id);
    }
    host.expect(["send a", "reply a: died", "send b", "reply b: died", "send c", "reply c: died"]);
    fails(&mut host, "d");
    fails(&mut host, "e");
    host.seen();
    host.arrives(unguarded("f"));
    host.expect(["send f"]);
}

#[test]
fn the_end_of_servers_at_shutdown_is_no_failure() {
    let mut host = host();
    for id in ["a", "b", "c"] {
        host.running(call("w#1", id));
    }
    host.handle(Event::Drain);
    host.handle(Event::Shutdown);
    for id in ["a", "b", "c"] {
        host.dies(id);
    }
    assert!(host.seen().iter().all(|effect| !effect.starts_with("breaker")));
    assert!(host.machine.is_empty());
}
