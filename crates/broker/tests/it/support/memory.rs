//! How much memory this process holds: the broker and its peers, and where tests share a process, those beside.

use std::fs;
use tokio::sync::{Mutex, MutexGuard};

pub const MIB: usize = 1 << 20;

static SCALES: Mutex<()> = Mutex::const_new(());

/// Keeps tests apart that measure memory or use much of it.
pub async fn alone() -> MutexGuard<'static, ()> {
    SCALES.lock().await
}

pub fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells a process about itself");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("the resident size is told");
    let kib: usize = line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number of KiB");
    kib << 10
}
