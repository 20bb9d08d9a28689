//! How long to wait before a host's connection is made again: longer each time, until one held.

use std::time::Duration;

const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// A run of this length counts as good.
const GOOD_RUN: Duration = Duration::from_secs(10);

pub struct Restarts {
    next_wait: Duration,
}

impl Default for Restarts {
    fn default() -> Self {
        Self { next_wait: FIRST_WAIT }
    }
}

impl Restarts {
    /// The wait after a run of that length.
    pub fn wait_after(&mut self, run: Duration) -> Duration {
        if run >= GOOD_RUN {
            self.next_wait = FIRST_WAIT;
        }
        let wait = self.next_wait;
        self.next_wait = (wait * 2).min(LONGEST_WAIT);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_start_over_after_a_good_run() {
        let mut restarts = Restarts::default();
        let mut after = |run_ms| restarts.wait_after(Duration::from_millis(run_ms)).as_millis();
        let waits: Vec<_> = (0..8).map(|_| after(9_999)).collect();
        assert_eq!(waits, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
        assert_eq!([after(10_000), after(0)], [500, 1_000]);
    }
}
