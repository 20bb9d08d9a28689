//! When a log is sealed, and what a crash at each step leaves.

use crate::files;
use crate::key_file::{self, KEY_FILE, KeyFile};
use crate::record::Record;
use crate::seal::{SealingKey, VerificationKey};
use crate::verify::{Report, VerifyOptions, verify};
use crate::writer::{Shared, Writer};
use crate::{AuditLog, AuditOptions};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

fn options() -> AuditOptions {
    AuditOptions { seal_lines: 5, ..AuditOptions::default() }
}

fn open(folder: &Path, options: AuditOptions) -> Writer {
    let shared = Arc::new(Shared::default());
    Writer::open(folder, options, shared).expect("a log")
}

fn sealed(folder: &Path) -> VerificationKey {
    let key = VerificationKey::generate().expect("random numbers");
    AuditLog::start_sealing(folder, &key).expect("a key");
    key
}

fn append(writer: &mut Writer, count: u64) {
    let records: Vec<Record> = (0..count).map(|count| Record::Missed { count }).collect();
    writer.append(records.iter()).expect("written");
}

fn close(mut writer: Writer) {
    writer.close();
}

fn check(folder: &Path, key: &VerificationKey) -> Report {
    let keys = vec![VerificationKey::parse(&key.to_text()).expect("a key")];
    verify(folder, &VerifyOptions { keys, ..VerifyOptions::default() }).expect("readable")
}

/// The lines behind the last seal.
fn unsealed(folder: &Path) -> Option<u64> {
    verify(folder, &VerifyOptions::default()).expect("readable").sealed.map(|sealed| sealed.unsealed)
}

/// The state on disk, as a crash at this moment leaves it.
fn crash(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for entry in fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("copied");
    }
    copy
}

#[test]
fn a_log_is_sealed_after_a_number_of_lines_and_after_a_time() {
    let folder = tempfile::tempdir().expect("a folder");
    sealed(folder.path());
    let mut writer = open(folder.path(), options());
    assert_eq!(unsealed(folder.path()), Some(0), "the first lines are sealed at once");
    append(&mut writer, 4);
    writer.elapse(Duration::from_secs(1));
    assert_eq!(unsealed(folder.path()), Some(4));
    append(&mut writer, 1);
    writer.elapse(Duration::from_secs(1));
    assert_eq!(unsealed(folder.path()), Some(0), "five lines");
    append(&mut writer, 1);
    writer.elapse(Duration::from_secs(1));
    assert_eq!(unsealed(folder.path()), Some(1));
    writer.elapse(Duration::from_secs(10));
    assert_eq!(unsealed(folder.path()), Some(0), "ten seconds, although no line was written since");
    let size = fs::metadata(files::path_of(folder.path(), 1)).expect("a file").len();
    writer.elapse(Duration::from_secs(3600));
    assert_eq!(
        fs::metadata(files::path_of(folder.path(), 1)).expect("a file").len(),
        size,
        "an idle log does not grow"
    );
}

#[test]
fn an_open_log_is_sealed_from_the_moment_its_key_is_created() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut writer = open(folder.path(), options());
    append(&mut writer, 3);
    writer.elapse(Duration::from_secs(1));
    assert_eq!(unsealed(folder.path()), None);
    let key = sealed(folder.path());
    writer.elapse(Duration::from_secs(1));
    assert_eq!(unsealed(folder.path()), Some(0));
    append(&mut writer, 3);
    close(writer);
    let report = check(folder.path(), &key);
    assert_eq!((report.problem, report.sealed.map(|sealed| sealed.seals)), (None, Some(2)));
}

