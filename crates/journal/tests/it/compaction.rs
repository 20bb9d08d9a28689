//! Compaction removes old segments and loses no needed entry, whenever the machine stops.

use crate::support::{CONTENT, finish, key, reply, start, started};
use crate::test_journal::{TestJournal, bytes};
use bytes::Bytes;
use toolbus_journal::{CallKey, Dead, Entry, Finish, Joined, JournalError, Known, Limits, Task};
use toolbus_wal::sim_disk::{Rng, SimDisk};

const KEEP: u64 = 1000;

fn limits() -> Limits {
    Limits { keep_ms: KEEP, ..Limits::default() }
}

fn named(name: &str) -> CallKey {
    CallKey { caller: "w#mcp".into(), id: name.into() }
}

fn request(name: &str) -> Bytes {
    Bytes::from(format!("the request of {name}"))
}

fn task(name: &str) -> Entry {
    let (key, server, tool, request) = (named(name), "files".into(), "write".into(), request(name));
    Entry::Task(Task { key, server, tool, content: CONTENT, request, role: None, ttl_ms: 1 << 40, at: 10 })
}

fn dead(name: &str) -> Entry {
    let (key, server, tool, request) = (named(name), "files".into(), "write".into(), request(name));
    Entry::Dead(Dead { key, server, tool, request, role: None, attempts: 3, story: vec!["died".into()], at: 10 })
}

fn answered(name: &str, at: u64) -> Entry {
    Entry::Finish(Finish { key: named(name), reply: request(name), at, ..finish(0) })
}

/// Writes entries that must be kept: a running call, one joined to it, a waiting task, an ended task, and two dead
/// letters of which one is dropped. Then writes many calls that are not needed, and compacts.
fn run(disk: &SimDisk, written: &mut usize) -> Result<(), JournalError> {
    let mut journal = TestJournal::open(disk, limits(), 1 << 20, 1)?;
    let joined = Joined { key: named("joiner"), to: key(1000), content: CONTENT, at: 11 };
    let lasting = [
        vec![started(1000), Entry::Joined(joined)],
        vec![task("waits"), task("ended")],
        vec![answered("ended", 12), dead("kept"), dead("dropped")],
        vec![Entry::Dropped(named("dropped"))],
    ];
    for group in lasting {
        journal.write(&group, 10, true)?;
        *written += 1;
    }
    for id in 0..12 {
        journal.write(&[started(id)], 20 + id, true)?;
        journal.write(&[Entry::Finish(Finish { at: 20 + id, ..finish(id) })], 20 + id, id % 2 == 0)?;
    }
    journal.write(&[started(2000)], 5000, true)?;
    *written += 1;
    journal.maintain(6000)?;
    journal.write(&[started(2001)], 6001, true)?;
    *written += 1;
    journal.maintain(6002).map(drop)
}

fn check(disk: &SimDisk, written: usize, what: &str) -> usize {
    let journal = TestJournal::open(disk, limits(), 1 << 20, 7000).expect("the journal opens after every crash");
    assert!(!journal.recovery.is_damaged(), "{what}: a crash is not corruption: {:?}", journal.recovery);
    if written > 0 {
        for key in [key(1000), named("joiner")] {
            let known = journal.known(&key, &CONTENT);
            assert!(matches!(known, Known::Interrupted(start) if start.key.id == "1000"), "{what}: {key:?}");
        }
    }
    if written > 1 {
        let Known::Waiting(manifest) = journal.known(&named("waits"), &CONTENT) else {
            panic!("{what}: the task waits")
        };
        assert_eq!(journal.payload(&manifest.request), request("waits"));
    }
    if written > 2 {
        let row = journal.index().task("ended", None).expect("a task that ended stays");
        let Known::Answered { reply, .. } = row.known else { panic!("{what}: the task has ended") };
        assert_eq!(
            (journal.payload(&reply), journal.payload(&row.manifest.request)),
            (request("ended").into(), request("ended").into())
        );
        let dead_letter = journal.index().dead_letter_by_id("kept").expect("a dead letter that was not dropped stays");
        assert_eq!(journal.payload(&dead_letter.request), request("kept"));
    }
    if written > 3 {
        assert_eq!(journal.index().dead_letter_by_id("dropped"), None, "{what}: it was dropped");
    }
    if written > 4 {
        assert_ne!(journal.known(&key(2000), &CONTENT), Known::New, "{what}");
    }
    if written > 5 {
        assert_ne!(journal.known(&key(2001), &CONTENT), Known::New, "{what}");
    }
    journal.index().len()
}

#[test]
fn a_crash_at_any_disk_call_during_compaction_loses_no_needed_entry() {
    let whole = SimDisk::default();
    run(&whole, &mut 0).expect("the disk works");
    let segments = whole.files().len();
    assert!(segments < 4, "old segments are removed, {segments} are left");
    for seed in 0..8 {
        for calls in 0..=whole.calls() {
            let disk = SimDisk::default();
            disk.stop_after(Some(calls));
            let mut written = 0;
            run(&disk, &mut written).ok();
            disk.stop_after(None);
            disk.crash(&mut Rng::new(seed * 10_000 + calls));
            let what = format!("seed {seed}, stopped after {calls} calls");
            check(&disk, written, &what);
            // A second crash, after the recovery.
            disk.crash(&mut Rng::new(seed));
            check(&disk, written, &what);
        }
    }
}

