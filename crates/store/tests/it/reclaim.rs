//! Giving space back: what is settled goes, what is stuck and what is to be remembered comes along.

use crate::support::{Folder, Opened, Place, bobs, puts, settled, settles, write};
use toolbus_engine::Batch;
use toolbus_store::sim_disk::SimDisk;
use toolbus_store::{Store, StoreError, StoreOptions};

fn small() -> StoreOptions {
    StoreOptions { segment_bytes: 1_000, ..StoreOptions::default() }
}

/// Remembers no ids, so that nothing has to be carried along.
fn forgetful() -> StoreOptions {
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

fn bytes_on(place: &impl Place) -> u64 {
    let disk = place.disk();
    let sizes = disk.list().unwrap().into_iter().filter(|name| name.starts_with("segment-"));
    sizes.map(|name| disk.open(&name).unwrap().size().unwrap()).sum()
}

fn everything_settled_gives_its_space_back(place: &impl Place) {
    let Opened { store, .. } = place.open_with(forgetful());
    fill(&store, 1..100);
    settle(&store, 1..100);
    let freed = store.reclaim().unwrap();
    drop(store);
    let left = bytes_on(place);
    assert!(freed > 15_000, "{freed} bytes came back");
    assert!(left < 3_000, "{left} bytes are left");
    assert_eq!(place.names("segment-").len(), 1);
}

fn a_stuck_old_message_is_carried_along(place: &impl Place) {
    let Opened { store, .. } = place.open_with(forgetful());
    fill(&store, 1..100);
    settle(&store, 2..100);
    assert!(store.reclaim().unwrap() > 10_000);
    assert_eq!(bobs(&store), [1]);
    fill(&store, 100..103);
    assert_eq!(bobs(&store), [1, 100, 101, 102], "in its old place");
    drop(store);
    let again = place.open_with(forgetful());
    assert_eq!(bobs(&again.store), [1, 100, 101, 102]);
    assert_eq!(again.recovery.next_seq, 103);
}

fn remembered_ids_are_carried_along(place: &impl Place) {
    let Opened { store, .. } = place.open_with(small());
    fill(&store, 1..50);
    settle(&store, 1..50);
    fill(&store, 50..100);
    settle(&store, 50..100);
    assert!(store.reclaim().unwrap() > 0);
    drop(store);
    let again = place.open_with(small());
    for seq in 1..100 {
        let id = settled("bob", seq);
        let known =
            again.replayed.settled.iter().any(|it| it.fingerprint == id.fingerprint && it.content == id.content);
        assert!(known, "the id of {seq} is remembered");
    }
    assert_eq!(bobs(&again.store), [0; 0]);
}

fn nothing_is_reclaimed_while_everything_is_pending(place: &impl Place) {
    let Opened { store, .. } = place.open_with(small());
    fill(&store, 1..50);
    assert_eq!(store.reclaim().unwrap(), 0);
    assert_eq!(bobs(&store), (1..50).collect::<Vec<_>>());
}

fn the_log_stays_small_under_steady_traffic(place: &impl Place) {
    let Opened { store, .. } = place.open_with(forgetful());
    for round in 0..20 {
        let first = 1 + round * 20;
        fill(&store, first..first + 20);
        settle(&store, first..first + 20);
        store.reclaim().unwrap();
    }
    drop(store);
    assert!(bytes_on(place) < 10_000);
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
    everything_settled_gives_its_space_back,
    a_stuck_old_message_is_carried_along,
    remembered_ids_are_carried_along,
    nothing_is_reclaimed_while_everything_is_pending,
    the_log_stays_small_under_steady_traffic,
);

#[test]
fn a_full_disk_gets_its_space_back_although_nothing_can_be_written() {
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open_with(forgetful());
    fill(&store, 1..50);
    let used: usize = disk.files().iter().map(|(_, bytes)| bytes).sum();
    disk.set_capacity(Some(used as u64));
    assert!(matches!(store.write(&settles(1..50)), Err(StoreError::Full)));
    assert!(store.reclaim().unwrap() > 5_000, "what nobody needs makes the room");
    write(&store, &settles(1..50));
    write(&store, &puts([50]));
    assert_eq!(bobs(&store), [50]);
}

#[test]
fn a_low_disk_gets_back_what_is_settled_in_the_segment_that_is_written_to() {
    let disk = SimDisk::default();
    let one_segment = StoreOptions { segment_bytes: 1 << 40, ..forgetful() };
    let Opened { store, .. } = disk.open_with(one_segment.clone());
    let large: Vec<u64> = (1..=2000).collect();
    large.chunks(100).for_each(|seqs| write(&store, &puts(seqs.iter().copied())));
    let used = || disk.files().iter().map(|(_, bytes)| *bytes as u64).sum::<u64>();
    let full = used();
    assert!(full > 128 << 10, "{full}");
    disk.set_capacity(Some(full + (256 << 10)));
    assert_eq!(store.reclaim_urgently().unwrap(), 0, "everything is pending");
    write(&store, &settles(1..1991));
    assert_eq!(store.reclaim().unwrap(), 0, "the segment is the one that is written to");
    assert!(store.reclaim_urgently().unwrap() >= full, "its pending messages were copied, and it is gone");
    assert!(used() < 16 << 10, "{}", used());
    let pending: Vec<u64> = (1991..=2000).collect();
    assert_eq!(bobs(&store), pending);
    drop(store);
    let Opened { store, .. } = disk.open_with(one_segment);
    assert_eq!(bobs(&store), pending);
    write(&store, &settles(1991..2001));
    write(&store, &puts(3000..4000));
    assert_eq!(bobs(&store).len(), 1000, "there is room again");
}

#[test]
fn a_refused_reply_does_not_free_the_request_it_settles() {
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open_with(forgetful());
    write(&store, &puts([1]));
    let used: usize = disk.files().iter().map(|(_, bytes)| bytes).sum();
    disk.set_capacity(Some(used as u64));
    let reply = Batch { settled: vec![settled("bob", 1)], ..puts([2]) };
    assert!(matches!(store.write(&reply), Err(StoreError::Full)));
    assert_eq!(bobs(&store), [1]);
}