#[test]
fn a_crash_at_any_step_leaves_a_log_that_continues_and_is_valid() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let key = sealed(folder);
    let mut states = vec![("key created", crash(folder))];
    let mut writer = open(folder, AuditOptions { max_file_bytes: 1500, ..options() });
    states.push(("opened", crash(folder)));
    for round in 0..4 {
        append(&mut writer, 3);
        states.push(("lines written", crash(folder)));
        writer.saved();
        let old = fs::read(folder.join(KEY_FILE)).expect("a key");
        writer.seal().expect("sealed");
        states.push(("seal written", crash(folder)));
        let torn = crash(folder);
        let path = files::path_of(torn.path(), *files::numbers(folder).expect("files").last().expect("a file"));
        let bytes = fs::read(&path).expect("bytes");
        fs::write(&path, &bytes[..bytes.len() - 20]).expect("written");
        // The head is written after the line.
        fs::copy(states[states.len() - 2].1.path().join("head.json"), torn.path().join("head.json")).expect("copied");
        states.push(("seal torn", torn));
        writer.sync().expect("synced");
        writer.saved();
        let new = fs::read(folder.join(KEY_FILE)).expect("a key");
        assert_ne!(old, new, "round {round}");
        let both: Vec<u8> = old.iter().zip(&new).map(|(old, new)| old | new).collect();
        let mut torn = both.clone();
        // A digit of the new key; the checksum behind it has 64 digits.
        let digit = torn.iter().zip(&old).rposition(|(both, old)| both != old).expect("a new key") - 70;
        torn[digit] = if torn[digit] == b'0' { b'1' } else { b'0' };
        for (name, bytes) in [("key not replaced", &old), ("key torn", &torn), ("old key not erased", &both)] {
            let state = crash(folder);
            fs::write(state.path().join(KEY_FILE), bytes).expect("written");
            states.push((name, state));
        }
        states.push(("key replaced", crash(folder)));
    }
    assert!(files::numbers(folder).expect("files").len() > 1, "rotation is among the steps");
    for (name, state) in states {
        let mut writer = open(state.path(), options());
        append(&mut writer, 1);
        close(writer);
        let report = check(state.path(), &key);
        assert_eq!((report.problem, report.sealed.map(|sealed| sealed.unsealed)), (None, Some(0)), "{name}");
    }
}

/// The key as it is written in the file.
fn digits(key: &SealingKey) -> String {
    toolbus_base::hex(&*key.key)
}

#[test]
fn the_key_file_has_one_key_and_a_leftover_of_a_crash_is_erased_when_it_is_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    sealed(folder.path());
    let text = || String::from_utf8_lossy(&fs::read(folder.path().join(KEY_FILE)).expect("a file")).into_owned();
    let (mut file, first) = KeyFile::open(folder.path()).expect("readable").expect("a key");
    let mut key = first.clone();
    for _ in 0..3 {
        let old = key.clone();
        key.evolve();
        file.replace(&key).expect("replaced");
        assert!(text().contains(&digits(&key)) && !text().contains(&digits(&old)));
    }
    let old = key.clone();
    key.evolve();
    file.write_free_slot(&key).expect("written");
    assert!(text().contains(&digits(&key)) && text().contains(&digits(&old)), "a crash between the two writes");
    let (_, newest) = KeyFile::open(folder.path()).expect("readable").expect("a key");
    assert_eq!(newest.index, key.index);
    assert!(text().contains(&digits(&key)) && !text().contains(&digits(&old)));
    let names: Vec<_> =
        fs::read_dir(folder.path()).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, [KEY_FILE], "no temporary file has an old key");
}

#[test]
fn a_log_whose_key_cannot_be_replaced_is_written_and_sealed_and_its_key_is_replaced_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = sealed(folder.path());
    let mut writer = open(folder.path(), options());
    writer.saved();
    let before = key_file::read(folder.path()).expect("readable").expect("a key").index;
    writer.break_key_file(folder.path());
    for _ in 0..2 {
        append(&mut writer, 5);
        writer.elapse(Duration::from_secs(1));
    }
    close(writer);
    assert_eq!(key_file::read(folder.path()).expect("readable").expect("a key").index, before);
    let report = check(folder.path(), &key);
    assert_eq!((report.problem, report.sealed.map(|sealed| sealed.unsealed)), (None, Some(0)));
    let writer = open(folder.path(), options());
    writer.saved();
    assert!(key_file::read(folder.path()).expect("readable").expect("a key").index > before + 2);
}

#[test]
fn the_key_is_not_replaced_if_its_seal_could_not_be_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = sealed(folder.path());
    let mut writer = open(folder.path(), options());
    append(&mut writer, 1);
    writer.break_file();
    assert!(writer.seal().is_err(), "as on a full disk");
    close(writer);
    close(open(folder.path(), options()));
    let report = check(folder.path(), &key);
    assert_eq!((report.problem, report.sealed.map(|sealed| sealed.unsealed)), (None, Some(0)));
}
