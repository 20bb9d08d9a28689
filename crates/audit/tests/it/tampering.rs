//! Every modification of the log is detected.

use crate::support::{SMALL, checked, edit, expecting, files, problem, write};
use std::fs;
use toolbus_audit::{AuditLog, AuditOptions, sha256_hex};

async fn log() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), 12, &SMALL).await;
    assert_eq!(checked(folder.path()).problem, None);
    assert!(files(folder.path()).len() >= 3);
    folder
}

#[tokio::test]
async fn a_modified_byte_in_any_file_is_detected() {
    let folder = log().await;
    let mut paths = files(folder.path());
    paths.push(folder.path().join("head.json"));
    for path in paths {
        let good = fs::read(&path).expect("bytes");
        // Every byte would take minutes in debug builds. The stride has no divisor in common with the line lengths.
        for at in (0..good.len()).step_by(7) {
            let mut bad = good.clone();
            bad[at] ^= 0x04;
            fs::write(&path, &bad).expect("written");
            let report = checked(folder.path());
            assert!(report.problem.is_some(), "the change of byte {at} of {} was not detected", path.display());
        }
        fs::write(&path, good).expect("written");
    }
    assert_eq!(checked(folder.path()).problem, None);
}

#[tokio::test]
async fn a_removed_line_is_detected_at_its_position() {
    let folder = log().await;
    edit(&files(folder.path())[1], |lines| drop(lines.remove(1)));
    assert!(problem(folder.path()).starts_with("audit-000002.jsonl:2: "), "{}", problem(folder.path()));
}

#[tokio::test]
async fn swapped_and_repeated_lines_are_detected() {
    let folder = log().await;
    let file = &files(folder.path())[0];
    edit(file, |lines| lines.swap(1, 2));
    assert!(problem(folder.path()).starts_with("audit-000001.jsonl:2: "));
    edit(file, |lines| lines.swap(1, 2));
    assert_eq!(checked(folder.path()).problem, None);
    edit(file, |lines| lines.insert(1, lines[1].clone()));
    assert!(problem(folder.path()).starts_with("audit-000001.jsonl:3: "));
}

#[tokio::test]
async fn a_truncated_end_is_detected() {
    let folder = log().await;
    let file = files(folder.path()).pop().expect("a file");
    edit(&file, |lines| drop(lines.pop()));
    assert!(problem(folder.path()).contains("1 lines are missing at the end"), "{}", problem(folder.path()));
    fs::remove_file(&file).expect("removed");
    assert!(problem(folder.path()).contains("missing at the end"));
}

#[tokio::test]
async fn a_truncated_end_is_detected_after_the_log_was_continued() {
    let folder = log().await;
    edit(&files(folder.path()).pop().expect("a file"), |lines| drop(lines.pop()));
    write(folder.path(), 3, &SMALL).await;
    assert!(problem(folder.path()).contains("1 lines before it were missing"), "{}", problem(folder.path()));
}

#[tokio::test]
async fn changes_behind_a_scar_are_detected() {
    let folder = log().await;
    for _ in 0..2 {
        edit(&files(folder.path()).pop().expect("a file"), |lines| drop(lines.pop()));
        write(folder.path(), 3, &SMALL).await;
    }
    let report = checked(folder.path());
    assert_eq!((report.scars, report.others.len()), (2, 1));
    let last = files(folder.path()).pop().expect("a file");
    edit(&last, |lines| lines[0] = lines[0].replacen("seq", "sEq", 1));
    let report = checked(folder.path());
    assert_eq!((report.scars, report.others.len()), (2, 2), "{report:?}");
    assert!(last.ends_with(&report.others[1].file), "{report:?}");
}

#[tokio::test]
async fn a_missing_head_is_detected_after_the_log_was_continued() {
    let folder = log().await;
    fs::remove_file(folder.path().join("head.json")).expect("removed");
    assert!(problem(folder.path()).starts_with("head.json: "));
    write(folder.path(), 3, &SMALL).await;
    assert!(problem(folder.path()).contains("the head was missing"), "{}", problem(folder.path()));
}

