//! Tasks: accepted when their entry is durable, limited in number, and resumed after a restart.

use crate::requests::{call, replay_safe, resumed, task};
use crate::support::{Host, Step};
use toolbus_call::{Event, Request, TaskRequest};

fn accept(host: &mut Host, request: Request) {
    host.arrives(request);
    host.synced();
}

#[test]
fn a_task_is_accepted_when_its_entry_is_durable_and_its_answer_stays_in_the_journal() {
    let mut host = Host::new();
    host.arrives(task("w#1", "a"));
    host.expect(["journal a: TASK, synced"]);
    host.synced();
    host.expect(["accepted a", "journal a: START 1, synced"]);
    host.synced();
    host.expect(["send a"]);
    assert!(host.machine.view(host.no("a")).expect("in progress").is_task);
    host.answers("a", "done");
    host.expect(["journal a: RESULT Done done, synced"]);
    host.synced();
    host.expect([]);
    assert!(host.machine.is_empty());
}

#[test]
fn a_task_that_is_delivered_again_gets_its_acceptance_or_its_state_again() {
    let mut host = Host::new();
    host.arrives(task("w#1", "a"));
    host.arrives(task("w#1", "a"));
    host.expect(["journal a: TASK, synced", "redelivered a"]);
    host.synced();
    host.seen();
    host.arrives(task("w#1", "a"));
    host.expect(["redelivered a", "accepted a"]);
    host.restarts();
    host.arrives(task("w#1", "a"));
    host.expect(["resend task a"]);
    assert!(host.machine.is_empty());
    // The id of another agent's task is free.
    host.arrives(task("v#1", "a"));
    host.expect(["journal a: TASK, synced"]);
}

#[test]
fn a_task_is_resumed_after_a_restart_without_its_caller() {
    let mut host = Host::new();
    host.hold(Step::Reserve);
    accept(&mut host, task("w#1", "a"));
    host.expect(["journal a: TASK, synced", "accepted a", "reserve a"]);
    host.restarts();
    host.release(Step::Reserve);
    host.arrives(resumed(task("w#1", "a")));
    host.synced();
    host.expect(["journal a: START 1, synced", "send a"]);
    host.answers("a", "done");
    host.synced();
    host.expect(["journal a: RESULT Done done, synced"]);
}

#[test]
fn the_outcome_of_an_interrupted_task_is_unknown_unless_it_is_replay_safe() {
    let mut host = Host::new();
    let safe = || Request { task: Some(TaskRequest { ttl: 60_000 }), ..replay_safe("w#1", "b") };
    accept(&mut host, task("w#1", "a"));
    accept(&mut host, safe());
    host.restarts();
    host.arrives(resumed(task("w#1", "a")));
    host.expect(["journal a: RESULT Unknown outcome of attempt 1 of a unknown, synced"]);
    host.arrives(resumed(safe()));
    host.expect(["journal b: START 2 replay-safe, written", "send b"]);
    host.synced();
    host.expect([]);
}

#[test]
fn a_refused_task_that_was_resumed_is_journaled() {
    let mut host = Host::new();
    host.hold(Step::Reserve);
    accept(&mut host, task("w#1", "a"));
    host.restarts();
    host.hold(Step::Authorise);
    host.arrives(resumed(task("w#1", "a")));
    host.refused("a");
    host.synced();
    host.expect(["authorise a", "journal a: RESULT Failed denied, synced"]);
    host.restarts();
    host.arrives(resumed(task("w#1", "a")));
    host.expect([]);
}

