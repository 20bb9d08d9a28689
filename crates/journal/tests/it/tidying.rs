//! The journal gets smaller, and nothing that is needed goes with what is not, whenever the machine stops.

use crate::life::Life;
use crate::support::{CONTENT, finish, key, reply, start, started};
use bytes::Bytes;
use std::io;
use toolbus_journal::{CallKey, Dead, Entry, Finish, Joined, Known, Limits, Place, Task};
use toolbus_wal::sim_disk::{Rng, SimDisk};

const KEEP: u64 = 1000;

fn limits() -> Limits {
    Limits { keep_ms: KEEP, ..Limits::default() }
}

fn named(name: &str) -> CallKey {
    CallKey { caller: "w#mcp".into(), id: name.into() }
}

fn request(name: &str) -> Bytes {
    Bytes::from(format!("the request of {name}"))
}

fn task(name: &str) -> Entry {
    let (key, server, tool, request) = (named(name), "files".into(), "write".into(), request(name));
    Entry::Task(Task { key, server, tool, content: CONTENT, request, role: None, ttl_ms: 1 << 40, at: 10 })
}

fn dead(name: &str) -> Entry {
    let (key, server, tool, request) = (named(name), "files".into(), "write".into(), request(name));
    Entry::Dead(Dead { key, server, tool, request, role: None, attempts: 3, story: vec!["died".into()], at: 10 })
}

fn answered(name: &str, at: u64) -> Entry {
    Entry::Finish(Finish { key: named(name), reply: request(name), at, ..finish(0) })
}

/// What must not go: a call that runs, one that was joined to it, a waiting task and an ended one, two letters of which one
/// is dropped. Then many calls that nobody needs.
fn run(disk: &SimDisk, written: &mut usize) -> io::Result<()> {
    let mut life = Life::begin(disk, limits(), 1 << 20, 1)?;
    let joined = Joined { key: named("joiner"), to: key(1000), content: CONTENT, at: 11 };
    let lasting = [
        vec![started(1000), Entry::Joined(joined)],
        vec![task("waits"), task("ended")],
        vec![answered("ended", 12), dead("kept"), dead("dropped")],
        vec![Entry::Dropped(named("dropped"))],
    ];
    for group in lasting {
        life.write(&group, 10, true)?;
        *written += 1;
    }
    for id in 0..12 {
        life.write(&[started(id)], 20 + id, true)?;
        life.write(&[Entry::Finish(Finish { at: 20 + id, ..finish(id) })], 20 + id, id % 2 == 0)?;
    }
    life.write(&[started(2000)], 5000, true)?;
    *written += 1;
    life.tidy(6000)?;
    life.write(&[started(2001)], 6001, true)?;
    *written += 1;
    life.tidy(6002).map(drop)
}

fn check(disk: &SimDisk, written: usize, what: &str) -> usize {
    let life = Life::begin(disk, limits(), 1 << 20, 7000).expect("the journal opens after every crash");
    assert!(!life.recovery.is_damaged(), "{what}: a crash is no damage: {:?}", life.recovery);
    if written > 0 {
        for key in [key(1000), named("joiner")] {
            let known = life.known(&key, &CONTENT);
            assert!(matches!(known, Known::Interrupted(start) if start.key.id == "1000"), "{what}: {key:?}");
        }
    }
    if written > 1 {
        let Known::Waiting(manifest) = life.known(&named("waits"), &CONTENT) else { panic!("{what}: the task waits") };
        assert_eq!(life.carried(&manifest.request), request("waits"));
    }
    if written > 2 {
        let row = life.book.task("ended", None).expect("a task that ended stays");
        let Known::Answered { reply, .. } = row.known else { panic!("{what}: the task has ended") };
        assert_eq!(
            (life.carried(&reply), life.carried(&row.manifest.request)),
            (request("ended").into(), request("ended").into())
        );
        let letter = life.book.letter("kept").expect("a letter that was not dropped stays");
        assert_eq!(life.carried(&letter.request), request("kept"));
    }
    if written > 3 {
        assert_eq!(life.book.letter("dropped"), None, "{what}: it was dropped");
    }
    if written > 4 {
        assert_ne!(life.known(&key(2000), &CONTENT), Known::New, "{what}");
    }
    if written > 5 {
        assert_ne!(life.known(&key(2001), &CONTENT), Known::New, "{what}");
    }
    life.book.len()
}

#[test]
fn a_crash_at_any_call_of_the_disk_while_it_gets_smaller_loses_nothing_that_is_needed() {
    let whole = SimDisk::default();
    run(&whole, &mut 0).expect("nothing stops it");
    let segments = whole.files().len();
    assert!(segments < 4, "the old segments are gone, {segments} are left");
    for seed in 0..8 {
        for calls in 0..=whole.calls() {
            let disk = SimDisk::default();
            disk.stop_after(Some(calls));
            let mut written = 0;
            run(&disk, &mut written).ok();
            disk.stop_after(None);
            disk.crash(&mut Rng::new(seed * 10_000 + calls));
            let what = format!("seed {seed}, stopped after {calls} calls");
            check(&disk, written, &what);
            // And once more from what the recovery left.
            disk.crash(&mut Rng::new(seed));
            check(&disk, written, &what);
        }
    }
}

