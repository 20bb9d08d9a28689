//! The stored position: across files, restarts, outages, rotation and crashes.

use crate::support::{TestLog, lines, open, read_lines, ship, until, write};
use std::fs;
use toolbus_ship::{ShipState, Target};

fn file_target(folder: &std::path::Path) -> (Target, std::path::PathBuf) {
    let file = folder.join("copy.txt");
    (Target::File(file.clone()), file)
}

#[tokio::test]
async fn every_line_is_shipped_once_in_order_across_files_and_restarts() {
    let (log, place) = (TestLog::open(100), tempfile::tempdir().expect("a folder"));
    let (target, copy) = file_target(place.path());
    for _ in 0..3 {
        let shipper = log.ship(&target);
        log.write(20).await;
        assert_eq!(log.shipped(), read_lines(&copy));
        drop(shipper);
        log.write(5).await;
    }
    let _shipper = log.ship(&target);
    let shipped = log.shipped();
    assert_eq!(shipped, read_lines(&copy));
    assert!(shipped.len() > 75);
}

#[tokio::test]
async fn lines_wait_in_the_log_while_the_target_is_away() {
    let (log, place) = (TestLog::open(100), tempfile::tempdir().expect("a folder"));
    let (target, copy) = file_target(&place.path().join("mount"));
    let _shipper = log.ship(&target);
    let outage = until("the outage", || ShipState::read(log.path())?.outage);
    assert!(outage.error.contains("copy.txt") && outage.since_ms > 0, "{outage:?}");
    log.write(20).await;
    fs::create_dir(place.path().join("mount")).expect("created");
    assert_eq!(log.shipped(), read_lines(&copy));
    let state = ShipState::read(log.path()).expect("a state");
    assert!(state.shipped_ms.is_some() && state.missed == 0, "{state:?}");
}

#[tokio::test]
async fn lines_that_rotation_removed_before_they_were_shipped_are_counted() {
    let (log, place) = (TestLog::open(2), tempfile::tempdir().expect("a folder"));
    let (target, copy) = file_target(place.path());
    let shipper = log.ship(&target);
    let before = log.shipped().len() as u64;
    drop(shipper);
    log.write(60).await;
    let _shipper = log.ship(&target);
    let kept = log.shipped();
    let state = ShipState::read(log.path()).expect("a state");
    assert_eq!(state.missed, state.cursor.seq - before - kept.len() as u64);
    assert!(state.missed > 10, "{state:?}");
    assert_eq!(read_lines(&copy)[before as usize..], kept);
}

#[tokio::test]
async fn lines_written_in_place_of_shipped_ones_that_a_crash_lost_are_shipped_too() {
    let (log, place) = (TestLog::open(100), tempfile::tempdir().expect("a folder"));
    let (target, copy) = file_target(place.path());
    let shipper = log.ship(&target);
    log.write(1).await;
    log.shipped();
    drop(shipper);
    let TestLog { folder, log } = log;
    drop(log);
    // The power failed before the last line was synced.
    let file = folder.path().join("audit-000001.jsonl");
    let text = fs::read_to_string(&file).expect("text");
    let end = text.trim_end().rfind('\n').expect("two lines") + 1;
    fs::write(&file, &text[..end]).expect("written");
    let log = open(folder.path(), 100);
    write(&log, 2).await;
    let log = TestLog { folder, log };
    let _shipper = log.ship(&target);
    until("all lines", || {
        let copied = read_lines(&copy);
        lines(log.path()).iter().all(|line| copied.contains(line)).then_some(())
    });
}

#[tokio::test]
async fn another_target_gets_the_log_from_its_start() {
    let (log, place) = (TestLog::open(100), tempfile::tempdir().expect("a folder"));
    log.write(10).await;
    for name in ["one", "two"] {
        let copy = place.path().join(name);
        let _shipper = log.ship(&Target::File(copy.clone()));
        until("all lines", || (read_lines(&copy) == lines(log.path())).then_some(()));
    }
}

#[tokio::test]
async fn a_torn_line_of_the_target_is_not_continued() {
    let (log, place) = (TestLog::open(100), tempfile::tempdir().expect("a folder"));
    let (target, copy) = file_target(place.path());
    fs::write(&copy, "{\"seq\":").expect("written");
    let _shipper = ship(log.path(), &target);
    let shipped = log.shipped();
    assert_eq!(read_lines(&copy)[1..], shipped);
}
