//! The log on a disk that crashes, tears and corrupts: what was synced is there again, a torn write is told from
//! corruption, and nothing forged or stale is read.

use std::sync::Arc;
use toolbus_wal::sim_disk::{Rng, SimDisk};
use toolbus_wal::{ChecksumKey, Disk, Log, LogOptions, PlantedBug, Recovery, Segments};

const FIRST: &str = "log-0000000001.log";

fn options() -> LogOptions {
    LogOptions {
        segments: Segments { prefix: "log-" },
        segment_bytes: 1 << 20,
        key: ChecksumKey(7),
        keep_after_torn: false,
        readable_after_removal: 0,
        planted: None,
    }
}

struct Opened {
    log: Log,
    recovery: Recovery,
    read: Vec<u8>,
}

/// Records have one byte, and between them so many that a record is neither tiny nor aligned.
fn open(disk: &SimDisk, options: LogOptions) -> Opened {
    let mut read = Vec::new();
    let each = &mut |frame: toolbus_wal::Frame| {
        assert_eq!((frame.kind, frame.payload.len()), (9, 11));
        read.push(frame.payload[0]);
    };
    let (log, recovery) = Log::open(Arc::new(disk.clone()), options, &mut || Ok(()), each).expect("the log opens");
    Opened { log, recovery, read }
}

fn stage(log: &mut Log, number: u8) -> toolbus_wal::Location {
    let staged = log.stage(|out| {
        out.extend([number; 11]);
        9
    });
    staged.expect("there is room")
}

fn sync(log: &mut Log) -> std::io::Result<()> {
    let unsynced = log.unsynced();
    unsynced.sync().map(|()| log.synced(&unsynced))
}

/// Writes and syncs records as one group.
fn write(log: &mut Log, numbers: &[u8]) -> std::io::Result<()> {
    if log.next_segment().is_some() {
        log.rotate()?;
    }
    for number in numbers {
        stage(log, *number);
    }
    log.flush().and_then(|()| sync(log))
}

fn contents(disk: &SimDisk) -> Vec<u8> {
    let file = disk.open(FIRST).expect("a segment");
    let mut bytes = vec![0; file.size().expect("a size") as usize];
    file.read_at(0, &mut bytes).expect("readable");
    bytes
}

fn disk_with(bytes: &[u8]) -> SimDisk {
    let disk = SimDisk::default();
    disk.create(FIRST).and_then(|file| file.append(bytes)).expect("there is room");
    disk
}

/// A disk with three groups of three records, and the offsets at which the groups end.
fn three_groups() -> (SimDisk, Vec<usize>) {
    let disk = SimDisk::default();
    let mut log = open(&disk, options()).log;
    let ends = [[1, 2, 3], [4, 5, 6], [7, 8, 9]].map(|group| {
        write(&mut log, &group).expect("the disk works");
        contents(&disk).len()
    });
    (disk, ends.to_vec())
}

#[test]
fn a_flipped_bit_before_a_later_group_is_corruption_and_costs_one_record() {
    let (disk, ends) = three_groups();
    for (position, bit) in (0..ends[1]).flat_map(|position| (0..8).map(move |bit| (position, bit))) {
        let disk = disk.fork();
        disk.flip(FIRST, position, bit);
        let record = 1 + (position * 3 / ends[0]) as u8;
        let Opened { mut log, recovery, read } = open(&disk, options());
        assert_eq!(read, (1..10).filter(|number| *number != record).collect::<Vec<_>>(), "bit {bit} of {position}");
        let lost = (ends[0] / 3) as u64;
        assert_eq!((recovery.damaged, recovery.damaged_bytes, recovery.torn_bytes), (1, lost, 0), "{position}");
        assert!(disk.files().iter().any(|(name, size)| name.starts_with("damaged-") && *size as u64 == lost));
        write(&mut log, &[10]).expect("the log stays usable");
        assert_eq!(open(&disk, options()).recovery, Recovery { records: 9, ..recovery }, "{position}");
    }
}

#[test]
fn an_end_that_is_cut_or_changed_anywhere_is_a_torn_write_and_costs_no_earlier_record() {
    let (disk, ends) = three_groups();
    let bytes = contents(&disk);
    for position in ends[1]..ends[2] {
        let changed = disk.fork();
        changed.flip(FIRST, position, position as u8 % 8);
        for (disk, is_cut) in [(changed, false), (disk_with(&bytes[..position]), true)] {
            let intact = 6 + (position - ends[1]) * 3 / ends[0];
            let Opened { mut log, recovery, read } = open(&disk, options());
            assert_eq!(read, (1..=intact as u8).collect::<Vec<_>>(), "{position}: the records before it are kept");
            assert_eq!(recovery.damaged, 0, "{position}: {recovery:?}");
            let is_torn = !is_cut || position != intact * ends[0] / 3;
            assert_eq!(recovery.torn_bytes > 0, is_torn, "{position}: {recovery:?}");
            write(&mut log, &[10]).expect("the log stays usable");
            let again = open(&disk, options());
            assert_eq!((again.read.len(), again.recovery.torn_bytes, again.recovery.damaged), (intact + 1, 0, 0));
        }
    }
}

