//! What a call is follows from the facts, in whatever order they are read: entries are moved when their segment goes.

use crate::support::{CONTENT, finish, key, start};
use bytes::Bytes;
use toolbus_journal::{Book, CallKey, Dead, Entry, Finish, Joined, Known, Limits, Place, Start, Task};
use toolbus_wal::sim_disk::Rng;

fn of(mailbox: u64, id: u64) -> CallKey {
    CallKey { caller: format!("w#{mailbox}").into(), id: id.to_string().into() }
}

/// A call run twice and answered, one joined to it and one to that, a task that ended, one that waits, a call that was
/// interrupted, and one that was buried.
fn facts() -> Vec<Entry> {
    let begun = |id: u64, attempt| Entry::Start(Start { key: of(0, id), attempt, at: id, ..start(0) }.into());
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
        begun(1, 1),
        begun(1, 2),
        answered(0, 1),
        joined(2, of(0, 1)),
        joined(3, of(2, 2)),
        task(6),
        Entry::Start(of_task.into()),
        answered(0, 6),
        task(7),
        begun(8, 1),
        begun(9, 3),
        Entry::Dead(dead),
    ]
}

fn placed(facts: &[(usize, Entry)]) -> Book {
    let mut book = Book::new(Limits::default(), 0);
    for (number, entry) in facts {
        book.restore(entry, Place::Log { segment: 1, offset: *number as u64, length: 1 });
    }
    book
}

/// All that can be asked of it.
fn asked(book: &Book) -> String {
    let keys = [of(0, 1), of(2, 2), of(3, 3), of(0, 6), of(0, 7), of(0, 8), of(0, 9), key(77)];
    let known: Vec<_> = keys.iter().map(|key| [book.look_up(key, &CONTENT), book.look_up(key, &[7; 32])]).collect();
    let candidates = [book.candidate("w", &CONTENT, 0), book.candidate("w", &[7; 32], 0)];
    let mut calls = book.calls();
    calls.iter_mut().for_each(|call| call.joined_to = None);
    format!("{known:?} {candidates:?} {calls:?} {:?} {:?}", book.tasks(), book.letters())
}

#[test]
fn the_order_of_facts_makes_no_difference() {
    let mut facts: Vec<(usize, Entry)> = facts().into_iter().enumerate().collect();
    let expected = asked(&placed(&facts));
    let mut rng = Rng::new(1);
    for _ in 0..2000 {
        for last in (1..facts.len()).rev() {
            facts.swap(last, rng.below(last as u64 + 1) as usize);
        }
        assert_eq!(asked(&placed(&facts)), expected, "{facts:?}");
    }
}

#[test]
fn facts_that_are_read_twice_change_nothing() {
    let facts: Vec<(usize, Entry)> = facts().into_iter().enumerate().collect();
    let twice: Vec<(usize, Entry)> = facts.iter().chain(&facts).cloned().collect();
    assert_eq!(asked(&placed(&twice)), asked(&placed(&facts)));
}

#[test]
fn a_call_is_joined_however_often_its_agent_crashed() {
    let mut book = Book::new(Limits::default(), 0);
    book.enter(&Entry::Start(Start { key: of(0, 0), ..start(0) }.into()), Place::Held(Bytes::new()));
    for id in 1..5000 {
        let joined = Joined { key: of(id, id), to: of(id - 1, id - 1), content: CONTENT, at: id };
        book.enter(&Entry::Joined(joined), Place::Held(Bytes::new()));
    }
    let known = book.look_up(&of(4999, 4999), &CONTENT);
    assert!(matches!(known, Ok(Known::Running(start)) if start.key == of(0, 0)));
    book.enter(&Entry::Finish(Finish { key: of(0, 0), at: 1, ..finish(0) }), Place::Held(Bytes::new()));
    book.forget(u64::MAX);
    assert!(book.is_empty(), "{} are left", book.len());
}

#[test]
fn the_first_answer_stays_the_answer_in_whatever_order_they_are_read() {
    let answer = |reply_id: &str, at| Entry::Finish(Finish { reply_id: reply_id.into(), at, ..finish(1) });
    let reply_of = |book: &Book| match book.look_up(&key(1), &CONTENT) {
        Ok(Known::Answered { reply_id, reply, .. }) => (reply_id.to_string(), reply),
        other => panic!("{other:?}"),
    };
    let place = |offset| Place::Log { segment: 1, offset, length: 1 };
    for order in [[0, 1], [1, 0]] {
        let answers = [(answer("first", 5), place(0)), (answer("second", 6), place(1))];
        let mut book = Book::new(Limits::default(), 0);
        order.iter().for_each(|index| book.restore(&answers[*index].0, answers[*index].1.clone()));
        assert_eq!(reply_of(&book), ("first".to_owned(), place(0)), "{order:?}");
    }
    let mut book = Book::new(Limits::default(), 0);
    book.enter(&answer("first", 5), place(0));
    // The clock was set back.
    book.enter(&answer("second", 4), place(1));
    assert_eq!(reply_of(&book), ("first".to_owned(), place(0)));
    book.enter(&answer("first", 7), place(2));
    assert_eq!(reply_of(&book), ("first".to_owned(), place(2)), "the same message, written anew");
}

#[test]
fn while_an_answer_is_on_its_way_to_the_disk_no_other_is_taken() {
    let mut book = Book::default();
    book.announce(&Entry::Start(start(1).into()));
    assert!(book.takes_answer(&finish(1)));
    book.announce(&Entry::Finish(finish(1)));
    assert!(book.takes_answer(&finish(1)), "the same message");
    assert!(!book.takes_answer(&Finish { reply_id: "other".into(), ..finish(1) }));
}

#[test]
fn a_letter_that_somebody_drops_is_not_written_anew_behind_that() {
    let mut book = Book::default();
    let (server, tool, request) = ("files".into(), "write".into(), Bytes::from_static(b"{}"));
    let letter = Dead { key: key(1), server, tool, request, role: None, attempts: 3, story: Vec::new(), at: 1 };
    let (entry, place) = (Entry::Dead(letter), Place::Log { segment: 1, offset: 0, length: 100 });
    book.enter(&entry, place.clone());
    assert!(book.needs(&entry, &place));
    book.announce(&Entry::Dropped(key(1)));
    assert!(!book.needs(&entry, &place));
}
