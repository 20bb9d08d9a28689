//! What the disk takes for the least that a journal can do: one small append and an fdatasync.

use std::{
    fs::OpenOptions,
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;

/// About as long as an entry.
const ENTRY: usize = 256;

#[derive(Clone, Copy)]
pub struct SyncTime {
    pub p50_us: f64,
    pub p99_us: f64,
}

pub fn measure(folder: &Path, window: Duration) -> anyhow::Result<SyncTime> {
    let path = folder.join("sync");
    let mut file = OpenOptions::new().append(true).create(true).open(&path).context("open a file")?;
    let mut times = Vec::new();
    let end = Instant::now() + window;
    while Instant::now() < end {
        let start = Instant::now();
        file.write_all(&[7; ENTRY]).context("write")?;
        file.sync_data().context("sync")?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    std::fs::remove_file(path).ok();
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() as f64 * part) as usize).min(times.len() - 1)];
    Ok(SyncTime { p50_us: at(0.5), p99_us: at(0.99) })
}
