//! Bits that flipped after they were written: the log opens, damage is counted and kept, and the rest is served.

use crate::support::{FIRST_SEGMENT, Folder, Opened, Place, batch, bobs, message_of, puts, settles, write};
use std::fs;
use std::ops::Range;
use std::sync::Arc;
use toolbus_engine::Seq;
use toolbus_store::sim_disk::SimDisk;
use toolbus_store::{Store, StoreOptions};

/// A log of three batches of three messages, and where the middle one is.
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

fn flipped<P: Place>(bytes: &[u8], position: usize, bit: usize) -> P {
    let mut bytes = bytes.to_vec();
    bytes[position] ^= 1 << bit;
    P::holding(&bytes)
}

fn is_in_order(seqs: &[Seq]) -> bool {
    seqs.windows(2).all(|pair| pair[0] < pair[1])
}

fn one_flipped_bit_costs_at_most_one_message<P: Place>(every: usize) {
    let (bytes, middle) = log();
    for (position, bit) in middle.flat_map(|position| (0..8).map(move |bit| (position, bit))).step_by(every) {
        let place: P = flipped(&bytes, position, bit);
        let Opened { store, recovery, replayed } = place.open();
        let read = bobs(&store);
        assert!(is_in_order(&read), "byte {position}: {read:?}");
        assert!([1, 2, 3, 7, 8, 9].iter().all(|seq| read.contains(seq)), "byte {position}: {read:?}");
        assert!(read.len() >= 8, "byte {position}: {read:?}");
        assert_eq!(replayed.seqs(), read, "byte {position}");
        assert_eq!(recovery.damaged, 1, "byte {position}: {recovery:?}");
        assert!(recovery.damaged_bytes > 0, "byte {position}");
        assert_eq!(recovery.torn_bytes, 0, "byte {position}");
        assert_eq!(recovery.next_seq, 10, "byte {position}");
        drop(store);
        assert_eq!(place.names("damaged-").len(), 1, "byte {position}");
    }
}

#[test]
fn a_flipped_bit_anywhere_in_a_middle_batch_costs_at_most_one_message() {
    one_flipped_bit_costs_at_most_one_message::<SimDisk>(1);
}

#[test]
fn so_it_does_in_a_folder() {
    one_flipped_bit_costs_at_most_one_message::<Folder>(149);
}

const SECRET: u64 = 0x5eed;

/// What is replayed of a log whose second batch has a damaged header and a body with whole batches in it, made by
/// someone who takes that for the log's key.
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
    // The header and the length of the message's record: nothing says any more what the bytes behind them are.
    let mut bytes = disk.bytes_of(FIRST_SEGMENT);
    bytes[header..header + 40].fill(0xff);
    SimDisk::holding(&bytes).open_with(with_seed(SECRET)).replayed.seqs()
}

#[test]
fn batches_forged_in_a_body_are_not_replayed_from_a_damaged_log() {
    for guess in [0, 1, SECRET + 1, u64::MAX] {
        assert_eq!(replayed_with_forged_batches(guess), [1, 3], "guessed {guess}");
    }
    let known = replayed_with_forged_batches(SECRET);
    assert!(known.contains(&905), "the forgery is good but for its key: {known:?}");
}

#[test]
fn damage_is_kept_as_it_was_found() {
    let (bytes, middle) = log();
    let position = middle.end - 1;
    let disk: SimDisk = flipped(&bytes, position, 0);
    let recovery = disk.open().recovery;
    let kept = disk.bytes_of(&disk.names("damaged-")[0]);
    assert_eq!(kept.len() as u64, recovery.damaged_bytes);
    assert_eq!(kept.last(), Some(&(bytes[position] ^ 1)));
}

#[test]
fn a_damaged_log_goes_on() {
    let (bytes, middle) = log();
    for position in middle {
        let disk: SimDisk = flipped(&bytes, position, 3);
        let opened = disk.open();
        write(&opened.store, &puts([10]));
        let expected = bobs(&opened.store);
        drop(opened);
        let again = disk.open();
        assert_eq!(bobs(&again.store), expected, "byte {position}");
        assert_eq!(again.recovery.damaged, 1, "byte {position}");
    }
}

#[test]
fn a_flipped_bit_in_the_last_batch_loses_no_earlier_batch() {
    let (bytes, middle) = log();
    for position in middle.end..bytes.len() {
        let disk: SimDisk = flipped(&bytes, position, position % 8);
        let Opened { store, recovery, .. } = disk.open();
        let read = bobs(&store);
        assert_eq!(read[..6], [1, 2, 3, 4, 5, 6], "byte {position}");
        assert!([7, 8, 9].starts_with(&read[6..]), "byte {position}: {read:?}");
        assert!(recovery.torn_bytes > 0, "byte {position}");
        drop(store);
        assert!(!disk.names("damaged-").is_empty(), "byte {position}");
    }
}

#[test]
fn damage_at_the_end_of_an_older_segment_is_damage_and_no_crash() {
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
    assert_eq!(bobs(&store), [1, 2, 4, 5, 6]);
    assert_eq!((recovery.damaged, recovery.torn_bytes), (1, 0));
}

#[test]
fn damage_found_while_reading_is_named_and_the_others_are_read() {
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
    assert_eq!((page.messages.len(), page.damaged), (0, vec![3]), "alone too");
    drop(store);
    assert_eq!(folder.names("damaged-").len(), 1, "kept once, however often it is read");
}

#[test]
fn damage_found_while_space_is_given_back_is_named_when_the_mailbox_is_read() {
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
