//! A full disk, I/O errors and crashes, on the simulated disk.

use crate::support::{Opened, TestDisk, batch, message_of, pending_of_bob, puts, write};
use toolbus_store::sim_disk::{Rng, SimDisk};
use toolbus_store::{Store, StoreError, StoreOptions};

#[test]
fn a_batch_that_does_not_fit_is_rejected_and_the_store_stays_usable() {
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open();
    write(&store, &puts(1..4));
    disk.set_capacity(Some(1_000));
    let large = batch(vec![message_of("bob", 4, 5_000)]);
    assert!(matches!(store.write(&large), Err(StoreError::Full)));
    assert_eq!(pending_of_bob(&store), [1, 2, 3], "no part of the batch was kept");
    write(&store, &puts([5]));
    disk.set_capacity(None);
    write(&store, &puts([6]));
    drop(store);
    let again = disk.open();
    assert_eq!(pending_of_bob(&again.store), [1, 2, 3, 5, 6]);
    assert_eq!((again.recovery.torn_bytes, again.recovery.damaged), (0, 0), "the partial write was truncated");
}

#[test]
fn a_crash_after_a_rejected_batch_keeps_earlier_messages() {
    for seed in 0..50 {
        let disk = SimDisk::default();
        let Opened { store, .. } = disk.open();
        write(&store, &puts(1..4));
        disk.set_capacity(Some(1_000));
        store.write(&batch(vec![message_of("bob", 4, 5_000)])).unwrap_err();
        drop(store);
        disk.crash(&mut Rng::new(seed));
        disk.set_capacity(None);
        let again = disk.open();
        assert_eq!(again.recovery.damaged, 0, "seed {seed}");
        assert_eq!(pending_of_bob(&again.store), [1, 2, 3], "seed {seed}");
    }
}

#[test]
fn free_space_shrinks_with_each_write() {
    let disk = SimDisk::default();
    disk.set_capacity(Some(100_000));
    let Opened { store, .. } = disk.open();
    let before = store.free_bytes().unwrap();
    write(&store, &puts(1..10));
    assert!(store.free_bytes().unwrap() < before);
}

#[test]
fn a_failed_sync_is_an_error() {
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open();
    store.write(&puts([1])).unwrap();
    disk.fail_syncs(true);
    assert!(matches!(store.sync(), Err(StoreError::Io { what: "sync", .. })));
}

#[test]
fn a_write_does_not_wait_for_the_sync_of_the_previous_one_and_fails_after_a_failed_sync() {
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open();
    store.write(&puts([1])).unwrap();
    disk.fail_syncs(true);
    store.write(&puts([2])).unwrap();
    assert!(matches!(store.sync(), Err(StoreError::Io { what: "sync", .. })));
    assert!(matches!(store.write(&puts([3])), Err(StoreError::Io { what: "sync", .. })));
}

#[test]
fn a_failed_write_is_an_error() {
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open();
    disk.stop_after(Some(0));
    assert!(matches!(store.write(&puts([1])), Err(StoreError::Io { .. })));
}

#[test]
fn synced_batches_survive_every_crash() {
    for seed in 0..200 {
        let disk = SimDisk::default();
        let options = StoreOptions { segment_bytes: 700, ..StoreOptions::default() };
        let Opened { store, .. } = disk.open_with(options.clone());
        (0..5).for_each(|round| write(&store, &puts(1 + round * 3..4 + round * 3)));
        store.write(&puts(16..18)).unwrap();
        store.write(&puts(18..19)).unwrap();
        drop(store);
        disk.crash(&mut Rng::new(seed));
        let again = disk.open_with(options);
        let read = pending_of_bob(&again.store);
        assert_eq!(read[..15], (1..16).collect::<Vec<_>>(), "seed {seed}");
        assert!((16..19).collect::<Vec<_>>().starts_with(&read[15..]), "seed {seed}: {read:?}");
        assert_eq!(again.recovery.damaged, 0, "seed {seed}: a crash is not corruption");
    }
}
