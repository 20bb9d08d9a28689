//! A crash leaves a torn line or an outdated head; the log continues and records the repair.

use crate::support::{SMALL, checked, edit, files, problem, write};
use std::fs::{self, OpenOptions};
use std::io::Write;
use toolbus_audit::{AuditError, AuditLog, AuditOptions};

#[tokio::test]
async fn a_torn_line_is_truncated_and_the_repair_is_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), 3, &AuditOptions::default()).await;
    let mut file = OpenOptions::new().append(true).open(&files(folder.path())[0]).expect("a file");
    file.write_all(b"{\"seq\":5,\"time\":\"20").expect("written");
    assert!(problem(folder.path()).contains("incomplete"));
    write(folder.path(), 2, &AuditOptions::default()).await;
    let report = checked(folder.path());
    assert_eq!((report.problem, report.repairs, report.lines), (None, 1, 8));
}

#[tokio::test]
async fn an_outdated_head_is_updated() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), 3, &AuditOptions::default()).await;
    let head = fs::read(folder.path().join("head.json")).expect("a head");
    write(folder.path(), 1, &AuditOptions::default()).await;
    fs::write(folder.path().join("head.json"), head).expect("written");
    write(folder.path(), 30, &SMALL).await;
    let report = checked(folder.path());
    assert_eq!((report.problem, report.repairs), (None, 0));
}

#[tokio::test]
async fn an_empty_last_file_is_created_again() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), 3, &SMALL).await;
    let next = files(folder.path()).len() + 1;
    fs::write(folder.path().join(format!("audit-{next:06}.jsonl")), "").expect("written");
    write(folder.path(), 10, &SMALL).await;
    let report = checked(folder.path());
    assert_eq!((report.problem, report.repairs), (None, 0));
}

#[tokio::test]
async fn a_modified_log_is_not_continued() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), 3, &AuditOptions::default()).await;
    edit(&files(folder.path())[0], |lines| lines[2] = lines[2].replace("allow", "deny!"));
    match AuditLog::open(folder.path(), AuditOptions::default()) {
        Err(AuditError::Damaged { place, .. }) => assert_eq!(place, "audit-000001.jsonl:3"),
        other => panic!("{other:?}"),
    }
}
