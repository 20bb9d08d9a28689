//! Reclaim frees settled messages, and keeps pending messages and settled ids.

use crate::support::{Folder, Opened, TestDisk, pending_of_bob, puts, settled, settles, write};
use toolbus_engine::Batch;
use toolbus_store::sim_disk::SimDisk;
use toolbus_store::{Store, StoreError, StoreOptions};

fn small() -> StoreOptions {
    StoreOptions { segment_bytes: 1_000, ..StoreOptions::default() }
}

/// Keeps no settled ids, so that reclaim has none to rewrite.
fn without_history() -> StoreOptions {
    StoreOptions { history_ids: 0, ..small() }
}

fn fill(store: &impl Store, seqs: std::ops::Range<u64>) {
    let seqs: Vec<u64> = seqs.collect();
    seqs.chunks(5).for_each(|some| write(store, &puts(some.iter().copied())));
}

fn settle(store: &impl Store, seqs: std::ops::Range<u64>) {
    let seqs: Vec<u64> = seqs.collect();
    seqs.chunks(5).for_each(|some| write(store, &settles(some.iter().copied())));
}

fn bytes_on(disk: &impl TestDisk) -> u64 {
    let disk = disk.disk();
    let sizes = disk.list().unwrap().into_iter().filter(|name| name.starts_with("segment-"));
    sizes.map(|name| disk.open(&name).unwrap().size().unwrap()).sum()
}

fn the_space_of_settled_messages_is_freed(disk: &impl TestDisk) {
    let Opened { store, .. } = disk.open_with(without_history());
    fill(&store, 1..100);
    settle(&store, 1..100);
    let freed = store.reclaim().unwrap();
    drop(store);
    let left = bytes_on(disk);
    assert!(freed > 15_000, "{freed} bytes were freed");
    assert!(left < 3_000, "{left} bytes are left");
    assert_eq!(disk.names("segment-").len(), 1);
}

fn an_old_pending_message_is_copied(disk: &impl TestDisk) {
    let Opened { store, .. } = disk.open_with(without_history());
    fill(&store, 1..100);
    settle(&store, 2..100);
    assert!(store.reclaim().unwrap() > 10_000);
    assert_eq!(pending_of_bob(&store), [1]);
    fill(&store, 100..103);
    assert_eq!(pending_of_bob(&store), [1, 100, 101, 102], "its position in the mailbox is unchanged");
    drop(store);
    let again = disk.open_with(without_history());
    assert_eq!(pending_of_bob(&again.store), [1, 100, 101, 102]);
    assert_eq!(again.recovery.next_seq, 103);
}

fn settled_ids_are_kept(disk: &impl TestDisk) {
    let Opened { store, .. } = disk.open_with(small());
    fill(&store, 1..50);
    settle(&store, 1..50);
    fill(&store, 50..100);
    settle(&store, 50..100);
    assert!(store.reclaim().unwrap() > 0);
    drop(store);
    let again = disk.open_with(small());
    for seq in 1..100 {
        let id = settled("bob", seq);
        let known =
            again.replayed.settled.iter().any(|it| it.fingerprint == id.fingerprint && it.content == id.content);
        assert!(known, "the id of {seq} is remembered");
    }
    assert_eq!(pending_of_bob(&again.store), [0; 0]);
}

fn nothing_is_reclaimed_while_everything_is_pending(disk: &impl TestDisk) {
    let Opened { store, .. } = disk.open_with(small());
    fill(&store, 1..50);
    assert_eq!(store.reclaim().unwrap(), 0);
    assert_eq!(pending_of_bob(&store), (1..50).collect::<Vec<_>>());
}

fn the_log_stays_small_under_steady_traffic(disk: &impl TestDisk) {
    let Opened { store, .. } = disk.open_with(without_history());
    for round in 0..20 {
        let first = 1 + round * 20;
        fill(&store, first..first + 20);
        settle(&store, first..first + 20);
        store.reclaim().unwrap();
    }
    drop(store);
    assert!(bytes_on(disk) < 10_000);
}

macro_rules! on_every_disk {
    ($($test:ident),* $(,)?) => {
        mod on_a_folder {
            $(#[test] fn $test() { super::$test(&super::Folder::new()) })*
        }
        mod on_the_simulated_disk {
            $(#[test] fn $test() { super::$test(&super::SimDisk::default()) })*
        }
    };
}

on_every_disk!(
    the_space_of_settled_messages_is_freed,
    an_old_pending_message_is_copied,
    settled_ids_are_kept,
    nothing_is_reclaimed_while_everything_is_pending,
    the_log_stays_small_under_steady_traffic,
);

#[test]
fn a_full_disk_is_reclaimed_although_no_write_succeeds() {
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open_with(without_history());
    fill(&store, 1..50);
    let used: usize = disk.files().iter().map(|(_, bytes)| bytes).sum();
    disk.set_capacity(Some(used as u64));
    assert!(matches!(store.write(&settles(1..50)), Err(StoreError::Full)));
    assert!(store.reclaim().unwrap() > 5_000, "settled messages make room");
    write(&store, &settles(1..50));
    write(&store, &puts([50]));
    assert_eq!(pending_of_bob(&store), [50]);
}

#[test]
fn urgent_reclaim_frees_the_active_segment() {
    let disk = SimDisk::default();
    let one_segment = StoreOptions { segment_bytes: 1 << 40, ..without_history() };
    let Opened { store, .. } = disk.open_with(one_segment.clone());
    let large: Vec<u64> = (1..=2000).collect();
    large.chunks(100).for_each(|seqs| write(&store, &puts(seqs.iter().copied())));
    let used = || disk.files().iter().map(|(_, bytes)| *bytes as u64).sum::<u64>();
    let full = used();
    assert!(full > 128 << 10, "{full}");
    disk.set_capacity(Some(full + (256 << 10)));
    assert_eq!(store.reclaim_urgently().unwrap(), 0, "everything is pending");
    write(&store, &settles(1..1991));
    assert_eq!(store.reclaim().unwrap(), 0, "the active segment is not reclaimed");
    assert!(store.reclaim_urgently().unwrap() >= full, "its pending messages were copied and it was removed");
    assert!(used() < 16 << 10, "{}", used());
    let pending: Vec<u64> = (1991..=2000).collect();
    assert_eq!(pending_of_bob(&store), pending);
    drop(store);
    let Opened { store, .. } = disk.open_with(one_segment);
    assert_eq!(pending_of_bob(&store), pending);
    write(&store, &settles(1991..2001));
    write(&store, &puts(3000..4000));
    assert_eq!(pending_of_bob(&store).len(), 1000, "there is room again");
}

#[test]
fn a_refused_reply_does_not_free_the_request_it_settles() {
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open_with(without_history());
    write(&store, &puts([1]));
    let used: usize = disk.files().iter().map(|(_, bytes)| bytes).sum();
    disk.set_capacity(Some(used as u64));
    let reply = Batch { settled: vec![settled("bob", 1)], ..puts([2]) };
    assert!(matches!(store.write(&reply), Err(StoreError::Full)));
    assert_eq!(pending_of_bob(&store), [1]);
}
