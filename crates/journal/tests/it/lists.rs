//! Queries of tasks, joined calls and dead letters, before and after a restart.

use crate::support::{CONTENT, finish, key, start};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use toolbus_journal::{
    CallKey, CandidateState, Clock, Dead, Decision, End, Finish, Joined, Journal, JournalError, JournalOptions, Known,
    Limits, Replay, Sharer, Stage, Start, Task, Wait, decide,
};
use toolbus_wal::sim_disk::SimDisk;

fn of(caller: &str, id: &str) -> CallKey {
    CallKey { caller: caller.into(), id: id.into() }
}

fn begin(caller: &str, id: &str, at: u64) -> Start {
    Start { key: of(caller, id), at, ..start(0) }
}

/// Does not expire during a test with the system clock.
const TTL: u64 = 1 << 50;

fn task(id: &str, at: u64) -> Task {
    let (server, tool, request) = ("files".into(), "write".into(), Bytes::from(format!("request {id}")));
    Task { key: of("w#mcp", id), server, tool, content: CONTENT, request, role: None, ttl_ms: TTL, at }
}

fn dead(id: u64) -> Dead {
    let (server, tool, request) = ("files".into(), "write".into(), Bytes::from_static(b"the request"));
    let story = vec!["the server died".to_owned()];
    Dead { key: key(id), server, tool, request, role: Some("worker".into()), attempts: 3, story, at: 7 }
}

#[tokio::test]
async fn a_task_waits_runs_and_ends_and_keeps_its_request() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = || Journal::open(folder.path(), JournalOptions::default()).expect("it opens");
    let journal = open();
    journal.accept(task("b", 2)).await.expect("written");
    journal.accept(task("a", 3)).await.expect("written");
    journal.start(begin("w#mcp", "b", 4), Wait::Synced).await.expect("written");
    drop(journal);

    let journal = open();
    let rows = journal.unfinished_tasks();
    assert_eq!(
        rows.iter().map(|row| &*row.manifest.key.id).collect::<Vec<_>>(),
        ["b", "a"],
        "in the order of acceptance"
    );
    assert!(matches!(rows[0].known, Known::Interrupted(_)));
    assert!(matches!(rows[1].known, Known::Waiting(_)));
    assert_eq!(journal.request(&rows[1].manifest.request).expect("readable"), "request a");
    assert_eq!(journal.candidate("w", &CONTENT, 0), None, "nothing is joined to a task");
    journal.finish(Finish { key: of("w#mcp", "b"), ..finish(0) }, Wait::Synced).await.expect("written");
    assert_eq!(journal.unfinished_tasks().len(), 1);
    assert!(matches!(journal.task("b", Some("w")).expect("known").known, Known::Answered { .. }));
    assert_eq!(journal.task("b", Some("v")), None, "the task of another agent");
    assert_eq!((journal.count_tasks(Some("w"), 10), journal.count_tasks(Some("w"), 2 * TTL)), (2, 0));
}

#[tokio::test]
async fn tasks_of_one_millisecond_keep_the_order_of_their_acceptance() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = || Journal::open(folder.path(), JournalOptions::default()).expect("it opens");
    let ids = |journal: &Journal| -> Vec<String> {
        journal.unfinished_tasks().iter().map(|row| row.manifest.key.id.to_string()).collect()
    };
    let journal = open();
    for id in ["c", "a", "b"] {
        journal.accept(task(id, 5)).await.expect("written");
    }
    assert_eq!(ids(&journal), ["c", "a", "b"]);
    drop(journal);
    assert_eq!(ids(&open()), ["c", "a", "b"]);
}

#[tokio::test]
async fn an_expired_task_is_not_counted_and_does_not_run_again() {
    let time = Arc::new(AtomicU64::new(1));
    let clock: Clock = Arc::new({
        let time = Arc::clone(&time);
        move || time.load(Ordering::Relaxed)
    });
    let limits = Limits { max_tasks: 1, max_ended: 2, keep_ms: 5000, ..Limits::default() };
    let options = JournalOptions { limits, ..JournalOptions::default() };
    let journal = Journal::on_disk(Arc::new(SimDisk::default()), options, clock).expect("it opens");
    let brief = |id: &str, at| Task { ttl_ms: 10, ..task(id, at) };
    for id in 1..5 {
        let at = time.load(Ordering::Relaxed);
        let name = id.to_string();
        journal.accept(brief(&name, at)).await.expect("the earlier tasks have expired");
        let second = journal.accept(brief("another", at)).await;
        assert!(matches!(second, Err(JournalError::TooManyTasks { most: 1 })), "{second:?}");
        journal.finish(Finish { key: of("w#mcp", &name), at, ..finish(id) }, Wait::Synced).await.expect("written");
        time.fetch_add(10, Ordering::Relaxed);
    }
    journal.start(start(9), Wait::Synced).await.expect("written");
    assert_eq!(journal.tasks(), []);
    let known = |id: &str| journal.look_up(&of("w#mcp", id), &CONTENT);
    assert!(matches!(known("3"), Ok(Known::Answered { .. })) && matches!(known("4"), Ok(Known::Answered { .. })));
    assert_eq!(known("2"), Ok(Known::New), "the limit on ended calls applies");
}

