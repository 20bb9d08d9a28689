//! With the key that is kept elsewhere, also a log that was rewritten as a whole is detected.

use crate::support::{SMALL, checked, checked_with, edit, files, problem_with, rewrite, write, write_sealed};
use std::fs;
use std::path::Path;
use toolbus_audit::{AuditError, AuditLog, AuditOptions, VerificationKey, VerifyOptions, verify};

const KEY_FILE: &str = "seal.key";

async fn log() -> (tempfile::TempDir, VerificationKey) {
    let folder = tempfile::tempdir().expect("a folder");
    let key = write_sealed(folder.path(), 12, &SMALL).await;
    assert_eq!(checked_with(folder.path(), &key).problem, None);
    assert!(files(folder.path()).len() >= 3);
    (folder, key)
}

fn is_seal(line: &str) -> bool {
    line.contains("\"event\":\"seal\"")
}

/// Number of seals in a file.
fn seals(file: &Path) -> usize {
    fs::read_to_string(file).expect("text").lines().filter(|line| is_seal(line)).count()
}

#[tokio::test]
async fn a_sealed_log_is_valid_across_rotation_and_restarts_and_ends_with_a_seal() {
    let (folder, key) = log().await;
    for _ in 0..3 {
        write(folder.path(), 7, &SMALL).await;
        let report = checked_with(folder.path(), &key);
        assert_eq!(report.problem, None);
        let sealed = report.sealed.expect("it is sealed");
        assert_eq!(sealed.unsealed, 0, "every line is sealed when the log is closed");
        assert_eq!(sealed.seals, files(folder.path()).iter().map(|file| seals(file) as u64).sum::<u64>());
    }
    let all = files(folder.path());
    assert!(all[..all.len() - 1].iter().all(|file| {
        let text = fs::read_to_string(file).expect("text");
        text.lines().last().is_some_and(is_seal)
    }));
}

#[tokio::test]
async fn a_change_with_a_recomputed_chain_is_detected_at_the_next_seal() {
    let target = |lines: &[String]| lines.iter().position(|line| line.contains("\"read_4\""));
    type Change = fn(&mut Vec<String>, usize);
    let changes: [(&str, Change); 5] = [
        ("changed", |lines, at| lines[at] = lines[at].replace("allow", "deny!")),
        ("removed", |lines, at| drop(lines.remove(at))),
        ("inserted", |lines, at| lines.insert(at, lines[at].replace("allow", "deny!"))),
        ("repeated", |lines, at| lines.insert(at, lines[at].clone())),
        ("reordered", |lines, at| lines.swap(at - 1, at)),
    ];
    for (what, change) in changes {
        let (folder, key) = log().await;
        rewrite(folder.path(), |lines| {
            if let Some(at) = target(lines) {
                change(lines, at);
            }
        });
        let found = problem_with(folder.path(), &key);
        assert!(found.contains("the seal is not one of this key"), "{what}: {found}");
    }
}

#[tokio::test]
async fn the_time_of_the_last_seal_is_sealed_too() {
    let (folder, key) = log().await;
    let last = files(folder.path()).pop().expect("a file");
    let count = fs::read_to_string(&last).expect("text").lines().count();
    rewrite(folder.path(), |lines| {
        if lines.len() == count && lines.last().is_some_and(|line| is_seal(line)) {
            let line = lines.last_mut().expect("a line");
            *line = line.replacen("\"time\":\"2", "\"time\":\"3", 1);
        }
    });
    assert!(problem_with(folder.path(), &key).contains("the seal is not one of this key"));
}

#[tokio::test]
async fn a_log_whose_seals_were_removed_is_not_sealed_and_the_key_on_disk_cannot_seal_it_again() {
    let (folder, key) = log().await;
    rewrite(folder.path(), |lines| lines.retain(|line| !is_seal(line)));
    assert!(problem_with(folder.path(), &key).contains("the log is not sealed"));
    // The attacker continues with the key that is on the machine.
    write(folder.path(), 3, &SMALL).await;
    assert!(problem_with(folder.path(), &key).contains("seals before it are missing"));
}

#[tokio::test]
async fn a_truncated_end_is_detected_even_if_the_head_was_rewritten() {
    for keep in 0..2 {
        let (folder, key) = log().await;
        let all = files(folder.path());
        for file in &all[all.len() - 1 - keep..] {
            fs::remove_file(file).expect("removed");
        }
        rewrite(folder.path(), |_| {});
        assert!(problem_with(folder.path(), &key).contains("missing at the end"), "{keep}");
        // The attacker lets the log continue, so that a later seal is at the end.
        write(folder.path(), 3, &SMALL).await;
        assert!(problem_with(folder.path(), &key).contains("seals before it are missing"), "{keep}");
    }
}

