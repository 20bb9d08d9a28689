//! A call that was answered and forgotten does not count as open after a restart, however compaction has moved its
//! entries.

use crate::support::{CONTENT, finish, key, start, started};
use crate::test_journal::{TestJournal, bytes, log_options};
use bytes::Bytes;
use toolbus_journal::{
    CallKey, Entry, Finish, Joined, JournalOptions, Known, Limits, LogOptions, PlantedBug, Start, Task, Wait,
};
use toolbus_wal::sim_disk::SimDisk;

const KEEP: u64 = 1000;

fn limits() -> Limits {
    Limits { keep_ms: KEEP, ..Limits::default() }
}

fn open(disk: &SimDisk, now: u64) -> TestJournal {
    TestJournal::open(disk, limits(), 1 << 20, now).expect("it opens")
}

fn write(journal: &mut TestJournal, entry: Entry, now: u64) {
    journal.write(&[entry], now, true).expect("written");
}

/// Writes calls that end at once, so that the log rotates.
fn rotate(journal: &mut TestJournal, from: u64, now: u64) {
    for id in from..from + 6 {
        write(journal, started(id), now);
        write(journal, Entry::Finish(Finish { at: now, ..finish(id) }), now);
    }
}

fn answered(id: u64, at: u64) -> Entry {
    Entry::Finish(Finish { at, ..finish(id) })
}

/// Writes `first` in the oldest segment and the answer of call 1 in a later one, lets compaction copy `first`, forgets the
/// call, and restarts.
fn check_forgotten(first: &[Entry]) {
    let disk = SimDisk::default();
    let mut journal = open(&disk, 0);
    first.iter().for_each(|entry| write(&mut journal, entry.clone(), 1));
    rotate(&mut journal, 100, 1);
    write(&mut journal, answered(1, KEEP), KEEP);
    rotate(&mut journal, 200, KEEP);
    journal.maintain(KEEP + 2).expect("the disk works");
    assert!(matches!(journal.known(&key(1), &CONTENT), Known::Answered { .. }), "it is remembered");
    rotate(&mut journal, 300, 2 * KEEP);
    journal.maintain(2 * KEEP + 1).expect("the disk works");
    assert_eq!(journal.known(&key(1), &CONTENT), Known::New, "it is forgotten");
    drop(journal);
    let known = open(&disk, 2 * KEEP + 2).known(&key(1), &CONTENT);
    assert!(matches!(known, Known::New | Known::Answered { .. }), "it counts as open again: {known:?}");
}

#[test]
fn a_start_that_compaction_copied_does_not_outlive_its_result() {
    check_forgotten(&[started(1)]);
}

#[test]
fn a_task_that_compaction_copied_does_not_outlive_its_result() {
    let (server, tool, request) = ("files".into(), "write".into(), Bytes::from_static(b"request"));
    let ttl_ms = KEEP + 10;
    let task = Task { key: key(1), server, tool, content: CONTENT, request, role: None, ttl_ms, at: 1 };
    check_forgotten(&[Entry::Task(task.clone())]);
    check_forgotten(&[Entry::Task(task), started(1)]);
}

#[test]
fn a_kept_call_keeps_its_start_and_its_answer_through_every_compaction() {
    let disk = SimDisk::default();
    let limits = Limits { keep_ms: 1 << 40, ..Limits::default() };
    let options =
        JournalOptions { log: log_options(), limits, compact_after_ms: Some(10), ..JournalOptions::default() };
    let mut journal = TestJournal::open_with(&disk, options.clone(), 0).expect("it opens");
    write(&mut journal, started(1), 1);
    rotate(&mut journal, 100, 1);
    write(&mut journal, answered(1, 2), 2);
    for now in 1..30 {
        rotate(&mut journal, 100 + 10 * now, now * 20);
        journal.maintain(now * 20 + 15).expect("the disk works");
        for journal in [&journal, &TestJournal::open_with(&disk.fork(), options.clone(), 0).expect("it opens")] {
            let Known::Answered { start: Some(kept), reply, .. } = journal.known(&key(1), &CONTENT) else {
                panic!("answered")
            };
            assert_eq!((&*kept, journal.payload(&reply)), (&start(1), finish(1).reply.to_vec()));
        }
    }
}

#[test]
fn a_join_does_not_outlive_the_call_that_it_was_joined_to() {
    let disk = SimDisk::default();
    let joiner = CallKey { caller: "w#2".into(), id: "j".into() };
    let joined = Entry::Joined(Joined { key: joiner.clone(), to: key(1), content: CONTENT, at: 3 });
    let mut journal = TestJournal::open(&disk, limits(), 3000, 0).expect("it opens");
    write(&mut journal, started(1), 1);
    write(&mut journal, answered(1, 2), 2);
    rotate(&mut journal, 100, 2);
    write(&mut journal, joined, 3);
    let mut id = 200;
    while journal.known(&joiner, &CONTENT) != Known::New {
        write(&mut journal, Entry::Start(Start { content: [2; 32], ..start(id) }.into()), 3);
        write(&mut journal, answered(id, 3), 3);
        id += 1;
    }
    assert!(bytes(&disk) > 0 && journal.known(&key(1), &CONTENT) == Known::New, "given up for the size limit");
    drop(journal);
    let journal = TestJournal::open(&disk, limits(), 3000, 4).expect("it opens");
    assert_eq!(journal.known(&joiner, &CONTENT), Known::New);
}

#[test]
fn a_join_stays_if_corruption_lost_the_call_that_it_was_joined_to() {
    let disk = SimDisk::default();
    let joiner = CallKey { caller: "w#2".into(), id: "j".into() };
    let mut journal = open(&disk, 0);
    write(&mut journal, started(1), 1);
    write(&mut journal, Entry::Joined(Joined { key: joiner.clone(), to: key(1), content: CONTENT, at: 3 }), 3);
    drop(journal);
    disk.flip("journal-0000000001.log", 30, 1);
    let journal = open(&disk, 4);
    assert!(journal.recovery.is_damaged());
    assert!(matches!(journal.known(&joiner, &CONTENT), Known::Interrupted(_)), "the call may have run");
}

/// Leaves an entry unapplied in a full segment, and lets compaction run before the sync.
fn compact_unapplied(planted: Option<PlantedBug>) -> Known {
    let disk = SimDisk::default();
    let log = LogOptions { planted, ..log_options() };
    let options = JournalOptions { log, limits: limits(), ..JournalOptions::default() };
    let mut journal = TestJournal::open_with(&disk, options, 0).expect("it opens");
    write(&mut journal, started(1), 1);
    journal.state.append(answered(1, 2), Wait::Synced, 1).expect("appended");
    for id in 100..104 {
        journal.state.append(started(id), Wait::Written, 1).expect("appended");
    }
    journal.maintain(5 * KEEP).expect("the disk works");
    journal.sync(5 * KEEP).expect("the disk works");
    drop(journal);
    open(&disk, 5 * KEEP).known(&key(1), &CONTENT)
}

#[test]
fn compaction_waits_for_entries_that_are_not_in_the_index_yet() {
    assert!(matches!(compact_unapplied(None), Known::Answered { .. }));
    let lost = compact_unapplied(Some(PlantedBug::UnappliedCompacted));
    assert!(matches!(lost, Known::Interrupted(_)), "the check can fail: {lost:?}");
}
