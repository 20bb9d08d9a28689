//! How long the processors of this machine were at work, whoever they worked for.

use std::time::Duration;

use anyhow::Context;

/// In hundredths of a second, as Linux counts for everybody.
const TICK_MS: u64 = 10;

/// Since it was started. Waiting counts for nothing, nor does what a hypervisor gave to others.
pub fn of_machine() -> anyhow::Result<Duration> {
    let text = std::fs::read_to_string("/proc/stat").context("read /proc/stat")?;
    busy_in(&text).context("/proc/stat is not as it always was")
}

/// `cpu user nice system idle iowait irq softirq steal …`
fn busy_in(text: &str) -> Option<Duration> {
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
    fn idle_time_and_stolen_time_do_not_count() {
        let text = "cpu  100 20 3 7777 888 40 5 6666 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(busy_in(text), Some(Duration::from_millis(1680)));
        assert_eq!(busy_in("intr 5"), None);
    }
}
