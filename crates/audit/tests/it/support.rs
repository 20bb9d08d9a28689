//! Fixtures: records, and a log in a temporary folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toolbus_audit::{AuditLog, AuditOptions, Caller, Record, Report, Subject, VerificationKey, VerifyOptions, verify};

pub const SMALL: AuditOptions = AuditOptions {
    max_file_bytes: 1500,
    max_files: 100,
    max_queued: 64,
    seal_lines: 5,
    seal_interval: Duration::from_secs(10),
};

pub fn decision(n: u64) -> Record {
    let caller = Caller { who: "w#mcp".into(), role: Some("reader".into()) };
    let subject = Subject {
        server: "files".into(),
        kind: "tool".into(),
        name: Some(format!("read_{n}")),
        args: Some(toolbus_audit::argument_hash(None)),
        request: format!("r{n}"),
        trace: None,
    };
    Record::Decision { caller, subject, effect: "allow".into(), rule: Some("allow = [\"**\"]".into()), code: None }
}

/// Writes `count` decisions and closes the log.
pub async fn write(folder: &Path, count: u64, options: &AuditOptions) {
    let log = AuditLog::open(folder, options.clone()).expect("a log");
    for n in 0..count {
        log.write(decision(n)).await.expect("written");
    }
}

/// Creates the folder's key and writes a sealed log of several files.
pub async fn write_sealed(folder: &Path, count: u64, options: &AuditOptions) -> VerificationKey {
    let key = VerificationKey::generate().expect("random numbers");
    AuditLog::start_sealing(folder, &key).expect("a key");
    write(folder, count, options).await;
    key
}

/// The result with the key of the seals.
pub fn checked_with(folder: &Path, key: &VerificationKey) -> Report {
    let key = VerificationKey::parse(&key.to_text()).expect("its text is a key");
    verify(folder, &VerifyOptions { keys: vec![key], ..VerifyOptions::default() }).expect("readable")
}

/// The first problem that only the key shows, as text: the chain and the head are intact.
pub fn problem_with(folder: &Path, key: &VerificationKey) -> String {
    assert_eq!(checked(folder).problem, None, "the chain is intact");
    checked_with(folder, key).problem.map(|problem| problem.to_string()).expect("a problem")
}

/// Changes the lines as an attacker does who can write all files: numbers, hashes and the head are recomputed.
pub fn rewrite(folder: &Path, change: impl Fn(&mut Vec<String>)) {
    let (mut seq, mut prev) = (None, None);
    let mut last = None;
    for path in files(folder) {
        edit(&path, |lines| {
            let first: serde_json::Value = serde_json::from_str(&lines[0]).expect("JSON");
            let start =
                || (first["seq"].as_u64().expect("a number"), first["prev"].as_str().expect("a hash").to_owned());
            let (mut at, mut hash) = (seq.unwrap_or_else(|| start().0), prev.take().unwrap_or_else(|| start().1));
            change(lines);
            for line in lines {
                let fields = line.split_once(",\"prev\":").expect("a hash").0.split_once(',').expect("fields").1;
                let covered = format!("{{\"seq\":{at},{fields},\"prev\":\"{hash}\"");
                hash = toolbus_audit::sha256_hex(covered.as_bytes());
                *line = format!("{covered},\"hash\":\"{hash}\"}}");
                at += 1;
            }
            (seq, prev) = (Some(at), Some(hash));
        });
        last = path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    }
    let (seq, hash, file) = (seq.expect("a line") - 1, prev.expect("a hash"), last.expect("a file"));
    let head = format!("{{\"seq\":{seq:>20},\"hash\":\"{hash}\",\"file\":\"{file}\"}}\n");
    fs::write(folder.join("head.json"), head).expect("written");
}

pub fn checked(folder: &Path) -> Report {
    verify(folder, &VerifyOptions::default()).expect("readable")
}

/// The result with the expectation that a line has this hash.
pub fn expecting(folder: &Path, hash: &str) -> Report {
    let options = VerifyOptions { expect: Some(hash.to_owned()), ..VerifyOptions::default() };
    verify(folder, &options).expect("readable")
}

/// The first problem, as text.
pub fn problem(folder: &Path) -> String {
    checked(folder).problem.map(|problem| problem.to_string()).expect("a problem")
}

pub fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect();
    files.sort();
    files
}

pub fn edit(file: &Path, change: impl FnOnce(&mut Vec<String>)) {
    let mut lines: Vec<String> = fs::read_to_string(file).expect("text").lines().map(str::to_owned).collect();
    change(&mut lines);
    fs::write(file, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).expect("written");
}
