//! The name of a journal: it changes when entries may have been lost, and the change survives the process that noticed it.

use crate::support::{CONTENT, key, start, started};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use toolbus_journal::{
    Journal, JournalIdentity, JournalLog, JournalOptions, JournalState, Known, Limits, LogOptions, Wait, lineage,
};
use toolbus_wal::sim_disk::{Rng, SimDisk};

const SEGMENT: &str = "journal-0000000001.log";

fn open(folder: &Path) -> (JournalIdentity, Known) {
    let journal = Journal::open(folder, JournalOptions::default()).expect("it opens");
    (journal.identity().clone(), journal.look_up(&key(1), &CONTENT).expect("the same call"))
}

#[tokio::test]
async fn the_new_name_of_a_damaged_journal_is_kept_by_later_processes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let journal = Journal::open(folder.path(), JournalOptions::default()).expect("an empty folder opens");
    let first = journal.identity().clone();
    journal.start(start(1), Wait::Synced).await.expect("written");
    drop(journal);
    let (whole, _) = open(folder.path());
    assert_eq!((&whole.journal, whole.epoch), (&first.journal, 2));

    let mut bytes = fs::read(folder.path().join(SEGMENT)).expect("a segment");
    // The last byte of the record, before the marker of the log's end.
    let end = bytes.windows(7).rposition(|window| window == b"\0tb-end").expect("a marker");
    bytes[end - 1] ^= 1;
    fs::write(folder.path().join(SEGMENT), bytes).expect("a segment");
    // This process ends before it connects.
    let (damaged, known) = open(folder.path());
    assert_eq!(known, Known::New, "the START is lost");
    assert_ne!(damaged.journal, first.journal);
    for epoch in 4..6 {
        let (later, _) = open(folder.path());
        assert_eq!((&later.journal, later.epoch), (&damaged.journal, epoch));
    }
}

/// A disk with two started calls.
fn disk_with_calls() -> SimDisk {
    let disk = SimDisk::default();
    let (mut log, _) = JournalLog::open(Arc::new(disk.clone()), LogOptions::default(), |_, _| {}).expect("it opens");
    for id in [1, 2] {
        log.append([&started(id)], 1).and_then(|_| log.sync()).expect("the disk works");
    }
    disk
}

/// Damages the last record.
fn damage_end(disk: &SimDisk) {
    let length = disk.files().into_iter().find(|(name, _)| name == SEGMENT).expect("a segment").1;
    disk.flip(SEGMENT, length - 1, 0);
}

fn reopen(disk: &SimDisk, options: JournalOptions) -> bool {
    JournalState::open(Arc::new(disk.clone()), options, 1).is_ok()
}

fn lineage_of(disk: &SimDisk) -> Option<String> {
    lineage(disk).expect("the disk works")
}

#[test]
fn a_repaired_journal_has_a_new_name_wherever_the_repair_was_interrupted() {
    let whole = disk_with_calls();
    damage_end(&whole);
    let before = whole.calls();
    assert!(reopen(&whole, JournalOptions::default()));
    for (calls, loses_power) in (0..whole.calls() - before).flat_map(|calls| [(calls, false), (calls, true)]) {
        let disk = disk_with_calls();
        let mut names = vec![None];
        // The second time, the journal has had another name before.
        for seed in 0..2 {
            damage_end(&disk);
            disk.stop_after(Some(calls));
            reopen(&disk, JournalOptions::default());
            disk.stop_after(None);
            let mut rng = Rng::new(calls * 10 + seed);
            if loses_power {
                disk.crash(&mut rng);
            }
            assert!(reopen(&disk, JournalOptions::default()));
            let name = lineage_of(&disk);
            assert!(!names.contains(&name), "stopped after {calls} calls: {name:?} in {names:?}");
            if loses_power {
                // The file of the earlier name may come back.
                disk.crash(&mut rng);
            }
            assert!(reopen(&disk, JournalOptions::default()));
            assert_eq!(lineage_of(&disk), name, "no entry was lost since");
            names.push(name);
        }
    }
}

#[test]
fn a_journal_that_lost_entries_without_a_repair_has_a_new_name() {
    let disk = disk_with_calls();
    assert!(reopen(&disk, JournalOptions::default()) && lineage_of(&disk).is_none());

    let corrupt = disk.fork();
    corrupt.flip(SEGMENT, 30, 0);
    assert!(reopen(&corrupt, JournalOptions::default()) && lineage_of(&corrupt).is_some());

    let limits = Limits { max_interrupted: 1, ..Limits::default() };
    assert!(reopen(&disk, JournalOptions { limits, ..JournalOptions::default() }));
    assert!(lineage_of(&disk).is_some(), "a call was forgotten");
}

#[test]
fn an_older_copy_of_a_journal_does_not_name_the_openings_of_the_original_since() {
    let (folder, copy) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let (first, _) = open(folder.path());
    for file in fs::read_dir(folder.path()).expect("a folder").flatten() {
        fs::copy(file.path(), copy.path().join(file.file_name())).expect("copied");
    }
    let (second, _) = open(folder.path());
    assert_eq!(second.ancestors, std::slice::from_ref(&first.instance));
    open(copy.path());
    let (copied, _) = open(copy.path());
    assert!(copied.journal == second.journal && copied.epoch > second.epoch);
    assert!(copied.ancestors.contains(&first.instance) && !copied.ancestors.contains(&second.instance));
}
