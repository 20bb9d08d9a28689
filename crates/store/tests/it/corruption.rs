//! Bits that flipped after they were written: the log opens, corruption is counted and copied aside, the rest is
//! served.

use crate::support::{
    FIRST_SEGMENT, Folder, Opened, TestDisk, batch, message_of, pending_of_bob, puts, settles, write,
};
use std::fs;
use std::ops::Range;
use std::sync::Arc;
use toolbus_engine::Seq;
use toolbus_store::sim_disk::SimDisk;
use toolbus_store::{Store, StoreOptions};

/// A log of three batches of three messages, and the byte range of the middle one.
fn log() -> (Vec<u8>, Range<usize>) {
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open();
    write(&store, &puts(1..4));
    let start = disk.bytes_of(FIRST_SEGMENT).len();
    write(&store, &puts(4..7));
    let end = disk.bytes_of(FIRST_SEGMENT).len();
    write(&store, &puts(7..10));
    (disk.bytes_of(FIRST_SEGMENT), start..end)
}

fn flipped<P: TestDisk>(bytes: &[u8], position: usize, bit: usize) -> P {
    let mut bytes = bytes.to_vec();
    bytes[position] ^= 1 << bit;
    P::holding(&bytes)
}

fn is_in_order(seqs: &[Seq]) -> bool {
    seqs.windows(2).all(|pair| pair[0] < pair[1])
}

fn check_flipped_bits<P: TestDisk>(every: usize) {
    let (bytes, middle) = log();
    for (position, bit) in middle.flat_map(|position| (0..8).map(move |bit| (position, bit))).step_by(every) {
        let disk: P = flipped(&bytes, position, bit);
        let Opened { store, recovery, replayed } = disk.open();
        let read = pending_of_bob(&store);
        assert!(is_in_order(&read), "byte {position}: {read:?}");
        assert!([1, 2, 3, 7, 8, 9].iter().all(|seq| read.contains(seq)), "byte {position}: {read:?}");
        assert!(read.len() >= 8, "byte {position}: {read:?}");
        assert_eq!(replayed.seqs(), read, "byte {position}");
        assert_eq!(recovery.damaged, 1, "byte {position}: {recovery:?}");
        assert!(recovery.damaged_bytes > 0, "byte {position}");
        assert_eq!(recovery.torn_bytes, 0, "byte {position}");
        assert_eq!(recovery.next_seq, 10, "byte {position}");
        drop(store);
        assert_eq!(disk.names("damaged-").len(), 1, "byte {position}");
    }
}

#[test]
fn a_flipped_bit_anywhere_in_a_middle_batch_costs_at_most_one_message() {
    check_flipped_bits::<SimDisk>(1);
}

#[test]
fn a_flipped_bit_in_a_folder_costs_at_most_one_message() {
    check_flipped_bits::<Folder>(149);
}

const SECRET: u64 = 0x5eed;

/// Replays a log whose second batch has a corrupt header and a body with forged batches, whose checksums are keyed with
/// the guessed seed.
fn replayed_with_forged_batches(guessed_seed: u64) -> Vec<Seq> {
    let with_seed = |checksum_seed| StoreOptions { checksum_seed, ..StoreOptions::default() };
    let forgery = SimDisk::default();
    let forger = forgery.open_with(with_seed(guessed_seed)).store;
    (900..910).for_each(|seq| write(&forger, &puts([seq])));
    let mut carrier = Arc::into_inner(message_of("bob", 2, 0)).unwrap();
    carrier.sealed = forgery.bytes_of(FIRST_SEGMENT).into();

    let disk = SimDisk::default();
    let store = disk.open_with(with_seed(SECRET)).store;
    write(&store, &puts([1]));
    let header = disk.bytes_of(FIRST_SEGMENT).len();
    write(&store, &batch(vec![carrier.into()]));
    write(&store, &puts([3]));
    // Overwrite the batch header and the record's length, so that replay has to scan the body for records.
    let mut bytes = disk.bytes_of(FIRST_SEGMENT);
    bytes[header..header + 40].fill(0xff);
    SimDisk::holding(&bytes).open_with(with_seed(SECRET)).replayed.seqs()
}

#[test]
fn batches_forged_in_a_body_are_not_replayed_from_a_corrupt_log() {
    for guess in [0, 1, SECRET + 1, u64::MAX] {
        assert_eq!(replayed_with_forged_batches(guess), [1, 3], "guessed {guess}");
    }
    let known = replayed_with_forged_batches(SECRET);
    assert!(known.contains(&905), "with the right key the forgery is accepted: {known:?}");
}

#[test]
fn corrupt_bytes_are_copied_unchanged() {
    let (bytes, middle) = log();
    let position = middle.end - 1;
    let disk: SimDisk = flipped(&bytes, position, 0);
    let recovery = disk.open().recovery;
    let kept = disk.bytes_of(&disk.names("damaged-")[0]);
    assert_eq!(kept.len() as u64, recovery.damaged_bytes);
    assert_eq!(kept.last(), Some(&(bytes[position] ^ 1)));
}

