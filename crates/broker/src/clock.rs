//! The engine's clock: wall-clock time at startup, advanced by a monotonic clock.

use std::time::{Duration, Instant};
use toolbus_base::now_ms;
use toolbus_engine::Millis;

#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
    wall_at_start: Millis,
}

impl Clock {
    pub fn start() -> Self {
        Self { started: Instant::now(), wall_at_start: now_ms() }
    }

    pub fn now(&self) -> Millis {
        self.wall_at_start + self.started.elapsed().as_millis() as Millis
    }

    /// Time left until `at`; zero if it has passed.
    pub fn until(&self, at: Millis) -> Duration {
        let offset = Duration::from_millis(at.saturating_sub(self.wall_at_start));
        offset.saturating_sub(self.started.elapsed())
    }
}
