//! The files of a partition.

use crate::support::{FILE, broker, create, read};
use std::sync::Arc;
use toolbus_cluster::sim_log::SimLog;
use toolbus_wal::{Disk, ReplacedFile};

const THIRD: &str = "segment-0000000003.log";
const SECOND: &str = "segment-0000000002.log";

#[test]
fn only_synced_bytes_reach_the_next_owner() {
    let log = SimLog::new(1);
    let first = broker(&log, 0, 1).unwrap();
    let file = create(&first, FILE, b"durable");
    file.append(b" and not").unwrap();
    assert_eq!(read(&first, FILE), b"durable and not", "reads see what was written");
    assert_eq!(read(&broker(&log, 1, 2).unwrap(), FILE), b"durable");
}

#[test]
fn a_large_write_takes_several_messages() {
    let log = SimLog::new(1);
    let content: Vec<u8> = (0..5_000u32).map(|n| n as u8).collect();
    create(&broker(&log, 0, 1).unwrap(), FILE, &content);
    assert!(log.messages().len() > 12);
    assert_eq!(read(&broker(&log, 1, 2).unwrap(), FILE), content);
}

#[test]
fn writes_between_two_syncs_share_a_message() {
    let log = SimLog::new(1);
    let disk = broker(&log, 0, 1).unwrap();
    let file = disk.create(FILE).unwrap();
    (0..20).for_each(|_| file.append(b"x").unwrap());
    file.sync().unwrap();
    assert_eq!(log.messages().len(), 2, "the epoch and the bytes");
    file.sync().unwrap();
    assert_eq!(log.messages().len(), 2, "nothing to append");
}

#[test]
fn a_cut_is_replicated() {
    let log = SimLog::new(1);
    let disk = broker(&log, 0, 1).unwrap();
    let file = create(&disk, FILE, b"0123456789");
    file.append(b"abc").unwrap();
    file.truncate(11).unwrap();
    file.truncate(4).unwrap();
    file.append(b"new").unwrap();
    file.sync().unwrap();
    assert_eq!(read(&disk, FILE), b"0123new");
    assert_eq!(read(&broker(&log, 1, 2).unwrap(), FILE), b"0123new");
    assert!(file.truncate(100).is_err());
}

#[test]
fn removing_the_oldest_file_purges_its_messages() {
    let log = SimLog::new(1);
    let disk = broker(&log, 0, 1).unwrap();
    create(&disk, FILE, &[1; 1_000]);
    let before = log.messages().len();
    let second = create(&disk, SECOND, b"kept");
    second.append(b" copies").unwrap();
    disk.remove(FILE).unwrap();
    let kept = log.messages();
    assert_eq!(kept.len(), 2, "of {before}: copies are appended before the purge");
    let next = broker(&log, 1, 2).unwrap();
    assert_eq!(next.list().unwrap(), [SECOND]);
    assert_eq!(read(&next, SECOND), b"kept copies");
}

#[test]
fn files_for_inspection_stay_local() {
    let log = SimLog::new(1);
    let disk = broker(&log, 0, 1).unwrap();
    create(&disk, "damaged-0000000001-0.bin", b"bytes");
    assert_eq!(log.messages().len(), 1, "only the epoch");
}

#[test]
fn a_state_file_does_not_keep_the_log_from_being_purged() {
    let log = SimLog::new(1);
    let disk: Arc<dyn Disk> = Arc::new(broker(&log, 0, 1).unwrap());
    let state = ReplacedFile::new(Arc::clone(&disk), "claims", 7);
    state.replace(b"first").unwrap();
    state.replace(b"second").unwrap();
    create(&*disk, FILE, &[1; 1_000]);
    create(&*disk, SECOND, b"rest");
    disk.remove(FILE).unwrap();
    let first = log.messages().first().map(|(sequence, _)| *sequence);
    create(&*disk, THIRD, b"rest");
    disk.remove(SECOND).unwrap();
    assert!(log.messages().first().map(|(sequence, _)| *sequence) > first, "the copy is behind the second file");
    let next: Arc<dyn Disk> = Arc::new(broker(&log, 1, 2).unwrap());
    let state = ReplacedFile::new(Arc::clone(&next), "claims", 7);
    assert_eq!(state.read().unwrap().as_deref(), Some(&b"second"[..]));
    state.replace(b"third").unwrap();
    let last: Arc<dyn Disk> = Arc::new(broker(&log, 0, 3).unwrap());
    assert_eq!(ReplacedFile::new(last, "claims", 7).read().unwrap().as_deref(), Some(&b"third"[..]));
}
