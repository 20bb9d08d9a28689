//! How much memory this process holds: the broker, its peers, and the tests that run beside.

use std::fs;

pub const MIB: usize = 1 << 20;

pub fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells a process about itself");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("the resident size is told");
    let kib: usize = line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number of KiB");
    kib << 10
}
