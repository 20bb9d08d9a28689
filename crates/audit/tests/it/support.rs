//! Fixtures: records, and a log in a temporary folder.

use std::fs;
use std::path::{Path, PathBuf};
use toolbus_audit::{AuditLog, AuditOptions, Caller, Record, Report, Subject, verify};

pub const SMALL: AuditOptions = AuditOptions { max_file_bytes: 1500, max_files: 100, max_queued: 64 };

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

pub fn checked(folder: &Path) -> Report {
    verify(folder, None).expect("readable")
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
