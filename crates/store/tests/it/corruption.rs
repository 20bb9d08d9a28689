//! Bits that flipped after they were written: the log opens, corruption is counted and copied aside, the rest is
//! served.

use crate::support::{
    FIRST_SEGMENT, Folder, Opened, TestDisk, batch, message_of, pending_of_bob, puts, settles, write,
};
use std::fs;
use std::ops::Range;

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
