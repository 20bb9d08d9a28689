//! What every store promises, whatever it stands on. Each function of `suite` is run on a folder and on the simulated
//! disk.

macro_rules! on_every_disk {
    ($($test:ident),* $(,)?) => {
        mod on_a_folder {
            $(#[test] fn $test() { super::suite::$test(&crate::support::Folder::new()) })*
        }
        mod on_the_simulated_disk {
            $(#[test] fn $test() { super::suite::$test(&toolbus_store::sim_disk::SimDisk::default()) })*
        }
    };
}

on_every_disk!(
    an_empty_store_has_nothing_to_read,
    messages_are_read_back_as_they_were_written,
    messages_are_read_in_order_also_from_several_batches,
    mailboxes_are_apart,
    reading_begins_at_the_given_place,
    a_page_holds_no_more_messages_than_asked_for_but_at_least_one,
    a_page_holds_no_more_bytes_than_asked_for_but_at_least_one_message,
    settled_messages_are_gone,
    everything_survives_reopening,
    a_store_goes_on_after_reopening,
    attempts_are_replayed,
    ids_without_a_record_are_replayed,
    sequence_numbers_are_not_given_out_again,
    a_full_segment_is_followed_by_another,
    free_space_is_known,
);

mod suite {
    use crate::support::{Place, batch, bobs, id_of, message, message_of, puts, settled, settles, write};
    use toolbus_engine::{AttemptsNote, Batch};
    use toolbus_store::{Recovery, Store, StoreOptions};

    pub fn an_empty_store_has_nothing_to_read(place: &impl Place) {
        let opened = place.open();
        assert_eq!(opened.recovery, Recovery::default());
        let page = opened.store.read("bob", 5, 10, 1_000).unwrap();
        assert_eq!((page.from, page.messages.len(), page.damaged.len()), (5, 0, 0));
        assert_eq!(opened.store.reclaim().unwrap(), 0);
    }

    pub fn messages_are_read_back_as_they_were_written(place: &impl Place) {
        let store = place.open().store;
        let written: Vec<_> = (1..=6).map(|seq| message_of("bob", seq, seq as usize * 1_000 - 1_000)).collect();
        write(&store, &batch(written.clone()));
        let page = store.read("bob", 0, 100, u64::MAX).unwrap();
        assert_eq!(page.messages, written);
    }

    pub fn messages_are_read_in_order_also_from_several_batches(place: &impl Place) {
        let store = place.open().store;
        [1..4, 4..5, 5..9].into_iter().for_each(|seqs| write(&store, &puts(seqs)));
        assert_eq!(bobs(&store), (1..9).collect::<Vec<_>>());
    }

    pub fn mailboxes_are_apart(place: &impl Place) {
        let store = place.open().store;
        write(&store, &batch(vec![message("bob", 1), message("carol", 2), message("bob", 3)]));
        assert_eq!(bobs(&store), [1, 3]);
        let page = store.read("carol", 0, 10, u64::MAX).unwrap();
        assert_eq!(page.messages, [message("carol", 2)]);
    }

    pub fn reading_begins_at_the_given_place(place: &impl Place) {
        let store = place.open().store;
        write(&store, &puts([1, 3, 5]));
        for (from, expected) in [(0, vec![1, 3, 5]), (3, vec![3, 5]), (4, vec![5]), (6, vec![])] {
            let page = store.read("bob", from, 10, u64::MAX).unwrap();
            assert_eq!(page.from, from);
            assert_eq!(page.messages.iter().map(|it| it.seq).collect::<Vec<_>>(), expected, "from {from}");
        }
    }

    pub fn a_page_holds_no_more_messages_than_asked_for_but_at_least_one(place: &impl Place) {
        let store = place.open().store;
        write(&store, &puts(1..9));
        for (asked, expected) in [(0, 1), (1, 1), (3, 3), (8, 8), (100, 8)] {
            assert_eq!(store.read("bob", 0, asked, u64::MAX).unwrap().messages.len(), expected, "asked for {asked}");
        }
    }

    pub fn a_page_holds_no_more_bytes_than_asked_for_but_at_least_one_message(place: &impl Place) {
        let store = place.open().store;
        write(&store, &batch((1..9).map(|seq| message_of("bob", seq, 10_000)).collect()));
        for (asked, expected) in [(0, 1), (9_000, 1), (35_000, 3), (1_000_000, 8)] {
            assert_eq!(store.read("bob", 0, 100, asked).unwrap().messages.len(), expected, "asked for {asked} bytes");
        }
    }

    pub fn settled_messages_are_gone(place: &impl Place) {
        let store = place.open().store;
        write(&store, &puts(1..6));
        write(&store, &settles([1, 3]));
        assert_eq!(bobs(&store), [2, 4, 5]);
        write(&store, &settles([2, 4, 5]));
        assert_eq!(bobs(&store), [0; 0]);
    }

    pub fn everything_survives_reopening(place: &impl Place) {
        let opened = place.open();
        write(&opened.store, &puts(1..6));
        write(&opened.store, &Batch { settled: vec![settled("bob", 2)], ..puts(6..8) });
        drop(opened);
        let again = place.open();
        assert_eq!(again.replayed.seqs(), [1, 2, 3, 4, 5, 6, 7], "in the order of the log");
        assert_eq!(again.replayed.messages[0], ("bob".into(), 1, id_of(1)));
        assert_eq!(again.replayed.settled, [settled("bob", 2)]);
        assert_eq!(again.recovery, Recovery { next_seq: 8, batches: 2, ..Recovery::default() });
        assert_eq!(bobs(&again.store), [1, 3, 4, 5, 6, 7]);
    }

    pub fn a_store_goes_on_after_reopening(place: &impl Place) {
        for seq in 1..5 {
            let opened = place.open();
            assert_eq!(bobs(&opened.store), (1..seq).collect::<Vec<_>>());
            write(&opened.store, &puts([seq]));
        }
    }

    pub fn attempts_are_replayed(place: &impl Place) {
        let opened = place.open();
        let note = |attempts| AttemptsNote { mailbox: "bob".into(), seq: 1, attempts };
        write(&opened.store, &Batch { attempts: vec![note(1)], ..puts([1]) });
        write(&opened.store, &Batch { attempts: vec![note(2)], ..Batch::default() });
        drop(opened);
        assert_eq!(place.open().replayed.attempts, [note(1), note(2)]);
    }

    pub fn ids_without_a_record_are_replayed(place: &impl Place) {
        let opened = place.open();
        let mut id = settled("bob", 1);
        id.stored = None;
        write(&opened.store, &Batch { settled: vec![id.clone()], ..Batch::default() });
        drop(opened);
        assert_eq!(place.open().replayed.settled, [id]);
    }

    pub fn sequence_numbers_are_not_given_out_again(place: &impl Place) {
        let opened = place.open();
        write(&opened.store, &Batch { next_seq: 100, ..puts([1]) });
        write(&opened.store, &Batch { next_seq: 0, ..settles([1]) });
        drop(opened);
        assert_eq!(place.open().recovery.next_seq, 100);
    }

    pub fn a_full_segment_is_followed_by_another(place: &impl Place) {
        let options = StoreOptions { segment_bytes: 500, ..StoreOptions::default() };
        let opened = place.open_with(options.clone());
        (1..20).for_each(|seq| write(&opened.store, &puts([seq])));
        assert_eq!(bobs(&opened.store), (1..20).collect::<Vec<_>>());
        drop(opened);
        assert!(place.names("segment-").len() > 3);
        let again = place.open_with(options);
        assert_eq!(again.replayed.seqs(), (1..20).collect::<Vec<_>>());
        assert_eq!(bobs(&again.store), (1..20).collect::<Vec<_>>());
    }

    pub fn free_space_is_known(place: &impl Place) {
        assert!(place.open().store.free_bytes().unwrap() > 0);
    }
}
