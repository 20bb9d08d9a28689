//! Who may append to a partition.

use crate::support::{FILE, broker, create, follower, read};
use toolbus_cluster::sim_log::{Faults, SimLog};
use toolbus_cluster::{FollowError, TakeoverError, take_over};
use toolbus_wal::{Disk, FENCED};

#[test]
fn a_deposed_owner_can_append_nothing() {
    let log = SimLog::new(1);
    let first = broker(&log, 0, 1).unwrap();
    let file = create(&first, FILE, b"one");
    let second = broker(&log, 1, 2).unwrap();
    file.append(b"two").unwrap();
    assert_eq!(file.sync().unwrap_err().kind(), FENCED);
    assert_eq!(file.sync().unwrap_err().kind(), FENCED, "for good");
    assert_eq!(read(&second, FILE), b"one");
    let third = broker(&log, 0, 3).unwrap();
    assert_eq!(read(&third, FILE), b"one");
}

#[test]
fn an_epoch_that_the_log_has_passed_is_not_taken_over() {
    let log = SimLog::new(1);
    let second = broker(&log, 1, 2).unwrap();
    let file = create(&second, FILE, b"one");
    for epoch in [1, 2] {
        assert!(matches!(broker(&log, 0, epoch), Err(TakeoverError::Superseded { epoch: 2 })), "{epoch}");
    }
    file.append(b"two").unwrap();
    file.sync().expect("the owner was not disturbed");
}

#[test]
fn an_append_whose_answer_is_lost_is_resolved() {
    for seed in 0..200 {
        let log = SimLog::new(seed);
        let first = broker(&log, 0, 1).unwrap();
        let file = create(&first, FILE, b"");
        log.set_faults(Faults { lost_answers: 40, lost_requests: 20, late_requests: 20 });
        let mut confirmed = Vec::new();
        for byte in 0..50u8 {
            file.append(&[byte]).unwrap();
            match file.sync() {
                Ok(()) => confirmed = (0..=byte).collect(),
                Err(_) => break,
            }
            if byte % 7 == 0 {
                log.forget_ids();
            }
        }
        log.set_faults(Faults::default());
        let second = broker(&log, 1, 2).unwrap();
        let found = if confirmed.is_empty() { Vec::new() } else { read(&second, FILE) };
        assert!(found.starts_with(&confirmed), "seed {seed}: {confirmed:?} {found:?}");
        assert!(found.len() <= confirmed.len() + 1, "seed {seed}: nothing is appended twice");
    }
}

#[test]
fn a_broker_that_reaches_no_log_closes_the_partition() {
    let log = SimLog::new(1);
    let first = broker(&log, 0, 1).unwrap();
    let file = create(&first, FILE, b"one");
    log.set_reachable(0, false);
    file.append(b"two").unwrap();
    assert_eq!(file.sync().unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    log.set_reachable(0, true);
    assert_eq!(file.sync().unwrap_err().kind(), std::io::ErrorKind::TimedOut, "an entry may be missing or not");
}

#[test]
fn a_rival_that_takes_over_between_two_attempts_is_noticed() {
    let log = SimLog::new(1);
    let first = broker(&log, 0, 1).unwrap();
    let file = create(&first, FILE, b"one");
    log.set_faults(Faults { lost_requests: 100, ..Faults::default() });
    let (rival, healed) = (log.clone(), log.clone());
    log.set_interlude(Some(Box::new(move || {
        healed.set_faults(Faults::default());
        broker(&rival, 1, 2).unwrap();
    })));
    file.append(b"two").unwrap();
    assert_eq!(file.sync().unwrap_err().kind(), FENCED);
}

#[test]
fn a_standby_takes_over_from_where_it_is() {
    let log = SimLog::new(1);
    let first = broker(&log, 0, 1).unwrap();
    let file = create(&first, FILE, b"one");
    let mut standby = follower();
    standby.catch_up(&*log.of_broker(1)).unwrap();
    file.append(b" and two").unwrap();
    file.sync().unwrap();
    let second = take_over(log.of_broker(1), standby, 2).unwrap();
    assert_eq!(read(&second, FILE), b"one and two");
}

#[test]
fn missing_and_corrupt_messages_are_reported() {
    let log = SimLog::new(1);
    let first = broker(&log, 0, 1).unwrap();
    let file = create(&first, FILE, b"one");
    for _ in 0..3 {
        file.append(b"more").unwrap();
        file.sync().unwrap();
    }
    let last = log.messages().last().unwrap().0;
    log.corrupt(last, |bytes| bytes[20] ^= 4);
    let refused = broker(&log, 1, 2).err();
    assert!(matches!(refused, Some(TakeoverError::Follow(FollowError::Entry { sequence, .. })) if sequence == last));
    log.corrupt(last, |bytes| bytes[20] ^= 4);
    log.remove(last - 1);
    let refused = broker(&log, 1, 2).err();
    assert!(matches!(refused, Some(TakeoverError::Follow(FollowError::Gap { sequence })) if sequence == last));
    drop(first.list());
}