#[test]
fn the_number_of_tasks_is_limited_per_agent_and_in_total() {
    let mut host = Host::with(|options| (options.max_tasks, options.max_tasks_per_agent) = (5, 2));
    accept(&mut host, task("a#1", "a1"));
    host.arrives(task("a#2", "a2"));
    host.seen();
    host.arrives(task("a#3", "a3"));
    host.expect(["reply a3: more than 2 tasks of the agent"]);
    for agent in ["b", "d", "e"] {
        host.arrives(task(agent, &format!("{agent}1")));
        host.expect([&format!("journal {agent}1: TASK, synced")]);
    }
    host.arrives(task("c", "c1"));
    host.expect(["reply c1: more than 5 tasks"]);
    host.synced();
    host.seen();
    host.arrives(task("c", "c2"));
    host.expect(["reply c2: more than 5 tasks"]);
    // They count until they expire, and not longer.
    host.synced();
    for id in ["a1", "a2", "b1", "d1", "e1"] {
        host.answers(id, "done");
    }
    host.synced();
    host.passes(59_999);
    host.seen();
    host.arrives(task("c", "c3"));
    host.expect(["reply c3: more than 5 tasks"]);
    host.passes(1);
    host.arrives(task("c", "c4"));
    host.expect(["journal c4: TASK, synced"]);
}

#[test]
fn agents_with_many_tasks_leave_room_for_the_tasks_of_another_one() {
    let mut host = Host::with(|options| options.max_tasks = 21);
    for agent in ["a", "b", "c", "d", "e"] {
        for number in 0..6 {
            host.arrives(task(agent, &format!("{agent}{number}")));
        }
    }
    host.seen();
    host.arrives(task("f", "f1"));
    host.expect(["journal f1: TASK, synced"]);
}

#[test]
fn a_task_that_could_not_be_accepted_does_not_count() {
    let mut host = Host::with(|options| options.max_tasks_per_agent = 1);
    for id in ["a", "b", "c"] {
        host.arrives(task("w#1", id));
        host.crashes(id);
        host.expect([&format!("journal {id}: TASK, synced")]);
        host.restarts();
    }
    host.arrives(task("w#1", "d"));
    host.expect(["journal d: TASK, synced"]);
}

#[test]
fn a_task_lives_for_its_time_from_the_acceptance() {
    let mut host = Host::new();
    accept(&mut host, Request { deadline: Some(2_000), ..task("w#1", "a") });
    host.synced();
    host.seen();
    host.passes(59_999);
    host.expect([]);
    host.passes(1);
    host.expect(["cancel a at its server"]);
    host.passes(1_000);
    host.expect(["abort a", "journal a: RESULT Failed Expired, synced"]);
}

#[test]
fn tasks_get_half_of_a_server_and_one_agent_a_quarter() {
    let mut host = Host::with(|options| options.servers[0].max_concurrency = 8);
    host.hold(Step::Reserve);
    for (agent, id) in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2"), ("c", "c1"), ("a", "a3")] {
        accept(&mut host, task(agent, id));
    }
    let reserved: Vec<String> = host.seen().into_iter().filter(|effect| effect.starts_with("reserve")).collect();
    assert_eq!(reserved, ["reserve a1", "reserve a2", "reserve b1", "reserve b2"]);
    host.running(call("a", "call"));
    host.cancels("a1");
    host.synced();
    host.expect(["abort a1", "journal a1: RESULT Cancelled cancelled, synced", "reserve c1"]);
    host.cancels("b1");
    host.synced();
    host.expect(["abort b1", "journal b1: RESULT Cancelled cancelled, synced", "reserve a3"]);
}

#[test]
fn a_task_above_the_share_of_its_agent_does_not_hold_up_those_of_others() {
    let mut host = Host::with(|options| options.servers[0].max_concurrency = 8);
    host.hold(Step::Reserve);
    for (agent, id) in [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1")] {
        accept(&mut host, task(agent, id));
    }
    assert_eq!(host.seen().last().map(String::as_str), Some("reserve b1"));
}

#[test]
fn a_task_takes_permits_of_calls_only_when_it_has_its_session_slot() {
    let mut host = Host::with(|options| options.servers[0].max_concurrency = 1);
    host.hold(Step::Reserve);
    accept(&mut host, task("w#1", "a"));
    host.seen();
    host.running(call("w#1", "b"));
    host.handle(Event::Reserved { call: host.no("a") });
    host.expect([]);
    host.answers("b", "done");
    host.expect(["journal b: RESULT Done done, written", "reply b: done", "journal a: START 1, synced"]);
    // A second report has no effect.
    host.handle(Event::Reserved { call: host.no("a") });
    host.expect([]);
}
