//! Compaction: pending messages are copied before their segment is removed, and no crash or full disk may lose them.

use crate::support::{Opened, TestDisk, batch, message_of, pending_of_bob, puts, settled, settles, write};
use toolbus_engine::{AttemptsNote, Batch, Seq, Settled};
use toolbus_store::sim_disk::{Rng, SimDisk};
use toolbus_store::{Store, StoreOptions};

fn small() -> StoreOptions {
    StoreOptions { segment_bytes: 1_000, ..StoreOptions::default() }
}

/// Writes messages to bob and settles them at once, so that their records are waste.
fn waste(store: &impl Store, seqs: std::ops::Range<Seq>) {
    for seq in seqs {
        write(store, &puts([seq]));
        write(store, &settles([seq]));
    }
}

fn used(disk: &SimDisk) -> u64 {
    disk.files().iter().map(|(_, bytes)| *bytes as u64).sum()
}

/// Copies of old messages come after newer ones in the log, but before them in the mailbox.
#[test]
fn messages_after_a_copied_one_are_copied_too() {
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open_with(small());
    let mut stuck = Vec::new();
    for first in (1..200).step_by(10) {
        write(&store, &puts(first..first + 10));
        write(&store, &settles(first + 1..first + 10));
        stuck.push(first);
        store.reclaim().unwrap();
        assert_eq!(pending_of_bob(&store), stuck);
    }
    assert!(!disk.names("segment-").contains(&"segment-0000000001.log".into()), "nothing was moved");
    drop(store);
    assert_eq!(pending_of_bob(&disk.open_with(small()).store), stuck);
}

#[test]
fn a_segment_with_many_pending_messages_is_copied_completely() {
    let disk = SimDisk::default();
    let options = StoreOptions { segment_bytes: 8_000, ..StoreOptions::default() };
    let Opened { store, .. } = disk.open_with(options);
    write(&store, &puts(1..41));
    waste(&store, 41..300);
    store.reclaim().unwrap();
    assert!(!disk.names("segment-").contains(&"segment-0000000001.log".into()), "nothing was moved");
    assert_eq!(pending_of_bob(&store), (1..41).collect::<Vec<_>>());
}

#[test]
fn a_full_disk_stops_compaction_and_loses_nothing() {
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open_with(small());
    (1..41).for_each(|seq| write(&store, &batch(vec![message_of("bob", seq, 300)])));
    write(&store, &settles((1..41).filter(|seq| seq % 4 != 0)));
    disk.set_capacity(Some(used(&disk)));
    store.reclaim().unwrap();
    let left: Vec<Seq> = (1..11).map(|n| n * 4).collect();
    assert_eq!(pending_of_bob(&store), left);
    disk.set_capacity(None);
    store.reclaim().unwrap();
    assert_eq!(pending_of_bob(&store), left);
}

#[test]
fn reclaim_terminates_when_settled_ids_exceed_a_segment() {
    let disk = SimDisk::default();
    let options = StoreOptions { segment_bytes: 200, ..StoreOptions::default() };
    let Opened { store, .. } = disk.open_with(options.clone());
    for seq in 1..100 {
        waste(&store, seq..seq + 1);
        store.reclaim().unwrap();
    }
    drop(store);
    assert!(used(&disk) < 20_000, "{} bytes are left", used(&disk));
    assert_eq!(disk.open_with(options).recovery.next_seq, 100);
}

#[test]
fn no_sequence_number_is_reused_when_only_copies_are_left() {
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open_with(small());
    write(&store, &puts([1]));
    waste(&store, 2..100);
    // Enough rounds to remove every batch that the engine wrote.
    for _ in 0..20 {
        store.reclaim().unwrap();
    }
    drop(store);
    assert_eq!(disk.open_with(small()).recovery.next_seq, 100);
}

#[test]
fn a_settled_message_is_kept_until_its_settlement_is_durable() {
    for seed in 0..50 {
        let disk = SimDisk::default();
        let Opened { store, .. } = disk.open_with(small());
        write(&store, &batch(vec![message_of("bob", 1, 2_000)]));
        write(&store, &puts([2]));
        // The reply and the settlement of its request are written together, and not yet synced.
        let reply = batch(vec![message_of("carol", 3, 10)]);
        store.write(&Batch { settled: vec![settled("bob", 1)], ..reply }).unwrap();
        store.reclaim().unwrap();
        drop(store);
        disk.crash(&mut Rng::new(seed));
        let again = disk.open_with(small());
        let reply = again.store.read("carol", 0, 10, u64::MAX).unwrap().messages;
        assert!(
            !reply.is_empty() || pending_of_bob(&again.store).contains(&1),
            "seed {seed}: request and reply are lost"
        );
    }
}

