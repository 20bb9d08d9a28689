//! A crash at any moment: synced entries are known afterwards, and no started call counts as new.

use crate::support::{CONTENT, finish, key, reply, start, started};
use std::sync::Arc;
use toolbus_journal::{CallIndex, Entry, JournalLog, Known, Location, LogOptions};
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
