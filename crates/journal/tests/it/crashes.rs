//! A crash at any moment: synced entries are known afterwards, and no started call counts as new.

use crate::support::{CONTENT, finish, key, reply, start, started};
use std::sync::Arc;
use toolbus_journal::{CallIndex, Entry, JournalLog, Known, Location, LogOptions, PlantedBug};
use toolbus_wal::sim_disk::{Rng, SimDisk};

/// Small segments, so that crashes hit rotations.
fn options() -> LogOptions {
    LogOptions { segment_bytes: 200, checksum_seed: 5, ..LogOptions::default() }
}

/// The calls whose START or RESULT was synced before the crash.
#[derive(Default)]
struct Synced {
    started: Vec<u64>,
    answered: Vec<u64>,
}

/// Runs calls until the disk fails; returns the synced calls.
fn run_until_failure(disk: &SimDisk, calls: u64) -> Synced {
    let mut synced = Synced::default();
    let Ok((mut log, _)) = JournalLog::open(Arc::new(disk.clone()), options(), |_, _| {}) else { return synced };
    for id in 0..calls {
        if log.append([&started(id)], start(id).at).and_then(|_| log.sync()).is_err() {
            return synced;
        }
        synced.started.push(id);
        if id % 3 == 2 {
            continue;
        }
        if log.append([&Entry::Finish(finish(id))], finish(id).at).and_then(|_| log.sync()).is_err() {
            return synced;
        }
        synced.answered.push(id);
    }
    synced
}

fn check(disk: &SimDisk, synced: &Synced, what: &str) {
    let mut index = CallIndex::default();
    let (log, recovery) = JournalLog::open(Arc::new(disk.clone()), options(), |entry, location: Location| {
        index.restore(&entry, location)
    })
    .expect("the journal opens after every crash");
    assert_eq!(recovery.damaged_bytes, 0, "{what}: a crash is not corruption");
    for id in &synced.started {
        let known = index.look_up(&key(*id), &CONTENT).expect("the same call");
        assert_ne!(known, Known::New, "{what}: call {id} was started");
    }
    for id in &synced.answered {
        let Ok(Known::Answered { reply: location, .. }) = index.look_up(&key(*id), &CONTENT) else {
            panic!("{what}: call {id} was answered");
        };
        let Ok(Entry::Finish(kept)) = log.reader().read(&location) else {
            panic!("{what}: the answer of {id} can be read")
        };
        assert_eq!(kept.reply, reply(*id));
    }
}

#[test]
fn after_a_crash_at_any_disk_call_synced_entries_are_known() {
    for seed in 0..4 {
        let whole = SimDisk::default();
        run_until_failure(&whole, 12);
        for calls in 0..whole.calls() {
            let disk = SimDisk::default();
            disk.stop_after(Some(calls));
            let synced = run_until_failure(&disk, 12);
            disk.stop_after(None);
            disk.crash(&mut Rng::new(seed * 1000 + calls));
            check(&disk, &synced, &format!("seed {seed}, stopped after {calls} calls"));
        }
    }
}

#[test]
fn without_syncs_entries_are_lost_and_the_test_detects_it() {
    let broken = (0..200).any(|seed| {
        let disk = SimDisk::default();
        let planted = LogOptions { planted: Some(PlantedBug::NoSync), ..options() };
        let (mut log, _) = JournalLog::open(Arc::new(disk.clone()), planted, |_, _| {}).expect("it opens");
        log.append([&started(1)], 1).and_then(|_| log.sync()).expect("the disk works");
        disk.crash(&mut Rng::new(seed));
        let mut index = CallIndex::default();
        JournalLog::open(Arc::new(disk), options(), |entry, location| index.restore(&entry, location))
            .expect("it opens");
        index.look_up(&key(1), &CONTENT) == Ok(Known::New)
    });
    assert!(broken);
}

#[test]
fn corruption_in_the_middle_is_reported_and_costs_one_entry() {
    let disk = SimDisk::default();
    let large = LogOptions { segment_bytes: 1 << 20, ..options() };
    let (mut log, _) = JournalLog::open(Arc::new(disk.clone()), large.clone(), |_, _| {}).expect("it opens");
    let locations = log.append(&[0, 1, 2].map(started), 1).expect("the disk works");
    let Location::Log(toolbus_wal::Location { offset, length, .. }) = locations[1] else { panic!("it is written") };
    log.sync().expect("the disk works");
    // Only a later record shows that the corrupt one was durable.
    log.append([&started(3)], 1).and_then(|_| log.sync()).expect("the disk works");
    disk.flip("journal-0000000001.log", offset as usize + 20, 3);
    let mut index = CallIndex::default();
    let (_, recovery) =
        JournalLog::open(Arc::new(disk), large, |entry, location| index.restore(&entry, location)).expect("it opens");
    assert_eq!(recovery.damaged_bytes, u64::from(length));
    let known = [0, 1, 2].map(|id| index.look_up(&key(id), &CONTENT) != Ok(Known::New));
    assert_eq!(known, [true, false, true]);
}

/// Writes a START and a RESULT without a sync, opens the journal in a new process, and stops the machine right after.
fn crash_after_open(planted: Option<PlantedBug>, seed: u64) -> Known {
    let disk = SimDisk::default();
    let options = LogOptions { planted, ..options() };
    let (mut log, _) = JournalLog::open(Arc::new(disk.clone()), options.clone(), |_, _| {}).expect("it opens");
    log.append([&started(1), &Entry::Finish(finish(1))], 1).expect("the disk works");
    drop(log);
    JournalLog::open(Arc::new(disk.clone()), options.clone(), |_, _| {}).expect("it opens");
    disk.crash(&mut Rng::new(seed));
    let mut index = CallIndex::default();
    JournalLog::open(Arc::new(disk), options, |entry, location| index.restore(&entry, location)).expect("it opens");
    index.look_up(&key(1), &CONTENT).expect("the same call")
}

#[test]
fn entries_of_a_killed_process_are_durable_once_the_journal_is_open_again() {
    let is_kept = |planted, seed| matches!(crash_after_open(planted, seed), Known::Answered { .. });
    assert!((0..100).all(|seed| is_kept(None, seed)));
    assert!(!(0..100).all(|seed| is_kept(Some(PlantedBug::OpenedWithoutSync), seed)), "the check can fail");
}

#[test]
fn corruption_of_durable_entries_is_not_taken_for_a_torn_write() {
    let damaged = |planted| {
        let disk = SimDisk::default();
        let options = LogOptions { planted, ..options() };
        let (mut log, _) = JournalLog::open(Arc::new(disk.clone()), options.clone(), |_, _| {}).expect("it opens");
        for id in 0..2 {
            log.append([&started(id)], 1).and_then(|_| log.sync()).expect("the disk works");
        }
        disk.flip("journal-0000000001.log", 30, 3);
        JournalLog::open(Arc::new(disk), options, |_, _| {}).expect("it opens").1.is_damaged()
    };
    assert!(damaged(None));
    assert!(!damaged(Some(PlantedBug::CorruptionTakenForTornWrite)), "the check can fail");
}
