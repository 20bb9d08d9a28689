//! A torn write at the end of the log is truncated wherever the crash hit, and all earlier batches are kept.

use crate::support::{FIRST_SEGMENT, Folder, Opened, TestDisk, pending_of_bob, puts, write};
use toolbus_store::sim_disk::SimDisk;

/// A log of three batches, and the offset of the last one.
fn log() -> (Vec<u8>, usize) {
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open();
    write(&store, &puts(1..4));
    write(&store, &puts(4..6));
    let before = disk.bytes_of(FIRST_SEGMENT).len();
    write(&store, &puts(6..9));
    (disk.bytes_of(FIRST_SEGMENT), before)
}

#[test]
fn a_log_cut_anywhere_in_its_last_batch_opens_with_all_earlier_batches() {
    let (bytes, last) = log();
    for length in last..bytes.len() {
        let Opened { store, recovery, replayed } = SimDisk::holding(&bytes[..length]).open();
        let read = pending_of_bob(&store);
        assert_eq!(read[..5], [1, 2, 3, 4, 5], "cut at {length}");
        assert!([6, 7, 8].starts_with(&read[5..]), "cut at {length}: {read:?}");
        assert_eq!(replayed.seqs(), read, "cut at {length}: replay and index agree");
        assert_eq!(recovery.damaged, 0, "cut at {length}: a torn write is not corruption");
    }
}

#[test]
fn a_repaired_log_stays_usable_and_needs_no_second_repair() {
    let (bytes, last) = log();
    for length in last + 1..bytes.len() {
        let disk = SimDisk::holding(&bytes[..length]);
        let opened = disk.open();
        let next = opened.recovery.next_seq;
        write(&opened.store, &puts([next]));
        let expected = pending_of_bob(&opened.store);
        assert_eq!(expected.last(), Some(&next), "cut at {length}: no sequence number is reused");
        drop(opened);
        let again = disk.open();
        assert_eq!(again.recovery.torn_bytes, 0, "cut at {length}");
        assert_eq!(again.recovery.damaged, 0, "cut at {length}");
        assert_eq!(pending_of_bob(&again.store), expected, "cut at {length}");
    }
}

#[test]
fn intact_messages_at_the_head_of_a_torn_batch_are_kept() {
    let (bytes, _) = log();
    let folder = Folder::holding(&bytes[..bytes.len() - 1]);
    assert_eq!(pending_of_bob(&folder.open().store), [1, 2, 3, 4, 5, 6, 7], "all but the truncated one");
}
