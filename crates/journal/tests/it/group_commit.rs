//! Group commit, driven step by step without the journal's thread, and the reports of the thread to its listener.

use crate::support::{CONTENT, finish, key, start, started};
use crate::test_journal::{TestJournal, log_options};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use toolbus_journal::{Appended, Entry, Journal, JournalError, JournalOptions, Known, Limits, Synced, Ticket, Wait};
use toolbus_wal::sim_disk::{Rng, SimDisk};

fn open(disk: &SimDisk) -> TestJournal {
    TestJournal::open(disk, Limits::default(), 1 << 20, 1).expect("it opens")
}

fn append(journal: &mut TestJournal, entry: Entry, wait: Wait) -> Appended {
    journal.state.append(entry, wait, 1).expect("appended")
}

/// What a crash of the machine at this moment would leave of a call, in the worst case.
fn after_a_crash(disk: &SimDisk, id: u64) -> Known {
    let worst = (0..40).map(|seed| {
        let crashed = disk.fork();
        crashed.crash(&mut Rng::new(seed));
        open(&crashed).known(&key(id), &CONTENT)
    });
    worst
        .min_by_key(|known| match known {
            Known::New => 0,
            Known::Answered { .. } => 2,
            _ => 1,
        })
        .expect("several seeds")
}

#[test]
fn an_append_takes_effect_when_its_group_is_durable() {
    let disk = SimDisk::default();
    let mut journal = open(&disk);
    assert!(!journal.state.needs_sync());
    assert_eq!(append(&mut journal, started(1), Wait::Synced), Appended::Waits(Ticket(1)));
    assert_eq!(append(&mut journal, Entry::Finish(finish(1)), Wait::Synced), Appended::Waits(Ticket(2)));
    assert!(journal.state.needs_sync());
    let group = journal.state.begin_sync().expect("two appends");
    assert_eq!(append(&mut journal, started(2), Wait::Synced), Appended::Waits(Ticket(3)), "in the next group");
    assert_eq!(after_a_crash(&disk, 1), Known::New, "it is not synced yet");
    assert!(matches!(journal.known(&key(1), &CONTENT), Known::Running(_)), "its answer does not count yet");
    assert!(journal.state.begin_sync().is_none(), "one sync at a time");

    let synced = group.sync();
    let Synced { tickets, outcome } = journal.state.complete_sync(group, synced, 1);
    outcome.expect("the disk works");
    assert_eq!(tickets, [Ticket(1), Ticket(2)]);
    assert!(matches!(after_a_crash(&disk, 1), Known::Answered { .. }));
    assert!(matches!(journal.known(&key(1), &CONTENT), Known::Answered { .. }));
    assert_eq!(after_a_crash(&disk, 2), Known::New);
    journal.sync(1).expect("the disk works");
    assert_ne!(after_a_crash(&disk, 2), Known::New);
    assert!(!journal.state.needs_sync() && journal.state.begin_sync().is_none());
}

#[test]
fn only_one_slow_operation_runs_at_a_time() {
    let disk = SimDisk::default();
    let mut journal = open(&disk);
    for id in 0..10 {
        append(&mut journal, started(id), Wait::Synced);
    }
    let group = journal.state.begin_sync().expect("appends wait");
    assert!(journal.state.begin_maintenance(1).is_none(), "it could receive the error of the sync");
    journal.state.complete_sync(group, Ok(()), 1).outcome.expect("synced");
    append(&mut journal, started(10), Wait::Synced);
    let step = journal.state.begin_maintenance(1).expect("the segment is full");
    assert!(journal.state.begin_sync().is_none() && journal.state.begin_maintenance(1).is_none());
    journal.state.complete_maintenance(step.run());
    assert!(journal.state.begin_maintenance(1).is_some());
}

#[test]
fn during_a_rotation_every_append_waits_and_is_durable_only_after_it() {
    let disk = SimDisk::default();
    let mut journal = open(&disk);
    let mut id = 0;
    while !journal.state.is_rotating() {
        append(&mut journal, started(id), Wait::Written);
        journal.step(1).expect("the disk works");
        id += 1;
    }
    assert!(matches!(append(&mut journal, Entry::Finish(finish(0)), Wait::Written), Appended::Waits(_)));
    assert!(journal.state.begin_sync().is_none(), "the entry is only staged");
    assert!(matches!(journal.known(&key(0), &CONTENT), Known::Running(_)));
    journal.step(1).expect("the disk works");
    assert!(!journal.state.is_rotating());
    journal.sync(1).expect("the disk works");
    assert!(matches!(after_a_crash(&disk, 0), Known::Answered { .. }));
    assert_ne!(after_a_crash(&disk, id - 1), Known::New);
}

