//! The state of a call is derived from its entries in any order, because compaction moves entries.

use crate::support::{CONTENT, finish, key, start};
use bytes::Bytes;
use toolbus_journal::{CallIndex, CallKey, Dead, Entry, Finish, Joined, Known, Limits, Location, Start, Task};
use toolbus_wal::sim_disk::Rng;

fn in_log(offset: u32, length: u32) -> Location {
    Location::Log(toolbus_wal::Location { segment: 1, offset, length })
}

fn of(mailbox: u64, id: u64) -> CallKey {
    CallKey { caller: format!("w#{mailbox}").into(), id: id.to_string().into() }
}

/// A call run twice and answered, one joined to it and one to that, an ended task, a waiting one, an interrupted call,
/// and a dead-lettered one.
fn entries() -> Vec<Entry> {
    let started = |id: u64, attempt| Entry::Start(Start { key: of(0, id), attempt, at: id, ..start(0) }.into());
    let answered = |mailbox, id| Entry::Finish(Finish { key: of(mailbox, id), ..finish(0) });
    let joined = |id, to: CallKey| Entry::Joined(Joined { key: of(id, id), to, content: CONTENT, at: 50 + id });
    let task = |id| {
        let (server, tool, request) = ("files".into(), "write".into(), Bytes::from_static(b"request"));
        Entry::Task(Task { key: of(0, id), server, tool, content: [7; 32], request, role: None, ttl_ms: 100, at: id })
    };
    let of_task = Start { key: of(0, 6), content: [7; 32], ..start(0) };
    let (server, tool, request) = ("files".into(), "write".into(), Bytes::new());
    let dead = Dead { key: of(0, 9), server, tool, request, role: None, attempts: 3, story: Vec::new(), at: 9 };
    vec![
        started(1, 1),
        started(1, 2),
        answered(0, 1),
        joined(2, of(0, 1)),
        joined(3, of(2, 2)),
        task(6),
        Entry::Start(of_task.into()),
        answered(0, 6),
        task(7),
        started(8, 1),
        started(9, 3),
        Entry::Dead(dead),
    ]
}

fn index_of(entries: &[(usize, Entry)]) -> CallIndex {
    let mut index = CallIndex::new(Limits::default(), 0);
    for (number, entry) in entries {
        index.restore(entry, in_log(*number as u32, 1));
    }
    index
}

/// The results of all queries.
fn query_all(index: &CallIndex) -> String {
    let keys = [of(0, 1), of(2, 2), of(3, 3), of(0, 6), of(0, 7), of(0, 8), of(0, 9), key(77)];
    let known: Vec<_> = keys.iter().map(|key| [index.look_up(key, &CONTENT), index.look_up(key, &[7; 32])]).collect();
    let candidates = [index.candidate("w", &CONTENT, 0), index.candidate("w", &[7; 32], 0)];
    let mut calls = index.calls();
    calls.iter_mut().for_each(|call| call.joined_to = None);
    format!("{known:?} {candidates:?} {calls:?} {:?} {:?}", index.tasks(), index.dead_letters())
}

#[test]
fn the_order_of_entries_does_not_matter() {
    let mut entries: Vec<(usize, Entry)> = entries().into_iter().enumerate().collect();
    let expected = query_all(&index_of(&entries));
    let mut rng = Rng::new(1);
    for _ in 0..2000 {
        for last in (1..entries.len()).rev() {
            entries.swap(last, rng.below(last as u64 + 1) as usize);
        }
        assert_eq!(query_all(&index_of(&entries)), expected, "{entries:?}");
    }
}

#[test]
fn applying_entries_is_idempotent() {
    let entries: Vec<(usize, Entry)> = entries().into_iter().enumerate().collect();
    let twice: Vec<(usize, Entry)> = entries.iter().chain(&entries).cloned().collect();
    assert_eq!(query_all(&index_of(&twice)), query_all(&index_of(&entries)));
}

#[test]
fn a_long_chain_of_joins_is_resolved_and_forgotten() {
    let mut index = CallIndex::new(Limits::default(), 0);
    index.enter(&Entry::Start(Start { key: of(0, 0), ..start(0) }.into()), Location::InMemory(Bytes::new()));
    for id in 1..5000 {
        let joined = Joined { key: of(id, id), to: of(id - 1, id - 1), content: CONTENT, at: id };
        index.enter(&Entry::Joined(joined), Location::InMemory(Bytes::new()));
    }
    let known = index.look_up(&of(4999, 4999), &CONTENT);
    assert!(matches!(known, Ok(Known::Running(start)) if start.key == of(0, 0)));
    index.enter(&Entry::Finish(Finish { key: of(0, 0), at: 1, ..finish(0) }), Location::InMemory(Bytes::new()));
    index.forget(u64::MAX);
    assert!(index.is_empty(), "{} are left", index.len());
}

#[test]
fn the_first_answer_wins_in_any_order() {
    let answer = |reply_id: &str, at| Entry::Finish(Finish { reply_id: reply_id.into(), at, ..finish(1) });
    let reply_of = |index: &CallIndex| match index.look_up(&key(1), &CONTENT) {
        Ok(Known::Answered { reply_id, reply, .. }) => (reply_id.to_string(), reply),
        other => panic!("{other:?}"),
    };
    let location = |offset| in_log(offset, 1);
    for order in [[0, 1], [1, 0]] {
        let answers = [(answer("first", 5), location(0)), (answer("second", 6), location(1))];
        let mut index = CallIndex::new(Limits::default(), 0);
        order.iter().for_each(|n| index.restore(&answers[*n].0, answers[*n].1.clone()));
        assert_eq!(reply_of(&index), ("first".to_owned(), location(0)), "{order:?}");
    }
    let mut index = CallIndex::new(Limits::default(), 0);
    index.enter(&answer("first", 5), location(0));
    // The clock went backwards.
    index.enter(&answer("second", 4), location(1));
    assert_eq!(reply_of(&index), ("first".to_owned(), location(0)));
    index.enter(&answer("first", 7), location(2));
    assert_eq!(reply_of(&index), ("first".to_owned(), location(2)), "the same message, written again");
}

#[test]
fn no_other_answer_is_accepted_while_one_is_being_written() {
    let mut index = CallIndex::default();
    index.announce(&Entry::Start(start(1).into()));
    assert!(index.takes_answer(&finish(1)));
    index.announce(&Entry::Finish(finish(1)));
    assert!(index.takes_answer(&finish(1)), "the same message");
    assert!(!index.takes_answer(&Finish { reply_id: "other".into(), ..finish(1) }));
}

#[test]
fn a_dropped_dead_letter_is_not_needed_by_compaction() {
    let mut index = CallIndex::default();
    let (server, tool, request) = ("files".into(), "write".into(), Bytes::from_static(b"{}"));
    let dead_letter = Dead { key: key(1), server, tool, request, role: None, attempts: 3, story: Vec::new(), at: 1 };
    let (entry, location) = (Entry::Dead(dead_letter), in_log(0, 100));
    index.enter(&entry, location.clone());
    assert!(index.needs(&entry, &location));
    index.announce(&Entry::Dropped(key(1)));
    assert!(!index.needs(&entry, &location));
}