#[tokio::test]
async fn a_missing_replaced_or_foreign_sealing_key_is_detected() {
    let (folder, key) = log().await;
    let path = folder.path().join(KEY_FILE);
    fs::remove_file(&path).expect("removed");
    assert_eq!(
        problem_with(folder.path(), &key),
        "seal.key: it is missing, so seals that were removed at the end can't be detected"
    );
    match AuditLog::open(folder.path(), SMALL) {
        Err(AuditError::Damaged { place, .. }) => assert_eq!(place, KEY_FILE, "a sealed log is not continued unsealed"),
        other => panic!("{other:?}"),
    }
    AuditLog::start_sealing(folder.path(), &key).expect("a key");
    assert_eq!(
        problem_with(folder.path(), &key),
        "seal.key: it was replaced: its key does not follow from the given one"
    );
    assert!(AuditLog::open(folder.path(), SMALL).is_err(), "its key does not match the last seal");
    fs::write(&path, "nonsense").expect("written");
    assert_eq!(problem_with(folder.path(), &key), "seal.key: it has no valid key");
}

#[tokio::test]
async fn another_key_does_not_verify_the_log_and_one_of_several_does() {
    let (folder, key) = log().await;
    let other = VerificationKey::generate().expect("random numbers");
    assert!(problem_with(folder.path(), &other).contains("the seal is not one of this key"));
    let options = VerifyOptions { keys: vec![other, key], ..VerifyOptions::default() };
    assert_eq!(verify(folder.path(), &options).expect("readable").problem, None);
    let unsealed = tempfile::tempdir().expect("a folder");
    write(unsealed.path(), 3, &SMALL).await;
    assert!(checked(unsealed.path()).sealed.is_none());
    assert!(problem_with(unsealed.path(), &options.keys[0]).contains("the log is not sealed"));
}

#[tokio::test]
async fn a_rewritten_log_cannot_claim_that_its_seals_were_rotated_away() {
    let (folder, key) = log().await;
    let sealed = checked_with(folder.path(), &key).sealed.expect("it is sealed").seals;
    for file in &files(folder.path())[1..] {
        fs::remove_file(file).expect("removed");
    }
    let claim = |lines: &mut Vec<String>| {
        lines.truncate(1);
        let (before, _) = lines[0].split_once("\"event\"").expect("an event");
        lines[0] = format!("{before}\"event\":\"continued\",\"from\":\"x\",\"seals\":{sealed},\"prev\":");
    };
    rewrite(folder.path(), claim);
    write(folder.path(), 3, &SMALL).await;
    assert!(problem_with(folder.path(), &key).contains("seals before it are missing"));
}

#[tokio::test]
async fn files_may_be_missing_only_if_rotation_removed_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = AuditOptions { max_files: 3, ..SMALL };
    let key = write_sealed(folder.path(), 40, &options).await;
    let with = |max_files| {
        let keys = vec![VerificationKey::parse(&key.to_text()).expect("a key")];
        verify(folder.path(), &VerifyOptions { keys, max_files, ..VerifyOptions::default() }).expect("readable")
    };
    let report = with(3);
    assert_eq!((report.problem, report.files), (None, 3));
    assert_eq!(report.rotated_before, files(folder.path())[0].file_name().map(|name| name.to_string_lossy().into()));
    // Under the documented limit, rotation would not have removed them: somebody wrote the records afterwards.
    let found = with(4).problem.expect("a problem").to_string();
    assert!(found.contains("it records the removal of a file that is among the last 4"), "{found}");
}

#[tokio::test]
async fn a_power_failure_that_loses_an_unsynced_seal_leaves_no_gap_in_the_seals() {
    let (folder, key) = log().await;
    let before = fs::read(folder.path().join(KEY_FILE)).expect("a key");
    write(folder.path(), 2, &AuditOptions::default()).await;
    // The last seal was not synced, so its key was not replaced either.
    edit(&files(folder.path()).pop().expect("a file"), |lines| drop(lines.split_off(lines.len() - 4)));
    fs::write(folder.path().join(KEY_FILE), before).expect("written");
    write(folder.path(), 2, &AuditOptions::default()).await;
    let report = checked_with(folder.path(), &key);
    assert!(report.problem.expect("a loss").what.contains("lines before it were missing"));
    assert_eq!(report.others, [], "no seal is missing");
}

#[tokio::test]
async fn a_log_is_sealed_with_one_key_only() {
    let (folder, key) = log().await;
    assert!(matches!(AuditLog::start_sealing(folder.path(), &key), Err(AuditError::Sealed { .. })));
}
