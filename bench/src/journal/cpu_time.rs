//! CPU time of the whole machine, over all processes.

use std::time::Duration;

use anyhow::Context;

/// Length of a tick in `/proc/stat`, which Linux reports in units of 1/100 s.
const TICK_MS: u64 = 10;

/// Busy time since boot, without idle, iowait and steal time.
pub fn of_machine() -> anyhow::Result<Duration> {
    let text = std::fs::read_to_string("/proc/stat").context("read /proc/stat")?;
    parse_busy(&text).context("parse /proc/stat")
}

/// `cpu user nice system idle iowait irq softirq steal …`
fn parse_busy(text: &str) -> Option<Duration> {
    let mut ticks = text.lines().next()?.split_ascii_whitespace();
    (ticks.next()? == "cpu").then_some(())?;
    let ticks: Vec<u64> = ticks.map_while(|ticks| ticks.parse().ok()).collect();
    let busy = [0, 1, 2, 5, 6].into_iter().map(|at| ticks.get(at).copied()).sum::<Option<u64>>()?;
    Some(Duration::from_millis(busy.checked_mul(TICK_MS)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_iowait_and_steal_time_do_not_count() {
        let text = "cpu  100 20 3 7777 888 40 5 6666 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(parse_busy(text), Some(Duration::from_millis(1680)));
        assert_eq!(parse_busy("intr 5"), None);
    }
}
