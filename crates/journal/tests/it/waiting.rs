//! The journal as a host uses it, on a real folder.

use crate::support::{CONTENT, finish, key, reply, start};
use std::sync::Arc;
use toolbus_journal::{Journal, JournalOptions, Known, Limits, Wait};

#[tokio::test]
async fn a_call_that_comes_again_finds_its_answer_also_in_the_next_life() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let journal = Journal::open(folder.path(), JournalOptions::default()).expect("an empty folder opens");
    assert_eq!(journal.look_up(&key(1), &CONTENT), Ok(Known::New));
    journal.start(start(1), Wait::Synced).await.expect("written");
    assert!(matches!(journal.look_up(&key(1), &CONTENT), Ok(Known::Running(_))));
    assert!(journal.look_up(&key(1), &[9; 32]).is_err(), "the same id with other arguments");
    journal.finish(finish(1), Wait::Synced).await.expect("written");
    journal.start(start(2), Wait::Synced).await.expect("written");
    drop(journal);

    let journal = Journal::open(folder.path(), JournalOptions::default()).expect("it opens again");
    let Ok(Known::Answered { reply: place, .. }) = journal.look_up(&key(1), &CONTENT) else { panic!("answered") };
    assert_eq!(journal.reply(&place).expect("readable"), reply(1));
    let Ok(Known::Interrupted(interrupted)) = journal.look_up(&key(2), &CONTENT) else { panic!("interrupted") };
    assert_eq!(*interrupted, start(2));
}

#[tokio::test]
async fn many_who_wait_share_syncs_and_all_are_told() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let journal = Arc::new(Journal::open(folder.path(), JournalOptions::default()).expect("an empty folder opens"));
    let calls = (0..500u64).map(|id| {
        let journal = Arc::clone(&journal);
        tokio::spawn(async move {
            journal.start(start(id), Wait::Synced).await.expect("written");
            journal.finish(finish(id), Wait::Synced).await.expect("written");
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("no panic");
    }
    for id in 0..500 {
        assert!(matches!(journal.look_up(&key(id), &CONTENT), Ok(Known::Answered { .. })));
    }
}

#[tokio::test]
async fn what_ended_long_ago_is_forgotten_and_what_runs_is_not() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = JournalOptions { limits: Limits { max_ended: 2, ..Limits::default() }, ..JournalOptions::default() };
    let journal = Journal::open(folder.path(), options).expect("an empty folder opens");
    journal.start(start(100), Wait::Synced).await.expect("written");
    for id in 0..4 {
        journal.start(start(id), Wait::Synced).await.expect("written");
        journal.finish(finish(id), Wait::Synced).await.expect("written");
    }
    let is_known = |id| journal.look_up(&key(id), &CONTENT) != Ok(Known::New);
    assert_eq!([0, 1, 2, 3, 100].map(is_known), [false, false, true, true, true]);
}