#[test]
fn a_corrupt_log_stays_usable() {
    let (bytes, middle) = log();
    for position in middle {
        let disk: SimDisk = flipped(&bytes, position, 3);
        let opened = disk.open();
        write(&opened.store, &puts([10]));
        let expected = pending_of_bob(&opened.store);
        drop(opened);
        let again = disk.open();
        assert_eq!(pending_of_bob(&again.store), expected, "byte {position}");
        assert_eq!(again.recovery.damaged, 1, "byte {position}");
    }
}

#[test]
fn corruption_before_a_torn_write_is_still_corruption_when_the_log_is_opened_again() {
    /// An offset in the first record of a batch, so that no message of the torn batch is kept.
    const IN_FIRST_RECORD: usize = 60;
    let (bytes, middle) = log();
    for position in middle.clone() {
        let mut bytes = bytes.clone();
        bytes[position] ^= 1;
        bytes[middle.end + IN_FIRST_RECORD] ^= 1;
        let disk = SimDisk::holding(&bytes);
        let Opened { store, recovery, .. } = disk.open();
        let expected = pending_of_bob(&store);
        assert!(expected.len() >= 5 && recovery.torn_bytes > 0, "byte {position}: {expected:?} {recovery:?}");
        drop(store);
        let again = disk.open();
        assert_eq!(pending_of_bob(&again.store), expected, "byte {position}");
        assert_eq!((again.recovery.damaged, again.recovery.torn_bytes), (1, 0), "byte {position}");
    }
}

#[test]
fn a_flipped_bit_in_the_last_batch_loses_no_earlier_batch() {
    let (bytes, middle) = log();
    for position in middle.end..bytes.len() {
        let disk: SimDisk = flipped(&bytes, position, position % 8);
        let Opened { store, recovery, .. } = disk.open();
        let read = pending_of_bob(&store);
        assert_eq!(read[..6], [1, 2, 3, 4, 5, 6], "byte {position}");
        assert!([7, 8, 9].starts_with(&read[6..]), "byte {position}: {read:?}");
        assert!(recovery.torn_bytes > 0, "byte {position}");
        drop(store);
        assert!(!disk.names("damaged-").is_empty(), "byte {position}");
    }
}

#[test]
fn an_unreadable_end_of_an_older_segment_is_corruption() {
    let options = StoreOptions { segment_bytes: 100, ..StoreOptions::default() };
    let folder = Folder::new();
    let Opened { store, .. } = folder.open_with(options.clone());
    write(&store, &puts(1..4));
    write(&store, &puts(4..7));
    drop(store);
    let mut bytes = fs::read(folder.first_segment()).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(folder.first_segment(), bytes).unwrap();
    let Opened { store, recovery, .. } = folder.open_with(options);
    assert_eq!(pending_of_bob(&store), [1, 2, 4, 5, 6]);
    assert_eq!((recovery.damaged, recovery.torn_bytes), (1, 0));
}

#[test]
fn corruption_found_while_reading_is_reported_and_other_messages_are_read() {
    let folder = Folder::new();
    let Opened { store, .. } = folder.open();
    write(&store, &batch((1..6).map(|seq| message_of("bob", seq, 300)).collect()));
    let mut bytes = fs::read(folder.first_segment()).unwrap();
    let inside_the_third = bytes.windows(300).position(|window| window == [3; 300]).unwrap() + 150;
    bytes[inside_the_third] ^= 1;
    fs::write(folder.first_segment(), bytes).unwrap();

    let page = store.read("bob", 0, 100, u64::MAX).unwrap();
    assert_eq!(page.damaged, [3]);
    assert_eq!(page.messages.iter().map(|it| it.seq).collect::<Vec<_>>(), [1, 2, 4, 5]);
    let page = store.read("bob", 3, 1, u64::MAX).unwrap();
    assert_eq!((page.messages.len(), page.damaged), (0, vec![3]), "also if it is the only message of the page");
    drop(store);
    assert_eq!(folder.names("damaged-").len(), 1, "copied once, however often it is read");
}

#[test]
fn corruption_found_by_reclaim_is_reported_when_the_mailbox_is_read() {
    let options = StoreOptions { segment_bytes: 1_000, history_ids: 0, ..StoreOptions::default() };
    let folder = Folder::new();
    let Opened { store, .. } = folder.open_with(options);
    (1..60).for_each(|seq| write(&store, &puts([seq])));
    let mut bytes = fs::read(folder.first_segment()).unwrap();
    let inside_the_first = bytes.windows(40).position(|window| window == [1; 40]).unwrap() + 20;
    bytes[inside_the_first] ^= 1;
    fs::write(folder.first_segment(), bytes).unwrap();
    (3..60).for_each(|seq| write(&store, &settles([seq])));
    assert!(store.reclaim().unwrap() > 0);
    assert!(!folder.first_segment().exists());
    let page = store.read("bob", 0, 100, u64::MAX).unwrap();
    assert_eq!(page.damaged, [1]);
    assert_eq!(page.messages.iter().map(|it| it.seq).collect::<Vec<_>>(), [2]);
}
