//! A full disk, a disk that fails, a machine that stops: on the simulated disk.

use crate::support::{Opened, Place, batch, bobs, message_of, puts, write};
use toolbus_store::sim_disk::{Rng, SimDisk};
use toolbus_store::{Store, StoreError, StoreOptions};

#[test]
fn a_batch_without_room_is_refused_and_the_store_works_on() {
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open();
    write(&store, &puts(1..4));
    disk.set_capacity(Some(1_000));
    let large = batch(vec![message_of("bob", 4, 5_000)]);
    assert!(matches!(store.write(&large), Err(StoreError::Full)));
    assert_eq!(bobs(&store), [1, 2, 3], "nothing of the batch was kept");
    write(&store, &puts([5]));
    disk.set_capacity(None);
    write(&store, &puts([6]));
    drop(store);
    let again = disk.open();
    assert_eq!(bobs(&again.store), [1, 2, 3, 5, 6]);
    assert_eq!((again.recovery.torn_bytes, again.recovery.damaged), (0, 0), "the part that arrived was cut off");
}

#[test]
fn a_crash_right_after_a_refused_batch_leaves_what_was_there() {
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
        assert_eq!(bobs(&again.store), [1, 2, 3], "seed {seed}");
    }
}

#[test]
fn free_space_shrinks_as_messages_come() {
    let disk = SimDisk::default();
    disk.set_capacity(Some(100_000));
    let Opened { store, .. } = disk.open();
    let before = store.free_bytes().unwrap();
    write(&store, &puts(1..10));
    assert!(store.free_bytes().unwrap() < before);
}

#[test]
fn a_sync_that_fails_is_an_error() {
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open();
    store.write(&puts([1])).unwrap();
    disk.fail_syncs(true);
    assert!(matches!(store.sync(), Err(StoreError::Io { what: "sync", .. })));
}

#[test]
fn a_write_is_not_begun_before_the_one_before_it_is_synced() {
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open();
    store.write(&puts([1])).unwrap();
    disk.fail_syncs(true);
    assert!(matches!(store.write(&puts([2])), Err(StoreError::Io { what: "sync", .. })));
}

#[test]
fn a_write_that_fails_is_an_error() {
    let disk = SimDisk::default();
    let Opened { store, .. } = disk.open();
    disk.stop_after(Some(0));
    assert!(matches!(store.write(&puts([1])), Err(StoreError::Io { .. })));
}

#[test]
fn what_was_synced_survives_every_crash() {
    for seed in 0..200 {
        let disk = SimDisk::default();
        let options = StoreOptions { segment_bytes: 700, ..StoreOptions::default() };
        let Opened { store, .. } = disk.open_with(options.clone());
        (0..5).for_each(|round| write(&store, &puts(1 + round * 3..4 + round * 3)));
        store.write(&puts(16..19)).unwrap();
        drop(store);
        disk.crash(&mut Rng::new(seed));
        let again = disk.open_with(options);
        let read = bobs(&again.store);
        assert_eq!(read[..15], (1..16).collect::<Vec<_>>(), "seed {seed}");
        assert!((16..19).collect::<Vec<_>>().starts_with(&read[15..]), "seed {seed}: {read:?}");
        assert_eq!(again.recovery.damaged, 0, "seed {seed}: a crash is no damage");
    }
}