#[test]
fn records_behind_a_torn_one_are_kept_only_on_request() {
    let (disk, ends) = three_groups();
    disk.flip(FIRST, ends[1] + 1, 0);
    let mut repaired = Vec::new();
    for keep_after_torn in [false, true] {
        let disk = disk.fork();
        let Opened { recovery, read, .. } = open(&disk, LogOptions { keep_after_torn, ..options() });
        assert_eq!((recovery.torn_bytes, recovery.damaged), ((ends[0] / 3) as u64, 0));
        assert_eq!(open(&disk, options()).recovery.torn_bytes, 0, "the repair is durable");
        repaired.push(read);
    }
    assert_eq!(repaired, [vec![1, 2, 3, 4, 5, 6], vec![1, 2, 3, 4, 5, 6, 8, 9]]);
}

/// The intact records of a corrupt group must not be taken for the end of a torn write once the records that prove the
/// group durable are removed.
fn check_kept_after_a_second_opening(disk: &SimDisk, options: &LogOptions, expected: &[u8]) {
    let first = open(disk, options.clone());
    assert_eq!(first.read, expected);
    assert!(first.recovery.damaged == 1 && first.recovery.torn_bytes > 0, "{:?}", first.recovery);
    let again = open(disk, options.clone());
    assert_eq!(again.read, expected);
    assert_eq!(again.recovery, Recovery { torn_bytes: 0, ..first.recovery });
    let mut log = again.log;
    let contents = log.contents(log.active_segment()).expect("the segment exists");
    contents.read(&mut |frame| assert_eq!(frame.kind, 9, "only records of the user")).expect("readable");
    write(&mut log, &[10]).expect("the log stays usable");
    assert_eq!(open(disk, options.clone()).read, [expected, &[10]].concat());
}

#[test]
fn records_between_corruption_and_a_torn_write_survive_two_openings() {
    let (disk, ends) = three_groups();
    for (corrupt, torn) in (ends[0]..ends[1]).flat_map(|corrupt| [(corrupt, 1), (corrupt, ends[0] / 3 + 1)]) {
        let disk = disk.fork();
        disk.flip(FIRST, corrupt, 0);
        disk.flip(FIRST, ends[1] + torn, 0);
        let (lost, torn) = (1 + (corrupt * 3 / ends[0]) as u8, 7 + (torn * 3 / ends[0]) as u8);
        let expected: Vec<u8> = (1..torn).filter(|number| *number != lost).collect();
        check_kept_after_a_second_opening(&disk, &options(), &expected);
    }
}

#[test]
fn records_between_corruption_and_a_torn_segment_survive_two_openings() {
    let options = LogOptions { segment_bytes: 1, ..options() };
    let disk = SimDisk::default();
    let mut log = open(&disk, options.clone()).log;
    [[1, 2], [3, 4]].iter().for_each(|group| write(&mut log, group).expect("the disk works"));
    drop(log);
    disk.flip(FIRST, 1, 0);
    disk.flip("log-0000000002.log", 1, 0);
    check_kept_after_a_second_opening(&disk, &options, &[2]);
}

#[test]
fn a_full_disk_does_not_prevent_a_torn_write_after_corruption_from_being_removed() {
    let (disk, ends) = three_groups();
    let disk = disk_with(&contents(&disk)[..ends[1] + 5]);
    disk.flip(FIRST, 1, 0);
    disk.set_capacity(Some(ends[1] as u64 + 5));
    for torn_bytes in [5, 0] {
        let Opened { recovery, read, .. } = open(&disk, options());
        assert_eq!((read, recovery.torn_bytes, recovery.damaged), (vec![2, 3, 4, 5, 6], torn_bytes, 1));
    }
}

#[test]
fn the_owner_is_asked_before_a_torn_write_is_removed() {
    let (disk, ends) = three_groups();
    disk.flip(FIRST, ends[1] + 1, 0);
    let refuse = &mut || Err(std::io::ErrorKind::Other.into());
    assert!(Log::open(Arc::new(disk.clone()), options(), refuse, &mut |_| {}).is_err());
    assert_eq!(contents(&disk).len(), ends[2]);
}

#[test]
fn records_of_a_removed_file_or_another_place_are_not_read() {
    let (disk, ends) = three_groups();
    let bytes = contents(&disk);
    for stale in [&bytes[..], &bytes[..ends[0]], &bytes[ends[1]..], &[0; 5000]] {
        let disk = disk_with(&[&bytes, stale].concat());
        let Opened { recovery, read, .. } = open(&disk, options());
        assert_eq!(read, (1..10).collect::<Vec<_>>());
        assert_eq!((recovery.torn_bytes, recovery.damaged), (stale.len() as u64, 0));
    }
    let other_segment = SimDisk::default();
    other_segment.create("log-0000000002.log").and_then(|file| file.append(&bytes)).expect("there is room");
    assert!(open(&other_segment, options()).read.is_empty());
    assert!(open(&disk, LogOptions { key: ChecksumKey(8), ..options() }).read.is_empty(), "another key");
}

