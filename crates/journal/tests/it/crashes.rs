//! A crash at any moment: what was synced is known afterwards, and nothing that was begun is taken for new.

use crate::support::{CONTENT, finish, key, reply, start, started};
use std::sync::Arc;
use toolbus_journal::{Book, Entry, JournalLog, Known, LogOptions, Place};
use toolbus_wal::sim_disk::{Rng, SimDisk};

/// Small segments, so that crashes meet the beginning of one.
fn options() -> LogOptions {
    LogOptions { segment_bytes: 200, checksum_seed: 5, ..LogOptions::default() }
}

/// What was promised before the crash.
#[derive(Default)]
struct Promised {
    begun: Vec<u64>,
    answered: Vec<u64>,
}

/// Runs calls until the disk fails; returns what had been synced by then.
fn run_until_the_end(disk: &SimDisk, calls: u64) -> Promised {
    let mut promised = Promised::default();
    let Ok((mut log, _)) = JournalLog::open(Arc::new(disk.clone()), options(), |_, _| {}) else { return promised };
    for id in 0..calls {
        if log.append([&started(id)], start(id).at).and_then(|_| log.sync()).is_err() {
            return promised;
        }
        promised.begun.push(id);
        if id % 3 == 2 {
            continue;
        }
        if log.append([&Entry::Finish(finish(id))], finish(id).at).and_then(|_| log.sync()).is_err() {
            return promised;
        }
        promised.answered.push(id);
    }
    promised
}

fn check(disk: &SimDisk, promised: &Promised, what: &str) {
    let mut book = Book::default();
    let (log, recovery) =
        JournalLog::open(Arc::new(disk.clone()), options(), |entry, place: Place| book.restore(&entry, place))
            .expect("the journal opens after every crash");
    assert_eq!(recovery.damaged_bytes, 0, "{what}: a crash is no damage");
    for id in &promised.begun {
        let known = book.look_up(&key(*id), &CONTENT).expect("the same call");
        assert_ne!(known, Known::New, "{what}: call {id} was begun");
    }
    for id in &promised.answered {
        let Ok(Known::Answered { reply: place, .. }) = book.look_up(&key(*id), &CONTENT) else {
            panic!("{what}: call {id} was answered");
        };
        let Ok(Entry::Finish(kept)) = log.reader().read(&place) else {
            panic!("{what}: the answer of {id} can be read")
        };
        assert_eq!(kept.reply, reply(*id));
    }
}

#[test]
fn after_a_crash_at_any_call_of_the_disk_everything_promised_is_known() {
    for seed in 0..4 {
        let whole = SimDisk::default();
        run_until_the_end(&whole, 12);
        for calls in 0..whole.calls() {
            let disk = SimDisk::default();
            disk.stop_after(Some(calls));
            let promised = run_until_the_end(&disk, 12);
            disk.stop_after(None);
            disk.crash(&mut Rng::new(seed * 1000 + calls));
            check(&disk, &promised, &format!("seed {seed}, stopped after {calls} calls"));
        }
    }
}

#[test]
fn without_syncs_promises_are_broken_and_the_test_sees_it() {
    let broken = (0..200).any(|seed| {
        let disk = SimDisk::default();
        let planted = LogOptions { planted_no_sync: true, ..options() };
        let (mut log, _) = JournalLog::open(Arc::new(disk.clone()), planted, |_, _| {}).expect("it opens");
        log.append([&started(1)], 1).and_then(|_| log.sync()).expect("the disk works");
        disk.crash(&mut Rng::new(seed));
        let mut book = Book::default();
        JournalLog::open(Arc::new(disk), options(), |entry, place| book.restore(&entry, place)).expect("it opens");
        book.look_up(&key(1), &CONTENT) == Ok(Known::New)
    });
    assert!(broken);
}

#[test]
fn damage_in_the_middle_is_told_and_costs_one_entry() {
    let disk = SimDisk::default();
    let large = LogOptions { segment_bytes: 1 << 20, ..options() };
    let (mut log, _) = JournalLog::open(Arc::new(disk.clone()), large.clone(), |_, _| {}).expect("it opens");
    let places = log.append(&[0, 1, 2].map(started), 1).expect("the disk works");
    let Place::Log { offset, length, .. } = places[1] else { panic!("it is written") };
    log.sync().expect("the disk works");
    // Only what comes after it tells that it was safe.
    log.append([&started(3)], 1).and_then(|_| log.sync()).expect("the disk works");
    disk.flip("journal-0000000001.log", offset as usize + 20, 3);
    let mut book = Book::default();
    let (_, recovery) =
        JournalLog::open(Arc::new(disk), large, |entry, place| book.restore(&entry, place)).expect("it opens");
    assert_eq!(recovery.damaged_bytes, u64::from(length));
    let known = [0, 1, 2].map(|id| book.look_up(&key(id), &CONTENT) != Ok(Known::New));
    assert_eq!(known, [true, false, true]);
}
