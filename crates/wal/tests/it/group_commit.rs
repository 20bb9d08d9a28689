//! Group commit: who waits for which sync, one slow operation at a time, and no retry after a failure.

use std::io;
use std::sync::Arc;
use toolbus_wal::sim_disk::SimDisk;
use toolbus_wal::{ChecksumKey, GroupCommit, Log, LogOptions, Segments};

fn open(disk: &SimDisk) -> (Log, GroupCommit<u32>) {
    let options = LogOptions {
        segments: Segments { prefix: "log-" },
        segment_bytes: 1 << 20,
        key: ChecksumKey(7),
        keep_after_torn: false,
        readable_after_removal: 0,
        planted: None,
    };
    let opened = Log::open(Arc::new(disk.clone()), options, &mut || Ok(()), &mut |_| {});
    (opened.expect("it opens").0, GroupCommit::default())
}

fn stage(log: &mut Log, commit: &mut GroupCommit<u32>, waiter: u32) {
    log.stage(|_| 1).expect("there is room");
    commit.changed(Some(waiter));
}

#[test]
fn a_sync_serves_the_writers_that_waited_when_it_began() {
    let disk = SimDisk::default();
    let (mut log, mut commit) = open(&disk);
    assert!(commit.begin_sync(&mut log).is_none(), "nothing to sync");
    (1..3).for_each(|waiter| stage(&mut log, &mut commit, waiter));
    let group = commit.begin_sync(&mut log).expect("two writers");
    stage(&mut log, &mut commit, 3);
    assert!(commit.begin_sync(&mut log).is_none(), "one sync at a time");
    assert!(commit.begin_operation(|_| Ok(Some(()))).is_none(), "it could receive the error of the sync");
    let synced = group.sync();
    let (served, outcome) = commit.complete_sync(&mut log, group, synced);
    assert_eq!((served, outcome.is_ok(), commit.waiting()), (vec![1, 2], true, &[3][..]));
    assert!(commit.needs_sync());
}

#[test]
fn after_a_failed_sync_no_later_group_succeeds() {
    let disk = SimDisk::default();
    let (mut log, mut commit) = open(&disk);
    stage(&mut log, &mut commit, 1);
    disk.fail_syncs(true);
    let group = commit.begin_sync(&mut log).expect("a writer");
    stage(&mut log, &mut commit, 2);
    let synced = group.sync();
    assert!(commit.complete_sync(&mut log, group, synced).1.is_err());
    // The kernel reports the error once; the next sync succeeds although the data is lost.
    disk.fail_syncs(false);
    let group = commit.begin_sync(&mut log).expect("a writer");
    let synced = group.sync();
    assert!(synced.is_ok());
    let (served, outcome) = commit.complete_sync(&mut log, group, synced);
    assert!(served == [2] && outcome.is_err());
    assert!(commit.begin_operation(|_| Ok(Some(()))).is_none(), "no segment is created or removed");
}

#[test]
fn an_operation_that_ends_after_a_failure_is_not_applied() {
    let disk = SimDisk::default();
    let (mut log, mut commit) = open(&disk);
    stage(&mut log, &mut commit, 1);
    assert!(commit.begin_operation(|waiting| Ok(Some(waiting.len()))) == Some(1));
    assert!(commit.begin_sync(&mut log).is_none(), "one operation at a time");
    commit.fail(io::Error::other("a write failed"));
    commit.complete_operation(Ok(()), |()| panic!("even its success proves nothing"));
    let group = commit.begin_sync(&mut log).expect("its writer must be told");
    assert!(commit.complete_sync(&mut log, group, Ok(())).1.is_err());
}
