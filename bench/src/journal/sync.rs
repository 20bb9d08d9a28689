//! Sync times: of one small append with fdatasync, the minimum for any journal, and of an append through the journal
//! and its sync thread, until the waiting caller continues.

use std::{
    fs::OpenOptions,
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use toolbus_journal::{CallKey, Journal, JournalOptions, Start, Wait};

/// About the size of a journal record.
const RECORD_BYTES: usize = 256;

#[derive(Clone, Copy)]
pub struct SyncTime {
    pub p50_us: f64,
    pub p99_us: f64,
}

impl SyncTime {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[((times.len() as f64 * part) as usize).min(times.len() - 1)];
        Self { p50_us: at(0.5), p99_us: at(0.99) }
    }
}

pub fn bare(folder: &Path, window: Duration) -> anyhow::Result<SyncTime> {
    let path = folder.join("sync");
    let mut file = OpenOptions::new().append(true).create(true).open(&path).context("open a file")?;
    let mut times = Vec::new();
    let end = Instant::now() + window;
    while Instant::now() < end || times.is_empty() {
        let start = Instant::now();
        file.write_all(&[7; RECORD_BYTES]).context("write")?;
        file.sync_data().context("sync")?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    std::fs::remove_file(path).ok();
    Ok(SyncTime::of(times))
}

/// Appends one record at a time and waits for its sync.
pub async fn through_journal(folder: &Path, window: Duration) -> anyhow::Result<SyncTime> {
    let path = folder.join("group");
    let journal = Journal::open(&path, JournalOptions::default()).context("open a journal")?;
    let mut times = Vec::new();
    let end = Instant::now() + window;
    while Instant::now() < end || times.is_empty() {
        let id = format!("00000000-0000-0000-0000-{:012}", times.len());
        let key = CallKey { caller: "bench#sync".into(), id: id.into() };
        let (server, tool) = ("echo".into(), "echo".into());
        let record = Start { key, server, tool, content: [7; 32], attempt: 1, at: 0, safe: false };
        let start = Instant::now();
        journal.start(record, Wait::Synced).await.context("write a record")?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    drop(journal);
    std::fs::remove_dir_all(path).ok();
    Ok(SyncTime::of(times))
}
