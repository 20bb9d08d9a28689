//! Limits the log lines about peers that are not authenticated: they can cause any number of refusals.

use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of lines per [`PERIOD`], of all peers together.
const MAX_LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct RefusalLog(Mutex<State>);

#[derive(Default)]
struct State {
    period_began: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

impl RefusalLog {
    /// Writes a line unless the limit is reached. `write` gets the number of lines that were suppressed since the last
    /// one, if there were any.
    pub fn line(&self, write: impl FnOnce(Option<u64>)) {
        if let Some(suppressed) = self.admit(Instant::now()) {
            write(Some(suppressed).filter(|count| *count > 0));
        }
    }

    /// Returns the number of lines that were suppressed before this one, or `None` if this one is suppressed too.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().expect("no code panics while holding the lock");
        if state.period_began.is_none_or(|began| now.saturating_duration_since(began) >= PERIOD) {
            (state.period_began, state.lines) = (Some(now), 0);
        }
        if state.lines == MAX_LINES {
            state.suppressed += 1;
            return None;
        }
        state.lines += 1;
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_over_the_limit_of_a_period_are_counted_and_reported_by_the_next_line() {
        let (log, start) = (RefusalLog::default(), Instant::now());
        let admitted = |millis, count| {
            let now = start + Duration::from_millis(millis);
            (0..count).filter_map(|_| log.admit(now)).collect::<Vec<u64>>()
        };
        assert_eq!(admitted(0, 4), [0; 4]);
        assert_eq!(admitted(5_000, 100), [0; 6], "10 lines in the first period");
        assert!(admitted(9_999, 100).is_empty());
        assert_eq!(admitted(10_000, 3), [194, 0, 0]);
        assert_eq!(admitted(19_999, 8), [0; 7]);
        assert_eq!(admitted(1_000_000, 1), [1]);
    }

    #[test]
    fn the_count_is_passed_on_only_if_lines_were_suppressed() {
        let log = RefusalLog::default();
        let mut lines = Vec::new();
        (0..MAX_LINES + 2).for_each(|_| log.line(|suppressed| lines.push(suppressed)));
        assert_eq!(lines, [None; MAX_LINES as usize]);
    }
}