#[test]
fn a_failed_sync_fails_its_group_and_all_later_appends() {
    let disk = SimDisk::default();
    let mut journal = open(&disk);
    append(&mut journal, started(1), Wait::Synced);
    journal.sync(1).expect("the disk works");
    append(&mut journal, Entry::Finish(finish(1)), Wait::Synced);
    disk.fail_syncs(true);
    let group = journal.state.begin_sync().expect("an append waits");
    append(&mut journal, started(2), Wait::Synced);
    let synced = group.sync();
    let done = journal.state.complete_sync(group, synced, 1);
    assert!(matches!(done.outcome, Err(JournalError::Write(_))));
    assert_eq!(done.tickets, [Ticket(2)]);
    disk.fail_syncs(false);
    assert!(journal.sync(1).is_err(), "the append during the failed sync");
    for wait in [Wait::Synced, Wait::Written] {
        assert!(matches!(journal.state.append(started(3), wait, 1), Err(JournalError::Write(_))));
    }
    assert!(matches!(journal.known(&key(1), &CONTENT), Known::Running(_)));
}

#[test]
fn a_sync_that_fails_during_a_rotation_fails_staged_and_later_appends() {
    let disk = SimDisk::default();
    let mut journal = open(&disk);
    let mut id = 0;
    while !journal.state.is_rotating() {
        append(&mut journal, started(id), Wait::Written);
        journal.step(1).expect("the disk works");
        id += 1;
    }
    let Appended::Waits(staged) = append(&mut journal, Entry::Finish(finish(0)), Wait::Written) else {
        panic!("it waits")
    };
    disk.fail_syncs(true);
    assert!(journal.step(1).is_err());
    // The kernel reports the error once; the next sync succeeds although the data is lost.
    disk.fail_syncs(false);
    let group = journal.state.begin_sync().expect("an append waits");
    let synced = group.sync();
    let Synced { tickets, outcome } = journal.state.complete_sync(group, synced, 1);
    assert_eq!(tickets, [staged]);
    assert!(matches!(outcome, Err(JournalError::Write(_))));
    for wait in [Wait::Synced, Wait::Written] {
        assert!(matches!(journal.state.append(started(id), wait, 1), Err(JournalError::Write(_))));
    }
    assert!(matches!(journal.known(&key(0), &CONTENT), Known::Running(_)), "its answer is not durable");
    assert!(!journal.step(1).is_ok_and(|has_run| has_run), "no segment is removed");
}

#[test]
fn an_answer_whose_writer_waits_is_reported_only_when_a_crash_cannot_lose_it() {
    let disk = SimDisk::default();
    let mut journal = open(&disk);
    // Calls of any number, so that some answers are written around a rotation.
    for id in 0..30 {
        append(&mut journal, started(id), Wait::Synced);
        journal.sync(1).expect("the disk works");
        let Appended::Waits(ticket) = append(&mut journal, Entry::Finish(finish(id)), Wait::Synced) else {
            panic!("it waits")
        };
        let done = loop {
            assert!(!matches!(journal.known(&key(id), &CONTENT), Known::Answered { .. }), "it is not durable");
            if let Some(group) = journal.state.begin_sync() {
                let synced = group.sync();
                break journal.state.complete_sync(group, synced, 1);
            }
            journal.step(1).expect("the disk works");
        };
        assert_eq!(done.tickets.last(), Some(&ticket));
        assert!(matches!(after_a_crash(&disk, id), Known::Answered { .. }), "call {id}");
        journal.step(1).expect("the disk works");
    }
}

#[tokio::test]
async fn the_listener_gets_each_ticket_once_and_none_of_writers_that_wait_themselves() {
    let disk = SimDisk::default();
    let options = JournalOptions { log: log_options(), ..JournalOptions::default() };
    let journal = Journal::on_disk(Arc::new(disk.clone()), options, Arc::new(|| 1)).expect("it opens");
    let (reports, reported) = mpsc::sync_channel(1000);
    journal.set_listener(Arc::new(move |synced| reports.send(synced).expect("the test listens")));
    let mut expected = Vec::new();
    for id in 0..50 {
        let Ok(Appended::Waits(ticket)) = journal.append(started(id), Wait::Synced) else { panic!("it waits") };
        expected.push(ticket);
        journal.start(start(1000 + id), Wait::Synced).await.expect("written");
    }
    let mut tickets = Vec::new();
    while tickets.len() < expected.len() {
        let Synced { tickets: some, outcome } = reported.recv_timeout(Duration::from_secs(20)).expect("reported");
        outcome.expect("the disk works");
        tickets.extend(some);
    }
    assert_eq!(tickets, expected);
    assert!(reported.try_recv().is_err());
    assert_ne!(after_a_crash(&disk, 49), Known::New);

    disk.fail_syncs(true);
    let Ok(Appended::Waits(last)) = journal.append(started(50), Wait::Synced) else { panic!("it waits") };
    let failed = reported.recv_timeout(Duration::from_secs(20)).expect("reported");
    assert_eq!(failed.tickets, [last]);
    assert!(matches!(failed.outcome, Err(JournalError::Write(_))));
}
