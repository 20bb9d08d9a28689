//! Data folders whose log was written before both logs had one record format: they are opened, read and continued.

use crate::support::{Opened, TestDisk, pending_of_bob, puts, settled, settles, write};
use toolbus_engine::AttemptsNote;
use toolbus_store::sim_disk::SimDisk;
use toolbus_store::{Disk, Store, StoreOptions};

/// Messages 1 to 3; a settlement of 2, two attempts of 3, and elided messages up to 19; messages 20 to 22; a settlement
/// of 21, and elided messages up to 29.
const SEGMENTS: [&[u8]; 3] = [
    include_bytes!("../samples/segment-0000000001.log"),
    include_bytes!("../samples/segment-0000000002.log"),
    include_bytes!("../samples/segment-0000000003.log"),
];

fn options() -> StoreOptions {
    StoreOptions { segment_bytes: 400, checksum_seed: 7, ..StoreOptions::default() }
}

fn disk_with(segments: &[&[u8]]) -> SimDisk {
    let disk = SimDisk::default();
    for (number, bytes) in (1..).zip(segments) {
        disk.create(&format!("segment-{number:010}.log")).and_then(|file| file.append(bytes)).unwrap();
    }
    disk.sync_folder().unwrap();
    disk
}

#[test]
fn a_log_of_the_older_format_is_replayed_continued_and_reclaimed() {
    let disk = disk_with(&SEGMENTS);
    let Opened { store, recovery, replayed } = disk.open_with(options());
    assert_eq!((recovery.next_seq, recovery.torn_bytes, recovery.damaged), (30, 0, 0));
    assert_eq!(replayed.settled, [settled("bob", 2), settled("bob", 21)]);
    assert_eq!(replayed.attempts, [AttemptsNote { mailbox: "bob".into(), seq: 3, attempts: 2 }]);
    assert_eq!(pending_of_bob(&store), [1, 3, 20, 22]);
    write(&store, &puts([30]));
    drop(store);
    let Opened { store, recovery, .. } = disk.open_with(options());
    assert_eq!((recovery.next_seq, recovery.torn_bytes, recovery.damaged), (31, 0, 0), "both formats in one log");
    write(&store, &settles([1, 3, 20]));
    store.reclaim_urgently().unwrap();
    assert!(!disk.names("segment-").contains(&"segment-0000000001.log".into()));
    assert_eq!(pending_of_bob(&store), [22, 30]);
    drop(store);
    let again = disk.open_with(options());
    assert_eq!((pending_of_bob(&again.store), again.recovery.next_seq), (vec![22, 30], 31));
}

#[test]
fn a_torn_end_of_the_older_format_is_told_from_corruption() {
    // The second segment has two batches; the first one ends where the second begins.
    let second_batch = SEGMENTS[1].windows(4).rposition(|bytes| bytes == 0x5442_4c31_u32.to_le_bytes()).unwrap();
    assert!(second_batch > 0);
    for position in 0..SEGMENTS[1].len() {
        let mut changed = SEGMENTS[1].to_vec();
        changed[position] ^= 1;
        let Opened { store, recovery, .. } = disk_with(&[SEGMENTS[0], &changed]).open_with(options());
        let is_torn = position >= second_batch;
        assert_eq!((recovery.torn_bytes > 0, recovery.damaged > 0), (is_torn, !is_torn), "byte {position}");
        assert!(pending_of_bob(&store).starts_with(&[1]), "byte {position}");
        let Opened { recovery, .. } = disk_with(&[SEGMENTS[0], &SEGMENTS[1][..position]]).open_with(options());
        assert_eq!(recovery.damaged, 0, "cut at {position}");
        let Opened { recovery, .. } = disk_with(&[SEGMENTS[0], &changed, SEGMENTS[2]]).open_with(options());
        assert_eq!((recovery.damaged, recovery.torn_bytes, recovery.next_seq), (1, 0, 30), "byte {position}");
    }
}