#[tokio::test]
async fn a_joined_call_shares_the_answer_and_is_the_next_candidate() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = || Journal::open(folder.path(), JournalOptions::default()).expect("it opens");
    let journal = open();
    journal.start(begin("w#1", "a", 1), Wait::Synced).await.expect("written");
    let candidate = journal.candidate("w", &CONTENT, 0).expect("it runs");
    assert_eq!((&*candidate.key.id, candidate.state), ("a", CandidateState::Running));
    assert_eq!(journal.candidate("v", &CONTENT, 0), None, "another agent");
    assert_eq!(journal.candidate("w", &[7; 32], 0), None, "other arguments");

    let joined = Joined { key: of("w#2", "b"), to: of("w#1", "a"), content: CONTENT, at: 5 };
    journal.join(joined).await.expect("written");
    assert!(matches!(journal.look_up(&of("w#2", "b"), &CONTENT), Ok(Known::Running(start)) if start.key.id == "a"));
    assert!(journal.look_up(&of("w#2", "b"), &[9; 32]).is_err());
    journal.finish(Finish { key: of("w#1", "a"), ..finish(0) }, Wait::Synced).await.expect("written");
    drop(journal);

    let journal = open();
    let Ok(Known::Answered { reply_id, .. }) = journal.look_up(&of("w#2", "b"), &CONTENT) else { panic!("answered") };
    assert_eq!(reply_id, "r0.b", "a unique and stable id");
    let candidate = journal.candidate("w", &CONTENT, 0).expect("answered");
    assert_eq!((&*candidate.key.id, &*candidate.start.expect("started").key.id), ("b", "a"));
    let sharer = Sharer { key: of("w#1", "a"), reply_id: Some("r0".into()) };
    assert_eq!(candidate.sharers, [sharer], "the first caller may have received the answer");
    assert_eq!(journal.candidate("w", &CONTENT, finish(0).at + 1), None, "it ended too long ago");
    let summary = journal.calls().into_iter().find(|call| call.key.id == "b").expect("listed");
    assert_eq!((summary.stage, summary.joined_to), (Stage::Ended(End::Done), Some(of("w#1", "a"))));
}

#[tokio::test]
async fn a_dead_letter_stays_until_it_is_dropped() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = || Journal::open(folder.path(), JournalOptions::default()).expect("it opens");
    let journal = open();
    journal.start(start(1), Wait::Synced).await.expect("written");
    journal.dead_letter(dead(1)).await.expect("written");
    drop(journal);

    let journal = open();
    let known = journal.look_up(&key(1), &CONTENT);
    assert!(matches!(decide(known, Replay::Safe, 9), Decision::Poisoned(_)), "it is not run again");
    let dead_letter = journal.dead_letter_by_id("1").expect("kept");
    assert_eq!((dead_letter.attempts, dead_letter.story.len()), (3, 1));
    assert_eq!(journal.request(&dead_letter.request).expect("readable"), "the request");
    journal.drop_dead_letter(&dead_letter.key).await.expect("written");
    assert!(journal.dead_letters().is_empty());
    drop(journal);
    assert!(open().dead_letters().is_empty());
}

#[tokio::test]
async fn entries_that_do_not_wait_for_a_sync_take_effect_at_once() {
    let journal = Journal::in_memory().expect("memory is there");
    journal.start(Start { safe: true, ..start(1) }, Wait::Written).await.expect("written");
    journal.finish(finish(1), Wait::Written).await.expect("written");
    let Ok(Known::Answered { reply, .. }) = journal.look_up(&key(1), &CONTENT) else { panic!("answered") };
    assert_eq!(journal.reply(&reply).expect("readable"), finish(1).reply);
}

#[tokio::test]
async fn an_interrupted_call_is_no_candidate_for_a_much_later_call() {
    const HOUR: u64 = 3600 * 1000;
    let disk = SimDisk::default();
    let open = |now: u64| {
        Journal::on_disk(Arc::new(disk.clone()), JournalOptions::default(), Arc::new(move || now)).expect("it opens")
    };
    let journal = open(0);
    journal.start(begin("w#1", "a", 10), Wait::Synced).await.expect("written");
    drop(journal);
    let journal = open(HOUR / 2);
    let state = |journal: &Journal, after| journal.candidate("w", &CONTENT, after).map(|candidate| candidate.state);
    assert_eq!(state(&journal, HOUR / 2), Some(CandidateState::Interrupted), "it may have run until now");
    assert_eq!(state(&journal, HOUR / 2 + 1), None);
    drop(journal);
    let journal = open(48 * HOUR);
    assert_eq!(state(&journal, 47 * HOUR), None, "regardless of restarts of the host");
}
