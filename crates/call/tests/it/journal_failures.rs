//! Appends that the journal rejects, and syncs that fail, for each record.

use crate::requests::{call, equal, replay_safe, task};
use crate::states::{At, host_at};
use crate::support::Host;
use std::io;
use std::sync::Arc;
use toolbus_journal::JournalError;

fn broken() -> JournalError {
    JournalError::Write(Arc::new(io::Error::other("disk failed")))
}

#[test]
fn a_call_without_a_start_is_not_sent() {
    let mut host = Host::new();
    host.reject_appends(broken());
    host.arrives(call("w#1", "a"));
    host.expect(["journal a: START 1, synced", "reply a: not journaled"]);
    host.arrives(replay_safe("w#1", "b"));
    host.expect(["journal b: START 1 replay-safe, written", "reply b: not journaled"]);
    assert!(host.machine.is_empty());
    let mut host = host_at(At::Starting);
    host.sync_fails();
    host.expect(["reply a: not journaled"]);
    host.arrives(call("w#1", "b"));
    host.expect(["journal b: START 1, synced", "reply b: not journaled"]);
}

#[test]
fn a_call_whose_second_start_fails_has_the_first_and_its_answer_must_be_journaled() {
    let mut host = Host::new();
    host.running(replay_safe("w#1", "a"));
    host.reject_appends(broken());
    host.dies("a");
    host.expect([
        "journal a: START 2 replay-safe, written",
        "journal a: RESULT Failed not journaled, written",
        "reply a: result not journaled",
    ]);
}

#[test]
fn an_answer_that_is_not_journaled_is_not_given() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.reject_appends(broken());
    host.answers("a", "done");
    host.expect(["journal a: RESULT Done done, written", "reply a: result not journaled"]);
    let mut host = host_at(At::Finishing);
    host.sync_fails();
    host.expect(["reply a: result not journaled"]);
    assert!(host.machine.is_empty());
}

#[test]
fn a_cancelled_call_without_a_record_is_not_reported_as_cancelled() {
    let mut host = host_at(At::Connecting);
    host.cancels("a");
    host.sync_fails();
    host.expect(["abort a", "journal a: RESULT Cancelled cancelled, synced", "reply a: result not journaled"]);
}

#[test]
fn a_task_is_not_accepted_without_its_entry() {
    let mut host = Host::new();
    host.reject_appends(broken());
    host.arrives(task("w#1", "a"));
    host.expect(["journal a: TASK, synced", "reply a: not journaled"]);
    let mut host = Host::new();
    host.reject_appends(JournalError::TooManyTasks { most: 7 });
    host.arrives(task("w#1", "a"));
    host.expect(["journal a: TASK, synced", "reply a: more than 7 tasks"]);
    // The next process may find the entry, and would run the task.
    let mut host = host_at(At::Accepting);
    host.sync_fails();
    host.expect(["reply a: outcome of attempt 1 of a unknown"]);
    assert!(host.machine.is_empty());
}

#[test]
fn rejected_tasks_do_not_count_against_the_limit() {
    let mut host = Host::with(|options| options.max_tasks_per_agent = 1);
    host.reject_appends(broken());
    for id in ["a", "b"] {
        host.arrives(task("w#1", id));
        host.expect([&format!("journal {id}: TASK, synced"), &format!("reply {id}: not journaled")]);
    }
}

#[test]
fn a_rejected_task_does_not_change_the_count_of_those_that_are_being_accepted() {
    let mut host = Host::with(|options| options.max_tasks_per_agent = 2);
    host.arrives(task("w#1", "a"));
    host.reject_appends(broken());
    host.arrives(task("w#1", "b"));
    host.accept_appends();
    host.arrives(task("w#1", "c"));
    host.seen();
    host.arrives(task("w#1", "d"));
    host.expect(["reply d: more than 2 tasks of the agent"]);
}

#[test]
fn a_dead_letter_that_fails_does_not_change_the_answer_of_the_next_process() {
    let mut host = host_at(At::DeadLettering);
    host.sync_fails();
    host.expect(["journal a: RESULT Failed poisoned after 1, synced", "reply a: result not journaled"]);
    let mut host = Host::with(|options| options.max_attempts = 1);
    host.running(replay_safe("w#1", "a"));
    host.reject_appends(broken());
    host.dies("a");
    host.expect([
        "journal a: DEAD 1 [\"attempt 1: exit code 1\"], synced",
        "journal a: RESULT Failed poisoned after 1, synced",
        "reply a: result not journaled",
    ]);
}

#[test]
fn a_join_without_a_record_is_not_answered() {
    for at_append in [true, false] {
        let mut host = Host::new();
        host.running(equal("w#1", "x"));
        host.restarts();
        host.arrives(equal("w#2", "a"));
        host.inspected(&[false], &[]);
        host.passes(2_000);
        host.seen();
        if at_append {
            host.reject_appends(broken());
        }
        host.inspected(&[false], &[]);
        if !at_append {
            host.sync_fails();
        }
        host.expect([
            "journal a: JOINED to x, synced",
            "journal a: RESULT Unknown outcome of attempt 1 of x unknown, synced",
            "reply a: result not journaled",
        ]);
    }
}

#[test]
fn an_answer_that_is_too_large_for_the_journal_is_not_given() {
    let mut host = Host::new();
    host.running(call("w#1", "a"));
    host.reject_appends(JournalError::TooLarge { bytes: 2, most: 1 });
    host.answers("a", "done");
    host.expect(["journal a: RESULT Done done, written", "reply a: result not journaled"]);
}
