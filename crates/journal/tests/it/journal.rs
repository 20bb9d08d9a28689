//! The journal as used by a host, mostly in a temporary folder.

use crate::support::{CONTENT, finish, key, reply, start};
use bytes::Bytes;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use toolbus_journal::{
    CallIndex, Clock, Finish, Journal, JournalError, JournalLog, JournalOptions, Known, Limits, LogOptions, Wait,
};
use toolbus_wal::sim_disk::{Rng, SimDisk};

#[tokio::test]
async fn a_repeated_call_finds_its_answer_also_after_a_restart() {
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
    let Ok(Known::Answered { reply: location, .. }) = journal.look_up(&key(1), &CONTENT) else { panic!("answered") };
    assert_eq!(journal.reply(&location).expect("readable"), reply(1));
    let Ok(Known::Interrupted(interrupted)) = journal.look_up(&key(2), &CONTENT) else { panic!("interrupted") };
    assert_eq!(*interrupted, start(2));
}

#[tokio::test]
async fn concurrent_writers_share_syncs_and_all_are_notified() {
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
async fn old_ended_calls_are_forgotten_and_running_ones_kept() {
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

#[tokio::test]
async fn after_a_disk_failure_all_writes_are_rejected() {
    let disk = SimDisk::default();
    let clock: Clock = Arc::new(|| 1);
    let journal = Journal::on_disk(Arc::new(disk.clone()), JournalOptions::default(), clock).expect("it opens");
    journal.start(start(1), Wait::Synced).await.expect("written");
    assert!(journal.failure().is_none());
    disk.fail_syncs(true);
    assert!(matches!(journal.finish(finish(1), Wait::Synced).await, Err(JournalError::Write(_))));
    disk.fail_syncs(false);
    assert!(
        matches!(journal.start(start(2), Wait::Synced).await, Err(JournalError::Write(_))),
        "also after the disk has recovered"
    );
    assert!(matches!(journal.start(start(3), Wait::Written).await, Err(JournalError::Write(_))));
    assert!(journal.failure().is_some());
    assert!(
        matches!(journal.look_up(&key(1), &CONTENT), Ok(Known::Running(_))),
        "an answer that is not durable does not count"
    );
}

#[tokio::test]
async fn the_folder_is_private() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("state/journal");
    let journal = Journal::open(&path, JournalOptions::default()).expect("it opens");
    journal.start(start(1), Wait::Synced).await.expect("written");
    let mode = |path: &Path| fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    for file in fs::read_dir(&path).expect("a folder") {
        assert_eq!(mode(&file.expect("a file").path()), 0o600);
    }
}

#[tokio::test]
async fn a_written_entry_survives_the_process_and_is_synced_shortly_after() {
    let disk = SimDisk::default();
    let clock: Clock = Arc::new(|| 1);
    let journal = Journal::on_disk(Arc::new(disk.clone()), JournalOptions::default(), clock).expect("it opens");
    journal.start(start(1), Wait::Synced).await.expect("written");
    let known_after = |disk: &SimDisk| {
        let mut index = CallIndex::default();
        JournalLog::open(Arc::new(disk.clone()), LogOptions::default(), |entry, location| {
            index.restore(&entry, location)
        })
        .expect("it opens");
        index.look_up(&key(1), &CONTENT).expect("the same call")
    };
    journal.finish(finish(1), Wait::Written).await.expect("written");
    // A copy of the disk, as the next process would find it.
    assert!(matches!(known_after(&disk.fork()), Known::Answered { .. }));
    let is_synced = |seed| {
        let stopped = disk.fork();
        stopped.crash(&mut Rng::new(seed));
        matches!(known_after(&stopped), Known::Answered { .. })
    };
    let limit = Instant::now() + Duration::from_secs(20);
    while !(0..20).all(is_synced) {
        assert!(Instant::now() < limit, "it is never synced");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_entry_that_is_too_large_is_rejected() {
    let journal = Journal::in_memory().expect("memory is there");
    let reply = Bytes::from(vec![0; 128 << 20]);
    let refused = journal.finish(Finish { reply, ..finish(1) }, Wait::Synced).await;
    assert!(matches!(refused, Err(JournalError::TooLarge { .. })));
    journal.start(start(2), Wait::Synced).await.expect("other entries are accepted");
}

/// Not a test: prints the cost of a call and of a bare sync of the same disk.
#[tokio::test]
#[ignore = "measures, and needs a quiet machine"]
async fn cost_of_a_call() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a temporary folder");
    let mut file = fs::File::create(folder.path().join("bare")).expect("a file");
    let rounds = 500u64;
    let bare = Instant::now();
    for _ in 0..rounds {
        file.write_all(&[1; 200]).and_then(|()| file.sync_data()).expect("the disk works");
    }
    let bare = bare.elapsed() / rounds as u32;
    let journal = Arc::new(Journal::open(&folder.path().join("journal"), JournalOptions::default()).expect("it opens"));
    let alone = Instant::now();
    for id in 0..rounds {
        journal.start(start(id), Wait::Synced).await.expect("written");
        journal.finish(finish(id), Wait::Synced).await.expect("written");
    }
    let alone = alone.elapsed() / rounds as u32;
    let together = Instant::now();
    let callers = (0..64).map(|caller| {
        let journal = Arc::clone(&journal);
        tokio::spawn(async move {
            for id in 0..100 {
                let id = 10_000 + caller * 1000 + id;
                journal.start(start(id), Wait::Synced).await.expect("written");
                journal.finish(finish(id), Wait::Synced).await.expect("written");
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.expect("no panic");
    }
    let together = together.elapsed() / 6400;
    let noted = Instant::now();
    for id in 100_000..102_000 {
        journal.start(start(id), Wait::Written).await.expect("written");
        journal.finish(finish(id), Wait::Written).await.expect("written");
    }
    let noted = noted.elapsed() / 2000;
    println!(
        "write + sync {bare:?}; start + finish: alone {alone:?}, 64 callers {together:?} a call, not waited for {noted:?}"
    );
}

#[tokio::test]
async fn a_second_answer_is_rejected_unless_it_is_the_same_message() {
    let journal = Journal::in_memory().expect("it opens");
    journal.start(start(1), Wait::Synced).await.expect("written");
    journal.finish(finish(1), Wait::Synced).await.expect("written");
    let other = Finish { reply_id: "other".into(), ..finish(1) };
    let second = journal.finish(other, Wait::Synced).await;
    assert!(matches!(&second, Err(error @ JournalError::Answered) if error.is_about_one_call()), "{second:?}");
    journal
        .finish(Finish { reply: Bytes::from_static(b"shorter"), ..finish(1) }, Wait::Synced)
        .await
        .expect("the same");
    let Ok(Known::Answered { reply, .. }) = journal.look_up(&key(1), &CONTENT) else { panic!("answered") };
    assert_eq!(journal.reply(&reply).expect("readable"), "shorter");
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_rejected_and_a_smaller_one_accepted() {
    let journal = Journal::in_memory().expect("it opens");
    journal.start(start(1), Wait::Synced).await.expect("written");
    let large = |bytes: usize| Finish { reply: Bytes::from(vec![b'x'; bytes]), ..finish(1) };
    for wait in [Wait::Synced, Wait::Written] {
        let refused = journal.finish(large(128 << 20), wait).await;
        assert!(matches!(refused, Err(JournalError::TooLarge { .. })), "{refused:?}");
    }
    assert!(matches!(journal.look_up(&key(1), &CONTENT), Ok(Known::Running(_))), "it is not answered");
    let fits = 64 << 20;
    journal.finish(large(fits), Wait::Synced).await.expect("written");
    let Ok(Known::Answered { reply, .. }) = journal.look_up(&key(1), &CONTENT) else { panic!("answered") };
    assert_eq!(journal.reply(&reply).expect("readable").len(), fits);
}
