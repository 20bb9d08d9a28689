//! Detects load by other processes. A measurement on a busy machine is still taken, but the report says so.

use std::{fs, time::Duration};

/// The machine counts as busy above this CPU utilisation.
const BUSY: f64 = 0.15;
const INTERVAL: Duration = Duration::from_millis(100);

/// Waits until the machine is idle, at most for `timeout`. Returns whether it is.
pub async fn wait(timeout: Duration) -> bool {
    let intervals = 1 + timeout.as_millis() / INTERVAL.as_millis();
    for _ in 0..intervals {
        let before = Ticks::now();
        tokio::time::sleep(INTERVAL).await;
        match (before, Ticks::now()) {
            (Some(before), Some(after)) if after.busy_since(&before) > BUSY => {}
            _ => return true,
        }
    }
    false
}

/// CPU time since boot in ticks of `/proc/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl Ticks {
    fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line has user, nice, system, idle, iowait, irq, softirq and steal.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let fields: Vec<u64> = line.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
        let idle = fields.get(3)? + fields.get(4)?;
        Some(Self { idle, all: fields.iter().sum() })
    }

    fn busy_since(&self, before: &Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        1.0 - self.idle.saturating_sub(before.idle) as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_iowait_do_not_count_as_busy() {
        let before = Ticks::parse("cpu  10 0 10 100 20 0 0 0 0 0\ncpu0 …").unwrap();
        assert_eq!(before, Ticks { idle: 120, all: 140 });
        let after = Ticks { idle: 195, all: 240 };
        assert_eq!(after.busy_since(&before), 0.25);
    }
}
