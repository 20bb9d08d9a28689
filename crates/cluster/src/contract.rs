//! The contract of [`ReplicatedLog`]: what every implementation must do. Each function takes an empty log and panics if it
//! does not hold.

use crate::{Append, AppendError, Bounds, ReplicatedLog};
use bytes::Bytes;

/// One check of the suite.
pub type Check = fn(&dyn ReplicatedLog);

/// The names and functions of the suite.
pub const SUITE: [(&str, Check); 7] = [
    ("an empty log has no bounds", an_empty_log_has_no_bounds),
    ("messages are numbered without gaps", messages_are_numbered_without_gaps),
    ("an append at another position is rejected", an_append_at_another_position_is_rejected),
    ("a repeated append is stored once", a_repeated_append_is_stored_once),
    ("messages are read in order", messages_are_read_in_order),
    ("a purge removes the beginning", a_purge_removes_the_beginning),
    ("a large message is kept", a_large_message_is_kept),
];

fn append(log: &dyn ReplicatedLog, id: &str, expected_last: Option<u64>, payload: &[u8]) -> Result<u64, AppendError> {
    log.append(&Append { id: id.to_owned(), expected_last, payload: Bytes::copy_from_slice(payload) })
}

fn fill(log: &dyn ReplicatedLog, count: u64) {
    fill_from(log, 1, count);
}

fn fill_from(log: &dyn ReplicatedLog, from: u64, to: u64) {
    for number in from..=to {
        assert_eq!(append(log, &format!("1.{number}"), Some(number - 1), &[number as u8; 3]), Ok(number));
    }
}

fn read(log: &dyn ReplicatedLog, from: u64, to: u64) -> Vec<(u64, Bytes)> {
    let mut found = Vec::new();
    log.read(from, to, &mut |number, message| found.push((number, message))).expect("the log can be read");
    found
}

fn numbers(found: &[(u64, Bytes)]) -> Vec<u64> {
    found.iter().map(|(number, _)| *number).collect()
}

/// An empty log has no bounds.
pub fn an_empty_log_has_no_bounds(log: &dyn ReplicatedLog) {
    assert_eq!(log.bounds(), Ok(Bounds { first: 1, last: 0 }));
    assert!(log.free_bytes().expect("the log can be inspected") > 0);
    assert!(log.max_message() > 100);
}

/// Messages are numbered without gaps.
pub fn messages_are_numbered_without_gaps(log: &dyn ReplicatedLog) {
    fill(log, 20);
    assert_eq!(log.bounds(), Ok(Bounds { first: 1, last: 20 }));
}

/// An append at another position than expected is rejected and leaves no trace.
pub fn an_append_at_another_position_is_rejected(log: &dyn ReplicatedLog) {
    fill(log, 3);
    for expected in [0, 2, 4] {
        assert_eq!(append(log, &format!("x.{expected}"), Some(expected), b"x"), Err(AppendError::Rejected));
    }
    assert_eq!(log.bounds(), Ok(Bounds { first: 1, last: 3 }));
    assert_eq!(append(log, "x.3", Some(3), b"x"), Ok(4));
}

/// A repeated append is stored once, and answered with its number also after others followed.
pub fn a_repeated_append_is_stored_once(log: &dyn ReplicatedLog) {
    fill(log, 2);
    assert_eq!(append(log, "1.2", Some(1), &[2; 3]), Ok(2));
    fill_from(log, 3, 5);
    assert_eq!(append(log, "1.2", Some(1), &[2; 3]), Ok(2));
    assert_eq!(log.bounds(), Ok(Bounds { first: 1, last: 5 }));
}

/// Messages are read in order, as they were appended.
pub fn messages_are_read_in_order(log: &dyn ReplicatedLog) {
    fill(log, 30);
    let all = read(log, 1, 30);
    assert_eq!(numbers(&all), (1..=30).collect::<Vec<_>>());
    assert!(all.iter().all(|(number, message)| **message == [*number as u8; 3]));
    assert_eq!(numbers(&read(log, 7, 9)), [7, 8, 9]);
    assert_eq!(numbers(&read(log, 30, 30)), [30]);
    assert_eq!(numbers(&read(log, 31, 31)), [0; 0], "a message that the log does not have is left out");
}

/// A purge removes the beginning and keeps the numbers.
pub fn a_purge_removes_the_beginning(log: &dyn ReplicatedLog) {
    fill(log, 10);
    log.purge_below(6).expect("the log can be purged");
    log.purge_below(6).expect("again");
    assert_eq!(log.bounds(), Ok(Bounds { first: 6, last: 10 }));
    assert_eq!(numbers(&read(log, 1, 10)), [6, 7, 8, 9, 10]);
    fill_from(log, 11, 12);
    log.purge_below(13).expect("the log can be purged as a whole");
    assert_eq!(log.bounds(), Ok(Bounds { first: 13, last: 12 }));
    fill_from(log, 13, 13);
    assert_eq!(numbers(&read(log, 13, 13)), [13]);
}

/// The largest message that the log promises to take is kept.
pub fn a_large_message_is_kept(log: &dyn ReplicatedLog) {
    let large: Vec<u8> = (0..log.max_message()).map(|at| at as u8).collect();
    assert_eq!(append(log, "1.1", Some(0), &large), Ok(1));
    assert_eq!(read(log, 1, 1), [(1, Bytes::from(large))]);
}