#[tokio::test]
async fn a_removed_file_is_detected_at_the_beginning_and_in_the_middle() {
    let folder = log().await;
    let paths = files(folder.path());
    let middle = fs::read(&paths[1]).expect("bytes");
    fs::remove_file(&paths[1]).expect("removed");
    assert!(problem(folder.path()).contains("the file before it is missing"));
    fs::write(&paths[1], middle).expect("written");
    fs::remove_file(&paths[0]).expect("removed");
    assert_eq!(problem(folder.path()), "audit-000001.jsonl: it is missing, and the log does not record its removal");
}

/// Changes a line and recomputes its own hash, so that only the links to its neighbours can show the change.
fn forge(line: &mut String, from: &str, to: &str) {
    let (covered, _) = line.rsplit_once(",\"hash\":\"").expect("a hash");
    let covered = covered.replace(from, to);
    assert!(!line.starts_with(&covered), "{from} is in the line");
    *line = format!("{covered},\"hash\":\"{}\"}}", sha256_hex(covered.as_bytes()));
}

#[tokio::test]
async fn a_changed_line_with_a_new_hash_is_detected_at_the_next_line() {
    let folder = log().await;
    let paths = files(folder.path());
    edit(&paths[1], |lines| forge(&mut lines[1], "allow", "deny!"));
    let found = problem(folder.path());
    assert!(found.starts_with("audit-000002.jsonl:3: its previous hash is not that of line"), "{found}");
    // Also across files, and if the previous hash was changed in the line itself.
    let folder = log().await;
    let paths = files(folder.path());
    edit(&paths[0], |lines| forge(lines.last_mut().expect("a line"), "allow", "deny!"));
    assert!(problem(folder.path()).starts_with("audit-000002.jsonl:1: its previous hash"));
    let folder = log().await;
    let paths = files(folder.path());
    edit(&paths[0], |lines| forge(&mut lines[1], "\"prev\":\"", "\"prev\":\"0"));
    assert!(problem(folder.path()).starts_with("audit-000001.jsonl:2: its previous hash"));
}

#[tokio::test]
async fn a_changed_last_line_with_a_new_hash_is_not_the_one_of_the_head() {
    let folder = log().await;
    edit(&files(folder.path()).pop().expect("a file"), |lines| {
        forge(lines.last_mut().expect("a line"), "allow", "deny!")
    });
    assert!(problem(folder.path()).contains("head.json names a different line"), "{}", problem(folder.path()));
    assert!(AuditLog::open(folder.path(), SMALL).is_err(), "such a log is not continued");
}

#[tokio::test]
async fn the_recorded_removal_of_a_file_excuses_no_other_file() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), 40, &AuditOptions { max_files: 3, ..SMALL }).await;
    let paths = files(folder.path());
    let recorded = paths[1..].iter().filter(|path| fs::read_to_string(path).expect("text").contains("\"removed\""));
    assert_eq!(recorded.count(), 2, "the later files record removals of earlier ones");
    fs::remove_file(&paths[0]).expect("removed");
    let name = paths[0].file_name().expect("a name").to_string_lossy();
    assert_eq!(problem(folder.path()), format!("{name}: it is missing, and the log does not record its removal"));
}

#[tokio::test]
async fn a_rewritten_log_lacks_the_expected_hash() {
    let folder = log().await;
    let expected = checked(folder.path()).last_hash;
    write(folder.path(), 3, &SMALL).await;
    assert_eq!(expecting(folder.path(), &expected).problem, None);
    fs::remove_dir_all(folder.path()).expect("removed");
    write(folder.path(), 15, &AuditOptions::default()).await;
    assert_eq!(checked(folder.path()).problem, None);
    let report = expecting(folder.path(), &expected);
    assert!(report.problem.expect("a problem").what.contains("no line has the expected hash"));
}
