//! The delay before a host reconnects: doubles with each attempt, and starts over after a connection that lasted.

use std::time::Duration;

const FIRST_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(30);
/// A connection that lasted this long resets the delay.
const STABLE_RUN: Duration = Duration::from_secs(10);

pub struct ReconnectBackoff {
    next_delay: Duration,
}

impl Default for ReconnectBackoff {
    fn default() -> Self {
        Self { next_delay: FIRST_DELAY }
    }
}

impl ReconnectBackoff {
    /// The delay after a connection that lasted for `run`.
    pub fn delay_after(&mut self, run: Duration) -> Duration {
        if run >= STABLE_RUN {
            self.next_delay = FIRST_DELAY;
        }
        let delay = self.next_delay;
        self.next_delay = (delay * 2).min(MAX_DELAY);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_up_to_the_maximum_and_resets_after_a_stable_run() {
        let mut backoff = ReconnectBackoff::default();
        let mut after = |run_ms| backoff.delay_after(Duration::from_millis(run_ms)).as_millis();
        let delays: Vec<_> = (0..8).map(|_| after(9_999)).collect();
        assert_eq!(delays, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
        assert_eq!([after(10_000), after(0)], [500, 1_000]);
    }
}