#[test]
fn a_torn_log_opens_on_a_full_disk() {
    for seed in 0..60 {
        let disk = SimDisk::default();
        let Opened { store, .. } = disk.open();
        write(&store, &puts([1]));
        store.write(&puts(2..6)).unwrap();
        drop(store);
        disk.crash(&mut Rng::new(seed));
        disk.set_capacity(Some(used(&disk)));
        let again = disk.open();
        assert_eq!(pending_of_bob(&again.store), again.replayed.seqs(), "seed {seed}: replay and index agree");
        assert_eq!(again.replayed.seqs()[0], 1, "seed {seed}");
    }
}

fn attempts(seq: Seq, attempts: u32) -> Batch {
    Batch { attempts: vec![AttemptsNote { mailbox: "bob".into(), seq, attempts }], ..Batch::default() }
}

/// Otherwise a restart would count the attempts of a message from zero, and it would never be dead-lettered.
#[test]
fn the_attempts_of_a_copied_message_are_copied() {
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open_with(small());
    write(&store, &puts([1, 2]));
    write(&store, &attempts(1, 1));
    waste(&store, 3..30);
    // In a later segment than the message.
    write(&store, &attempts(1, 2));
    write(&store, &attempts(2, 7));
    write(&store, &settles([2]));
    waste(&store, 30..100);
    let counted =
        |opened: &Opened| opened.replayed.attempts.iter().rfind(|note| note.seq == 1).map(|note| note.attempts);
    for round in 1..4 {
        store.reclaim().unwrap();
        waste(&store, round * 100..round * 100 + 100);
    }
    store.reclaim().unwrap();
    drop(store);
    let mut opened = disk.open_with(small());
    assert_eq!((pending_of_bob(&opened.store), counted(&opened)), (vec![1], Some(2)));
    assert!(opened.replayed.attempts.iter().all(|note| note.seq == 1), "those of settled messages are forgotten");
    // Also by a store that learned of them from its log.
    let before = disk.names("segment-");
    for round in 5..9 {
        waste(&opened.store, round * 100..round * 100 + 100);
        opened.store.reclaim().unwrap();
    }
    assert!(!disk.names("segment-").iter().any(|name| before.contains(name)), "nothing was moved");
    drop(opened);
    opened = disk.open_with(small());
    assert_eq!((pending_of_bob(&opened.store), counted(&opened)), (vec![1], Some(2)));
}

/// The ids of settled messages after reopening, oldest first.
fn remembered(disk: &SimDisk, options: &StoreOptions) -> Vec<u64> {
    let mut ids: Vec<u64> = disk.open_with(options.clone()).replayed.settled.iter().map(|id| id.content / 7).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn settle_at(store: &impl Store, seq: Seq, at: u64) {
    write(store, &puts([seq]));
    let settled = vec![Settled { at, ..settled("bob", seq) }];
    write(store, &Batch { settled, ..Batch::default() });
}

#[test]
fn the_newest_ids_are_remembered_however_often_they_are_rewritten() {
    let options = StoreOptions { history_ids: 20, ..small() };
    let disk = SimDisk::default();
    let mut store = disk.open_with(options.clone()).store;
    for seq in 1..200 {
        settle_at(&store, seq, 1_000 + seq);
        store.reclaim().unwrap();
        if seq % 23 == 0 {
            drop(store);
            store = disk.open_with(options.clone()).store;
        }
    }
    drop(store);
    let ids = remembered(&disk, &options);
    assert!((180..200).all(|seq| ids.contains(&seq)), "{ids:?}");
    assert!(ids.len() < 60, "older ones are forgotten: {ids:?}");
}

#[test]
fn ids_are_forgotten_by_their_age_after_they_were_rewritten() {
    let options = StoreOptions { history_age: 1_000, ..small() };
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open_with(options.clone());
    (1..40).for_each(|seq| settle_at(&store, seq, 1_000));
    store.reclaim().unwrap();
    (40..80).for_each(|seq| settle_at(&store, seq, 1_500));
    store.reclaim().unwrap();
    (80..120).for_each(|seq| settle_at(&store, seq, 2_400));
    store.reclaim().unwrap();
    drop(store);
    let ids = remembered(&disk, &options);
    assert!((40..120).all(|seq| ids.contains(&seq)), "{ids:?}");
    assert!(!ids.contains(&1), "{ids:?}");
}