#[test]
fn past_its_size_the_oldest_answers_go_and_what_runs_stays() {
    let disk = SimDisk::default();
    let mut life = Life::begin(&disk, limits(), 2000, 1).expect("it opens");
    life.write(&[started(1000)], 1, true).expect("written");
    for id in 0..100 {
        life.write(&[started(id), Entry::Finish(finish(id))], 2, true).expect("written");
        life.tidy(2).expect("the disk works");
        assert!(life.log.bytes() < 3000, "{} bytes", life.log.bytes());
    }
    assert!(matches!(life.known(&key(1000), &CONTENT), Known::Running(_)));
    assert_eq!(life.known(&key(0), &CONTENT), Known::New);
    let Known::Answered { reply: place, .. } = life.known(&key(99), &CONTENT) else { panic!("the latest stays") };
    assert_eq!(life.carried(&place), reply(99));
}

#[test]
fn a_call_that_ran_long_and_just_ended_is_not_forgotten_with_its_beginning() {
    let disk = SimDisk::default();
    let mut life = Life::begin(&disk, limits(), 2000, 1).expect("it opens");
    life.write(&[started(1000)], 1, true).expect("written");
    for id in 0..16 {
        life.write(&[started(id), Entry::Finish(finish(id))], 2, true).expect("written");
    }
    life.write(&[Entry::Finish(finish(1000))], 3, true).expect("written");
    life.tidy(3).expect("the disk works");
    assert_eq!(life.known(&key(0), &CONTENT), Known::New, "there was too much");
    let Known::Answered { start: Some(_), .. } = life.known(&key(1000), &CONTENT) else { panic!("it just ended") };
    drop(life);
    let life = Life::begin(&disk, limits(), 2000, 4).expect("it opens");
    assert!(life.book.look_up(&key(1000), &[9; 32]).is_err(), "its arguments are still known");
}

#[test]
fn where_everything_is_needed_it_grows_and_does_not_turn_in_circles() {
    let disk = SimDisk::default();
    let mut life = Life::begin(&disk, limits(), 500, 1).expect("it opens");
    let mut turns = 0;
    for id in 0..60 {
        life.write(&[started(id)], 2, true).expect("written");
        turns += life.tidy(2).expect("the disk works");
    }
    assert!(turns < 120, "{turns} turns");
    assert!((0..60).all(|id| matches!(life.known(&key(id), &CONTENT), Known::Running(_))));
}

#[test]
fn a_place_that_was_looked_up_can_be_read_a_little_longer() {
    let disk = SimDisk::default();
    let mut life = Life::begin(&disk, limits(), 1 << 20, 1).expect("it opens");
    life.write(&[started(1), Entry::Finish(finish(1))], 2, true).expect("written");
    let Known::Answered { reply: place, .. } = life.known(&key(1), &CONTENT) else { panic!("answered") };
    for id in 2..5 {
        life.write(&[started(id), Entry::Finish(finish(id))], 2, true).expect("written");
    }
    let first_before = life.log.oldest().expect("several segments").0;
    life.tidy(finish(9).at + KEEP + 10).expect("the disk works");
    assert!(life.log.oldest().is_none_or(|(number, _)| number > first_before), "the segment is gone");
    assert!(matches!(place, Place::Log { segment: 1, .. }));
}

#[test]
fn what_was_answered_before_a_long_silence_is_kept_for_those_who_ask_after_it() {
    let disk = SimDisk::default();
    let mut life = Life::begin(&disk, limits(), 1 << 20, 1).expect("it opens");
    life.write(&[started(1), Entry::Finish(finish(1))], 2, true).expect("written");
    drop(life);
    let later = finish(1).at + 100 * KEEP;
    let mut life = Life::begin(&disk, limits(), 1 << 20, later).expect("it opens");
    life.tidy(later + KEEP - 1).expect("the disk works");
    assert!(matches!(life.known(&key(1), &CONTENT), Known::Answered { .. }), "its caller could not ask meanwhile");
    life.tidy(later + KEEP + 1).expect("the disk works");
    assert_eq!(life.known(&key(1), &CONTENT), Known::New);
}

#[test]
fn a_hole_that_a_crash_tore_is_no_damage_and_bytes_that_rot_are() {
    let mut torn = 0;
    for seed in 0..300 {
        let disk = SimDisk::default();
        let mut life = Life::begin(&disk, limits(), 1 << 20, 1).expect("it opens");
        life.write(&[started(1)], 1, true).expect("written");
        let large = Finish { reply: Bytes::from(vec![7; 900]), ..finish(1) };
        life.write(&[Entry::Finish(large), started(2), started(3)], 1, false).expect("written");
        drop(life);
        disk.crash(&mut Rng::new(seed));
        for _ in 0..2 {
            let mut life = Life::begin(&disk, limits(), 1 << 20, 1).expect("it opens");
            assert!(!life.recovery.is_damaged(), "seed {seed}: {:?}", life.recovery);
            torn += life.recovery.torn_bytes;
            assert_ne!(life.known(&key(1), &CONTENT), Known::New);
            life.write(&[Entry::Start(start(4).into())], 1, true).expect("written");
        }
        disk.flip("journal-0000000001.log", 30, 1);
        let life = Life::begin(&disk, limits(), 1 << 20, 1).expect("it opens");
        assert!(life.recovery.is_damaged(), "seed {seed}");
    }
    assert!(torn > 0);
}

#[test]
fn a_segment_that_somebody_took_away_is_told() {
    let disk = SimDisk::default();
    let mut life = Life::begin(&disk, limits(), 1 << 20, 1).expect("it opens");
    for id in 0..10 {
        life.write(&[started(id)], 1, true).expect("written");
    }
    drop(life);
    toolbus_wal::Disk::remove(&disk, "journal-0000000002.log").expect("it is there");
    let life = Life::begin(&disk, limits(), 1 << 20, 1).expect("it opens");
    assert!(life.recovery.is_damaged());
    assert_eq!(life.recovery.missing_segments, 1);
}