#[test]
fn over_the_size_limit_the_oldest_answers_are_forgotten_and_running_calls_kept() {
    let disk = SimDisk::default();
    let mut journal = TestJournal::open(&disk, limits(), 2000, 1).expect("it opens");
    journal.write(&[started(1000)], 1, true).expect("written");
    for id in 0..100 {
        journal.write(&[started(id), Entry::Finish(finish(id))], 2, true).expect("written");
        journal.maintain(2).expect("the disk works");
        assert!(bytes(&disk) < 3000, "{} bytes", bytes(&disk));
    }
    assert!(matches!(journal.known(&key(1000), &CONTENT), Known::Running(_)));
    assert_eq!(journal.known(&key(0), &CONTENT), Known::New);
    let Known::Answered { reply: location, .. } = journal.known(&key(99), &CONTENT) else { panic!("the latest stays") };
    assert_eq!(journal.payload(&location), reply(99));
}

#[test]
fn a_long_call_that_just_ended_is_kept_although_its_start_is_old() {
    let disk = SimDisk::default();
    let mut journal = TestJournal::open(&disk, limits(), 2000, 1).expect("it opens");
    journal.write(&[started(1000)], 1, true).expect("written");
    for id in 0..16 {
        journal.write(&[started(id), Entry::Finish(finish(id))], 2, true).expect("written");
    }
    journal.write(&[Entry::Finish(finish(1000))], 3, true).expect("written");
    journal.maintain(3).expect("the disk works");
    assert_eq!(journal.known(&key(0), &CONTENT), Known::New, "the size limit is exceeded");
    let Known::Answered { start: Some(_), .. } = journal.known(&key(1000), &CONTENT) else { panic!("it just ended") };
    drop(journal);
    let journal = TestJournal::open(&disk, limits(), 2000, 4).expect("it opens");
    assert!(journal.index().look_up(&key(1000), &[9; 32]).is_err(), "its arguments are still known");
}

#[test]
fn a_log_of_needed_entries_grows_without_repeated_compaction() {
    let disk = SimDisk::default();
    let mut journal = TestJournal::open(&disk, limits(), 500, 1).expect("it opens");
    let mut steps = 0;
    for id in 0..60 {
        journal.write(&[started(id)], 2, true).expect("written");
        steps += journal.maintain(2).expect("the disk works");
    }
    assert!(steps < 120, "{steps} steps");
    assert!((0..60).all(|id| matches!(journal.known(&key(id), &CONTENT), Known::Running(_))));
}

#[test]
fn a_segment_with_forgotten_calls_is_removed() {
    let disk = SimDisk::default();
    let mut journal = TestJournal::open(&disk, limits(), 1 << 20, 1).expect("it opens");
    journal.write(&[started(1), Entry::Finish(finish(1))], 2, true).expect("written");
    let Known::Answered { reply: location, .. } = journal.known(&key(1), &CONTENT) else { panic!("answered") };
    for id in 2..5 {
        journal.write(&[started(id), Entry::Finish(finish(id))], 2, true).expect("written");
    }
    journal.maintain(finish(9).at + KEEP + 10).expect("the disk works");
    assert_eq!(location.segment(), Some(1));
    assert!(disk.files().iter().all(|(name, _)| name != "journal-0000000001.log"), "the segment is gone");
}

#[test]
fn retention_of_earlier_answers_counts_from_the_restart() {
    let disk = SimDisk::default();
    let mut journal = TestJournal::open(&disk, limits(), 1 << 20, 1).expect("it opens");
    journal.write(&[started(1), Entry::Finish(finish(1))], 2, true).expect("written");
    drop(journal);
    let later = finish(1).at + 100 * KEEP;
    let mut journal = TestJournal::open(&disk, limits(), 1 << 20, later).expect("it opens");
    journal.maintain(later + KEEP - 1).expect("the disk works");
    assert!(
        matches!(journal.known(&key(1), &CONTENT), Known::Answered { .. }),
        "its caller could not ask while the host was down"
    );
    journal.maintain(later + KEEP + 1).expect("the disk works");
    assert_eq!(journal.known(&key(1), &CONTENT), Known::New);
}

#[test]
fn a_torn_write_is_not_corruption_and_a_flipped_bit_is() {
    let mut torn = 0;
    for seed in 0..300 {
        let disk = SimDisk::default();
        let mut journal = TestJournal::open(&disk, limits(), 1 << 20, 1).expect("it opens");
        journal.write(&[started(1)], 1, true).expect("written");
        let large = Finish { reply: Bytes::from(vec![7; 900]), ..finish(1) };
        journal.write(&[Entry::Finish(large), started(2), started(3)], 1, false).expect("written");
        drop(journal);
        disk.crash(&mut Rng::new(seed));
        for _ in 0..2 {
            let mut journal = TestJournal::open(&disk, limits(), 1 << 20, 1).expect("it opens");
            assert!(!journal.recovery.is_damaged(), "seed {seed}: {:?}", journal.recovery);
            torn += journal.recovery.torn_bytes;
            assert_ne!(journal.known(&key(1), &CONTENT), Known::New);
            journal.write(&[Entry::Start(start(4).into())], 1, true).expect("written");
        }
        disk.flip("journal-0000000001.log", 30, 1);
        let journal = TestJournal::open(&disk, limits(), 1 << 20, 1).expect("it opens");
        assert!(journal.recovery.is_damaged(), "seed {seed}");
    }
    assert!(torn > 0);
}

#[test]
fn a_missing_segment_is_reported() {
    let disk = SimDisk::default();
    let mut journal = TestJournal::open(&disk, limits(), 1 << 20, 1).expect("it opens");
    for id in 0..10 {
        journal.write(&[started(id)], 1, true).expect("written");
    }
    drop(journal);
    toolbus_wal::Disk::remove(&disk, "journal-0000000002.log").expect("it is there");
    let journal = TestJournal::open(&disk, limits(), 1 << 20, 1).expect("it opens");
    assert!(journal.recovery.is_damaged());
    assert_eq!(journal.recovery.missing_segments, 1);
}