/// Writes groups, in small segments, until the disk fails. Returns the number of synced records.
fn run_until_failure(disk: &SimDisk, options: LogOptions) -> u8 {
    let opened = Log::open(Arc::new(disk.clone()), options, &mut || Ok(()), &mut |_| {});
    let Ok((mut log, _)) = opened else { return 0 };
    (0..12).find(|group| write(&mut log, &[group * 2 + 1, group * 2 + 2]).is_err()).unwrap_or(12) * 2
}

/// Whether all synced records are read after a crash at any disk call, and no crash is taken for corruption.
fn survives_crashes(planted: Option<PlantedBug>) -> bool {
    let options = LogOptions { segment_bytes: 150, ..options() };
    let whole = SimDisk::default();
    assert_eq!(run_until_failure(&whole, options.clone()), 24);
    (0..whole.calls() + 1).flat_map(|calls| (0..8).map(move |seed| (calls, seed))).all(|(calls, seed)| {
        let disk = SimDisk::default();
        disk.stop_after(Some(calls));
        let synced = run_until_failure(&disk, LogOptions { planted, ..options.clone() });
        disk.crash(&mut Rng::new(calls * 100 + seed));
        let Opened { recovery, read, .. } = open(&disk, options.clone());
        read.len() >= synced.into() && read == (1..=read.len() as u8).collect::<Vec<_>>() && !recovery.is_damaged()
    })
}

#[test]
fn synced_records_survive_a_crash_at_any_disk_call() {
    assert!(survives_crashes(None));
    assert!(!survives_crashes(Some(PlantedBug::NoSync)), "the check can fail");
}

#[test]
fn records_that_were_read_at_open_survive_a_crash() {
    let survive = |planted: Option<PlantedBug>| {
        (0..50).all(|seed| {
            let disk = SimDisk::default();
            let mut log = open(&disk, options()).log;
            stage(&mut log, 1);
            log.flush().expect("the disk works");
            drop(log);
            let read = open(&disk, LogOptions { planted, ..options() }).read;
            disk.crash(&mut Rng::new(seed));
            open(&disk, options()).read == read
        })
    };
    assert!(survive(None));
    assert!(!survive(Some(PlantedBug::OpenedWithoutSync)), "the check can fail");
}

#[test]
fn a_missing_segment_is_reported() {
    let disk = SimDisk::default();
    run_until_failure(&disk, LogOptions { segment_bytes: 150, ..options() });
    Disk::remove(&disk, "log-0000000002.log").expect("it is there");
    let Opened { recovery, .. } = open(&disk, options());
    assert_eq!((recovery.missing_segments, recovery.damaged), (1, 0));
    assert!(recovery.is_damaged());
}

#[test]
fn a_write_that_finds_no_room_leaves_no_trace_and_a_full_segment_grows_on() {
    let disk = SimDisk::default();
    let mut log = open(&disk, LogOptions { segment_bytes: 10, ..options() }).log;
    write(&mut log, &[1]).expect("there is room");
    disk.set_capacity(Some(50));
    let full = write(&mut log, &[2, 3]).expect_err("the disk is full");
    assert!(toolbus_wal::is_full(&full));
    disk.set_capacity(None);
    write(&mut log, &[4]).expect("there is room again");
    let Opened { recovery, read, .. } = open(&disk, options());
    assert_eq!((read, recovery.torn_bytes), (vec![1, 4], 0));
}

#[test]
fn a_location_is_read_until_its_segment_is_removed() {
    let disk = SimDisk::default();
    let mut log = open(&disk, LogOptions { segment_bytes: 10, ..options() }).log;
    let location = stage(&mut log, 1);
    log.flush().expect("there is room");
    let reader = log.reader().clone();
    assert_eq!(reader.read(location).expect("readable").payload[..], [1; 11]);
    write(&mut log, &[2]).expect("there is room");
    assert_eq!(log.oldest().map(|(number, _)| number), Some(1));
    log.file_of(1).remove().expect("the disk works");
    assert!(log.removed(1) > 0 && log.oldest().is_none());
    assert!(reader.read(location).is_err());
}

#[test]
fn records_in_a_segment_whose_name_was_not_durable_survive_a_crash() {
    let disk = SimDisk::default();
    // The process that created it was killed before it synced the folder.
    disk.create(FIRST).expect("there is room");
    write(&mut open(&disk, options()).log, &[1, 2]).expect("written");
    assert_eq!(open(&disk.fork_synced(), options()).read, [1, 2]);
}
