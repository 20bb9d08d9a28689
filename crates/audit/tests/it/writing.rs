//! Writing, rotation, limits, and reading the tail.

use crate::support::{SMALL, checked, decision, expecting, files, write};
use toolbus_audit::{AuditError, AuditLog, AuditOptions, Tail};

#[tokio::test]
async fn every_record_is_one_line_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), 5, &AuditOptions::default()).await;
    let report = checked(folder.path());
    assert_eq!((report.problem, report.lines), (None, 6));
    let (_, lines) = Tail::open(folder.path(), 2).expect("a tail");
    assert_eq!(lines.len(), 2);
    let last: serde_json::Value = serde_json::from_str(&lines[1]).expect("JSON");
    assert_eq!((&last["seq"], &last["event"], &last["name"]), (&6.into(), &"decision".into(), &"read_4".into()));
    assert!(last["time"].as_str().is_some_and(|time| time.ends_with('Z') && time.len() == 24), "{last}");
    assert_eq!(expecting(folder.path(), last["hash"].as_str().expect("a hash")).problem, None);
}

#[tokio::test]
async fn concurrent_writers_share_one_chain() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = AuditLog::open(folder.path(), SMALL).expect("a log");
    let writers: Vec<_> = (0..200)
        .map(|n| {
            let log = log.clone();
            tokio::spawn(async move { log.write(decision(n)).await })
        })
        .collect();
    for writer in writers {
        writer.await.expect("no panic").expect("written");
    }
    drop(log);
    let report = checked(folder.path());
    assert_eq!(report.problem, None);
    assert!(report.lines > 200 && report.files > 1, "{report:?}");
}

#[tokio::test]
async fn a_record_that_is_written_at_once_does_not_overtake_queued_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = AuditLog::open(folder.path(), AuditOptions::default()).expect("a log");
    for n in 0..300 {
        log.note(decision(2 * n));
        // Sometimes the queue is empty again.
        std::thread::sleep(std::time::Duration::from_micros(150 * (n % 2)));
        log.write(decision(2 * n + 1)).await.expect("written");
    }
    drop(log);
    assert_eq!(checked(folder.path()).problem, None);
    let (_, lines) = Tail::open(folder.path(), 600).expect("a tail");
    let names = lines.iter().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["name"].clone());
    let expected: Vec<serde_json::Value> = (0..600).map(|n| format!("read_{n}").into()).collect();
    assert_eq!(names.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_posted_record_is_written_before_the_next_one_and_without_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = AuditLog::open(folder.path(), AuditOptions::default()).expect("a log");
    let count = || Tail::open(folder.path(), 100).expect("a tail").1.len();
    let opened = count();
    log.post(decision(0)).await.expect("posted");
    log.write(decision(1)).await.expect("written");
    assert_eq!(count(), opened + 2);
    let (_, lines) = Tail::open(folder.path(), 2).expect("a tail");
    assert!(lines[0].contains("read_0") && lines[1].contains("read_1"), "{lines:?}");

    log.post(decision(2)).await.expect("posted");
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(30);
    // The head is written after the line, and does not wait for the next record or sync either.
    while count() < opened + 3 || checked(folder.path()).problem.is_some() || head_seq(folder.path()) < 4 {
        assert!(std::time::Instant::now() < limit, "the posted record was not written");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    drop(log);
    assert_eq!(checked(folder.path()).problem, None);
}

fn head_seq(folder: &std::path::Path) -> u64 {
    let head = std::fs::read_to_string(folder.join("head.json")).expect("a head");
    serde_json::from_str::<serde_json::Value>(&head).expect("JSON")["seq"].as_u64().expect("a number")
}

#[tokio::test]
async fn old_files_are_removed_and_the_removal_is_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = AuditOptions { max_files: 3, ..SMALL };
    write(folder.path(), 40, &options).await;
    assert_eq!(files(folder.path()).len(), 3);
    assert_eq!(checked(folder.path()).problem, None);
    write(folder.path(), 40, &options).await;
    assert_eq!(checked(folder.path()).problem, None);
}

#[tokio::test]
async fn refused_connections_are_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = AuditLog::open(folder.path(), AuditOptions::default()).expect("a log");
    for _ in 0..10_000 {
        log.connection_refused("TB0103");
    }
    log.connection_refused("TB0112");
    drop(log);
    let (_, lines) = Tail::open(folder.path(), 10).expect("a tail");
    assert!(lines.len() <= 4, "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("\"code\":\"TB0103\",\"count\":10000")), "{lines:#?}");
}

#[tokio::test]
async fn records_that_do_not_fit_the_queue_are_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = AuditLog::open(folder.path(), AuditOptions { max_queued: 1, ..SMALL }).expect("a log");
    for n in 0..5000 {
        log.note(decision(n));
    }
    drop(log);
    let report = checked(folder.path());
    assert_eq!(report.problem, None);
    assert!(report.missed > 0, "{report:?}");
}

#[tokio::test]
async fn a_second_writer_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let _log = AuditLog::open(folder.path(), SMALL).expect("a log");
    assert!(matches!(AuditLog::open(folder.path(), SMALL), Err(AuditError::Locked { .. })));
}

#[tokio::test]
async fn after_a_failed_write_all_later_ones_fail() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = AuditLog::open(folder.path(), AuditOptions { max_file_bytes: 1, ..SMALL }).expect("a log");
    // A folder with the name of the next file makes its creation fail.
    std::fs::create_dir(folder.path().join("audit-000002.jsonl")).expect("created");
    assert!(matches!(log.write(decision(1)).await, Err(AuditError::Io { .. })));
    std::fs::remove_dir(folder.path().join("audit-000002.jsonl")).expect("removed");
    assert!(matches!(log.write(decision(2)).await, Err(AuditError::Failed(_))));
}

#[tokio::test]
async fn a_tail_continues_across_file_rotation() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = AuditLog::open(folder.path(), SMALL).expect("a log");
    let (mut tail, lines) = Tail::open(folder.path(), 10).expect("a tail");
    assert_eq!(lines.len(), 1);
    for n in 0..20 {
        log.write(decision(n)).await.expect("written");
    }
    let lines = tail.more().expect("more");
    assert_eq!(lines.iter().filter(|line| line.contains("\"decision\"")).count(), 20);
    assert!(tail.more().expect("no more").is_empty());
}
