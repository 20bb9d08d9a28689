//! A log in a temporary folder, and a shipper with short intervals.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use toolbus_audit::{AuditLog, AuditOptions, Caller, Record, last_seq};
use toolbus_base::Backoff;
use toolbus_ship::{ShipOptions, ShipState, Shipper, Target};

/// A log with small files.
pub struct TestLog {
    pub folder: TempDir,
    pub log: AuditLog,
}

impl TestLog {
    pub fn open(max_files: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { log: open(folder.path(), max_files), folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub async fn write(&self, count: u64) {
        write(&self.log, count).await;
    }

    pub fn ship(&self, target: &Target) -> Shipper {
        ship(self.path(), target)
    }

    /// Waits until the target has all lines, and returns them as they are in the log.
    pub fn shipped(&self) -> Vec<String> {
        until("all lines are shipped", || {
            let state = ShipState::read(self.path())?;
            (state.cursor.seq == last_seq(self.path()) && state.outage.is_none()).then(|| lines(self.path()))
        })
    }
}

pub fn open(folder: &Path, max_files: usize) -> AuditLog {
    AuditLog::open(folder, AuditOptions { max_file_bytes: 1500, max_files, ..AuditOptions::default() }).expect("a log")
}

pub async fn write(log: &AuditLog, count: u64) {
    for n in 0..count {
        let caller = Caller { who: format!("w{n}"), role: None };
        log.write(Record::Connection { caller, state: "accepted", code: None }).await.expect("written");
    }
}

pub fn ship(folder: &Path, target: &Target) -> Shipper {
    let short = Duration::from_millis(5);
    let options = ShipOptions { poll: short, backoff: Backoff::new(short, short) };
    Shipper::start(folder, "host one", target, options).expect("a thread")
}

/// All lines of the log.
pub fn lines(folder: &Path) -> Vec<String> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "jsonl"));
    files.sort();
    files.iter().flat_map(|file| read_lines(file)).collect()
}

pub fn read_lines(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Polls until there is a value.
#[track_caller]
pub fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < limit, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
