//! The contract of `Store`. Each function of `suite` runs on a folder, on the simulated disk and on a replicated log.

macro_rules! on_every_disk {
    ($($test:ident),* $(,)?) => {
        mod on_a_folder {
            $(#[test] fn $test() { super::suite::$test(&crate::support::Folder::new()) })*
        }
        mod on_the_simulated_disk {
            $(#[test] fn $test() { super::suite::$test(&toolbus_store::sim_disk::SimDisk::default()) })*
        }
        mod on_a_replicated_log {
            $(#[test] fn $test() { super::suite::$test(&crate::support::Replicated::new()) })*
        }
    };
}

on_every_disk!(
    an_empty_store_has_nothing_to_read,
    messages_are_read_back_as_they_were_written,
    texts_of_any_length_are_read_back,
    messages_of_several_batches_are_read_in_order,
    mailboxes_are_isolated,
    a_read_starts_at_the_given_sequence_number,
    a_page_is_limited_in_messages_but_has_at_least_one,
    a_page_is_limited_in_bytes_but_has_at_least_one_message,
    settled_messages_are_not_read,
    everything_survives_reopening,
    a_reopened_store_accepts_writes,
    attempts_are_replayed,
    ids_without_a_record_are_replayed,
    sequence_numbers_are_not_reused,
    a_full_segment_is_followed_by_another,
    free_space_is_reported,
);

mod suite {
    use crate::support::{TestDisk, batch, id_of, message, message_of, pending_of_bob, puts, settled, settles, write};
    use std::sync::Arc;
    use toolbus_engine::{AttemptsNote, Batch, Message};
    use toolbus_store::{Recovery, Store, StoreOptions};

    pub fn an_empty_store_has_nothing_to_read(disk: &impl TestDisk) {
        let opened = disk.open();
        assert_eq!(opened.recovery, Recovery::default());
        let page = opened.store.read("bob", 5, 10, 1_000).unwrap();
        assert_eq!((page.from, page.messages.len(), page.damaged.len()), (5, 0, 0));
        assert_eq!(opened.store.reclaim().unwrap(), 0);
    }

    pub fn messages_are_read_back_as_they_were_written(disk: &impl TestDisk) {
        let store = disk.open().store;
        let written: Vec<_> = (1..=6).map(|seq| message_of("bob", seq, seq as usize * 1_000 - 1_000)).collect();
        write(&store, &batch(written.clone()));
        let page = store.read("bob", 0, 100, u64::MAX).unwrap();
        assert_eq!(page.messages, written);
    }

    /// The engine does not limit a correlation id.
    pub fn texts_of_any_length_are_read_back(disk: &impl TestDisk) {
        let store = disk.open().store;
        let lengths = [0, 1, 65_533, 65_534, 65_535, 65_536, 70_000, 200_000];
        let with_text = |(seq, length): (u64, usize)| {
            let message = Arc::into_inner(message("bob", seq)).unwrap();
            Arc::new(Message { correlation_id: Some("c".repeat(length).into()), ..message })
        };
        let written: Vec<_> = (1..).zip(lengths).map(with_text).collect();
        write(&store, &batch(written.clone()));
        assert_eq!(store.read("bob", 0, 100, u64::MAX).unwrap().messages, written);
        drop(store);
        let again = disk.open();
        assert_eq!((again.recovery.damaged, again.recovery.torn_bytes), (0, 0));
        assert_eq!(again.store.read("bob", 0, 100, u64::MAX).unwrap().messages, written);
    }

    pub fn messages_of_several_batches_are_read_in_order(disk: &impl TestDisk) {
        let store = disk.open().store;
        [1..4, 4..5, 5..9].into_iter().for_each(|seqs| write(&store, &puts(seqs)));
        assert_eq!(pending_of_bob(&store), (1..9).collect::<Vec<_>>());
    }

    pub fn mailboxes_are_isolated(disk: &impl TestDisk) {
        let store = disk.open().store;
        write(&store, &batch(vec![message("bob", 1), message("carol", 2), message("bob", 3)]));
        assert_eq!(pending_of_bob(&store), [1, 3]);
        let page = store.read("carol", 0, 10, u64::MAX).unwrap();
        assert_eq!(page.messages, [message("carol", 2)]);
    }

    pub fn a_read_starts_at_the_given_sequence_number(disk: &impl TestDisk) {
        let store = disk.open().store;
        write(&store, &puts([1, 3, 5]));
        for (from, expected) in [(0, vec![1, 3, 5]), (3, vec![3, 5]), (4, vec![5]), (6, vec![])] {
            let page = store.read("bob", from, 10, u64::MAX).unwrap();
            assert_eq!(page.from, from);
            assert_eq!(page.messages.iter().map(|it| it.seq).collect::<Vec<_>>(), expected, "from {from}");
        }
    }

    pub fn a_page_is_limited_in_messages_but_has_at_least_one(disk: &impl TestDisk) {
        let store = disk.open().store;
        write(&store, &puts(1..9));
        for (asked, expected) in [(0, 1), (1, 1), (3, 3), (8, 8), (100, 8)] {
            assert_eq!(store.read("bob", 0, asked, u64::MAX).unwrap().messages.len(), expected, "asked for {asked}");
        }
    }

    pub fn a_page_is_limited_in_bytes_but_has_at_least_one_message(disk: &impl TestDisk) {
        let store = disk.open().store;
        write(&store, &batch((1..9).map(|seq| message_of("bob", seq, 10_000)).collect()));
        for (asked, expected) in [(0, 1), (9_000, 1), (35_000, 3), (1_000_000, 8)] {
            assert_eq!(store.read("bob", 0, 100, asked).unwrap().messages.len(), expected, "asked for {asked} bytes");
        }
    }

    pub fn settled_messages_are_not_read(disk: &impl TestDisk) {
        let store = disk.open().store;
        write(&store, &puts(1..6));
        write(&store, &settles([1, 3]));
        assert_eq!(pending_of_bob(&store), [2, 4, 5]);
        write(&store, &settles([2, 4, 5]));
        assert_eq!(pending_of_bob(&store), [0; 0]);
    }

    pub fn everything_survives_reopening(disk: &impl TestDisk) {
        let opened = disk.open();
        write(&opened.store, &puts(1..6));
        write(&opened.store, &Batch { settled: vec![settled("bob", 2)], ..puts(6..8) });
        drop(opened);
        let again = disk.open();
        assert_eq!(again.replayed.seqs(), [1, 2, 3, 4, 5, 6, 7], "in log order");
        assert_eq!(again.replayed.messages[0], ("bob".into(), 1, id_of(1)));
        assert_eq!(again.replayed.settled, [settled("bob", 2)]);
        assert_eq!(again.recovery, Recovery { next_seq: 8, records: 10, ..Recovery::default() });
        assert_eq!(pending_of_bob(&again.store), [1, 3, 4, 5, 6, 7]);
    }

    pub fn a_reopened_store_accepts_writes(disk: &impl TestDisk) {
        for seq in 1..5 {
            let opened = disk.open();
            assert_eq!(pending_of_bob(&opened.store), (1..seq).collect::<Vec<_>>());
            write(&opened.store, &puts([seq]));
        }
    }

    pub fn attempts_are_replayed(disk: &impl TestDisk) {
        let opened = disk.open();
        let note = |attempts| AttemptsNote { mailbox: "bob".into(), seq: 1, attempts };
        write(&opened.store, &Batch { attempts: vec![note(1)], ..puts([1]) });
        write(&opened.store, &Batch { attempts: vec![note(2)], ..Batch::default() });
        drop(opened);
        assert_eq!(disk.open().replayed.attempts, [note(1), note(2)]);
    }

    pub fn ids_without_a_record_are_replayed(disk: &impl TestDisk) {
        let opened = disk.open();
        let mut id = settled("bob", 1);
        id.stored = None;
        write(&opened.store, &Batch { settled: vec![id.clone()], ..Batch::default() });
        drop(opened);
        assert_eq!(disk.open().replayed.settled, [id]);
    }

    pub fn sequence_numbers_are_not_reused(disk: &impl TestDisk) {
        let opened = disk.open();
        write(&opened.store, &Batch { next_seq: 100, ..puts([1]) });
        write(&opened.store, &Batch { next_seq: 0, ..settles([1]) });
        drop(opened);
        assert_eq!(disk.open().recovery.next_seq, 100);
    }

    pub fn a_full_segment_is_followed_by_another(disk: &impl TestDisk) {
        let options = StoreOptions { segment_bytes: 500, ..StoreOptions::default() };
        let opened = disk.open_with(options.clone());
        (1..20).for_each(|seq| write(&opened.store, &puts([seq])));
        assert_eq!(pending_of_bob(&opened.store), (1..20).collect::<Vec<_>>());
        drop(opened);
        assert!(disk.names("segment-").len() > 3);
        let again = disk.open_with(options);
        assert_eq!(again.replayed.seqs(), (1..20).collect::<Vec<_>>());
        assert_eq!(pending_of_bob(&again.store), (1..20).collect::<Vec<_>>());
    }

    pub fn free_space_is_reported(disk: &impl TestDisk) {
        assert!(disk.open().store.free_bytes().unwrap() > 0);
    }
}
