//! Journals that were written before both logs had one record format.

use crate::support::{CONTENT, key, reply, started};
use crate::test_journal::TestJournal;
use toolbus_journal::{JournalOptions, Known, Limits, LogOptions};
use toolbus_wal::Disk;
use toolbus_wal::sim_disk::SimDisk;

/// START and RESULT of call 1, START of 2, 3 joined to 2, task 4, dead letter 5, START of 6, dropped 7, RESULT of 6.
const SEGMENTS: [&[u8]; 3] = [
    include_bytes!("../samples/journal-0000000001.log"),
    include_bytes!("../samples/journal-0000000002.log"),
    include_bytes!("../samples/journal-0000000003.log"),
];

fn disk_with(segments: &[&[u8]]) -> SimDisk {
    let disk = SimDisk::default();
    for (number, bytes) in (1..).zip(segments) {
        let created = disk.create(&format!("journal-{number:010}.log"));
        created.and_then(|file| file.append(bytes)).expect("there is room");
    }
    disk.sync_folder().expect("the disk works");
    disk
}

fn open(disk: &SimDisk) -> TestJournal {
    let log = LogOptions { segment_bytes: 300, checksum_seed: 7, ..LogOptions::default() };
    let limits = Limits { keep_ms: 1 << 40, ..Limits::default() };
    TestJournal::open_with(disk, JournalOptions { log, limits, ..JournalOptions::default() }, 3000).expect("it opens")
}

fn check(journal: &TestJournal) {
    for id in [1, 6] {
        let Known::Answered { reply: location, .. } = journal.known(&key(id), &CONTENT) else { panic!("answered") };
        assert_eq!(journal.payload(&location), reply(id));
    }
    for id in [2, 3, 4] {
        assert_ne!(journal.known(&key(id), &CONTENT), Known::New, "call {id}");
    }
    assert_eq!(journal.index().dead_letters().len(), 1);
}

#[test]
fn a_journal_of_the_older_format_is_replayed_and_continued() {
    let disk = disk_with(&SEGMENTS);
    let mut journal = open(&disk);
    assert_eq!((journal.recovery.records, journal.recovery.is_damaged()), (9, false));
    check(&journal);
    journal.write(&[started(8)], 3000, true).expect("written");
    let again = open(&disk);
    assert_eq!((again.recovery.records, again.recovery.torn_bytes, again.recovery.is_damaged()), (10, 0, false));
    check(&again);
    assert_ne!(again.known(&key(8), &CONTENT), Known::New);
}

#[test]
fn damage_of_the_older_format_is_noticed() {
    for position in 0..SEGMENTS[0].len() {
        let mut changed = SEGMENTS[0].to_vec();
        changed[position] ^= 1;
        let recovery = open(&disk_with(&[&changed, SEGMENTS[1], SEGMENTS[2]])).recovery;
        assert_eq!((recovery.damaged, recovery.torn_bytes), (1, 0), "byte {position}");
    }
    let torn = open(&disk_with(&[SEGMENTS[0], &SEGMENTS[1][..SEGMENTS[1].len() - 1]])).recovery;
    assert!(torn.torn_bytes > 0 && !torn.is_damaged());
}
