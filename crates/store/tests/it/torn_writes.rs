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

fn check_earlier_batches<P: TestDisk>(every: usize) {
    let (bytes, last) = log();
    for length in (last..bytes.len()).step_by(every) {
        let disk = P::holding(&bytes[..length]);
        let Opened { store, recovery, replayed } = disk.open();
        let read = pending_of_bob(&store);
        assert_eq!(read[..5], [1, 2, 3, 4, 5], "cut at {length}");
        assert!([6, 7, 8].starts_with(&read[5..]), "cut at {length}: {read:?}");
        assert_eq!(replayed.seqs(), read, "cut at {length}: replay and index agree");
        assert_eq!(recovery.damaged, 0, "cut at {length}: a torn write is not corruption");
        drop(store);
        let kept = disk.bytes_of(FIRST_SEGMENT).len();
        assert_eq!(kept + recovery.torn_bytes as usize, length, "cut at {length}: the rest is unchanged");
    }
}

#[test]
fn a_log_cut_anywhere_in_its_last_batch_opens_with_all_earlier_batches() {
    check_earlier_batches::<SimDisk>(1);
}

#[test]
fn a_log_in_a_folder_cut_in_its_last_batch_opens_with_all_earlier_batches() {
    check_earlier_batches::<Folder>(23);
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

#[test]
fn a_truncated_torn_write_is_copied_aside() {
    let (bytes, _) = log();
    let folder = Folder::holding(&bytes[..bytes.len() - 1]);
    let torn_bytes = folder.open().recovery.torn_bytes as usize;
    let kept = folder.names("damaged-");
    assert_eq!(kept.len(), 1);
    assert_eq!(folder.bytes_of(&kept[0]), bytes[bytes.len() - 1 - torn_bytes..bytes.len() - 1]);
}

#[test]
fn trailing_zeros_are_truncated() {
    let (mut bytes, _) = log();
    bytes.extend([0; 5_000]);
    let folder = Folder::holding(&bytes);
    let Opened { store, recovery, .. } = folder.open();
    assert_eq!(pending_of_bob(&store), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!((recovery.torn_bytes, recovery.damaged), (5_000, 0));
}

/// A file may get blocks of a removed one, whose batches are intact and have the same key.
#[test]
fn batches_of_a_removed_file_behind_the_end_are_not_replayed() {
    let (bytes, last) = log();
    for leftover in [&bytes[..], &bytes[..last], &bytes[last..]] {
        let mut with_leftover = bytes.clone();
        with_leftover.extend(leftover);
        let disk = SimDisk::holding(&with_leftover);
        let Opened { store, recovery, replayed } = disk.open();
        assert_eq!(replayed.seqs(), (1..9).collect::<Vec<_>>(), "each message once");
        assert_eq!((recovery.torn_bytes, recovery.damaged), (leftover.len() as u64, 0));
        assert_eq!(recovery.next_seq, 9);
        write(&store, &puts([9]));
        drop(store);
        let again = disk.open();
        assert_eq!((again.replayed.seqs().len(), again.recovery.torn_bytes), (9, 0));
    }
}
