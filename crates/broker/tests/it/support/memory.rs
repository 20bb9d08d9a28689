//! Resident memory of this process: the broker, its peers, and other tests in the same process.

use std::fs;
use tokio::sync::{Mutex, MutexGuard};

pub const MIB: usize = 1 << 20;

static MEMORY_TESTS: Mutex<()> = Mutex::const_new(());

/// Serialises tests that measure memory or use much of it.
pub async fn exclusive() -> MutexGuard<'static, ()> {
    MEMORY_TESTS.lock().await
}

pub fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is readable");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a VmRSS line");
    let kib: usize = line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number of KiB");
    kib << 10
}
