//! The circuit breaker of a server. After several failures within a window, calls are refused for a pause; then one
//! call probes the server.

use crate::event::Millis;
use std::collections::VecDeque;
use std::time::Duration;

/// When a circuit breaker opens, and for how long, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TripSettings {
    /// Number of failures that open it.
    pub after: usize,
    /// The window in which they count.
    pub window: Millis,
    /// How long it stays open before a call probes the server.
    pub pause: Millis,
}

impl Default for TripSettings {
    fn default() -> Self {
        Self { after: 5, window: 60_000, pause: 30_000 }
    }
}

/// The transition that the end of a call caused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerChange {
    /// The breaker opened: calls are refused.
    Opened,
    /// The breaker closed.
    Closed,
}

#[derive(Debug)]
pub(crate) struct CircuitBreaker {
    settings: TripSettings,
    /// The latest failures, at most as many as open the breaker.
    failures: VecDeque<Millis>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    /// Calls are refused until then.
    Open(Millis),
    /// A probe has been running since then. Other calls are refused until it ends or the pause has passed again,
    /// because a probe may be a long call.
    Probing(Millis),
}

/// A call that may reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    Allowed,
    /// As the call that shows whether the server has recovered.
    Probe,
}

/// What the end of a call says about its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    /// The server answered, with a result or an error.
    Answered,
    /// The server died or could not be started.
    Failed,
    /// The call ended before either was known.
    Unclear,
}

impl CircuitBreaker {
    pub fn new(settings: TripSettings) -> Self {
        Self { settings, failures: VecDeque::new(), state: State::Closed }
    }

    /// Returns the time until the next attempt if the call is refused.
    pub fn enter(&mut self, now: Millis) -> Result<Entry, Duration> {
        match self.state {
            State::Closed => Ok(Entry::Allowed),
            State::Open(until) => self.probe_after(until, now),
            State::Probing(since) => self.probe_after(since + self.settings.pause, now),
        }
    }

    fn probe_after(&mut self, until: Millis, now: Millis) -> Result<Entry, Duration> {
        if now < until {
            return Err(Duration::from_millis(until - now));
        }
        self.state = State::Probing(now);
        Ok(Entry::Probe)
    }

    pub fn end(&mut self, entry: Entry, health: Health, now: Millis) -> Option<BreakerChange> {
        // Another probe has already closed the breaker.
        let entry = if entry == Entry::Probe && self.state == State::Closed { Entry::Allowed } else { entry };
        match (entry, health) {
            (Entry::Probe, Health::Answered) => {
                self.state = State::Closed;
                self.failures.clear();
                Some(BreakerChange::Closed)
            }
            (Entry::Probe, Health::Failed) => {
                self.state = State::Open(now + self.settings.pause);
                None
            }
            // The next call becomes the probe.
            (Entry::Probe, Health::Unclear) => {
                self.state = State::Open(now);
                None
            }
            (Entry::Allowed, Health::Failed) => self.count(now),
            (Entry::Allowed, Health::Answered | Health::Unclear) => None,
        }
    }

    fn count(&mut self, now: Millis) -> Option<BreakerChange> {
        self.failures.push_back(now);
        let is_old = |failure: &Millis| now.saturating_sub(*failure) > self.settings.window;
        while self.failures.front().is_some_and(is_old) || self.failures.len() > self.settings.after {
            self.failures.pop_front();
        }
        // Calls that started before the breaker opened may still fail.
        if self.state != State::Closed || self.failures.len() < self.settings.after {
            return None;
        }
        self.state = State::Open(now + self.settings.pause);
        self.failures.clear();
        Some(BreakerChange::Opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: TripSettings = TripSettings { after: 3, window: 60_000, pause: 30_000 };

    /// A breaker that has just opened.
    fn opened(now: Millis) -> CircuitBreaker {
        let mut breaker = CircuitBreaker::new(SETTINGS);
        let changes = [(); 3].map(|()| breaker.end(Entry::Allowed, Health::Failed, now));
        assert_eq!(changes, [None, None, Some(BreakerChange::Opened)]);
        breaker
    }

    #[test]
    fn occasional_failures_do_not_open_the_breaker() {
        let mut breaker = CircuitBreaker::new(SETTINGS);
        for minute in 0..100 {
            let now = 31_000 * minute;
            assert_eq!(breaker.enter(now), Ok(Entry::Allowed));
            assert_eq!(breaker.end(Entry::Allowed, Health::Failed, now), None, "two failures within the window");
        }
    }

    #[test]
    fn after_the_pause_one_call_probes_the_server() {
        let mut breaker = opened(0);
        assert_eq!(breaker.enter(10_000), Err(Duration::from_secs(20)));
        assert_eq!(breaker.enter(30_000), Ok(Entry::Probe));
        assert!(breaker.enter(31_000).is_err(), "one at a time");
        assert_eq!(breaker.end(Entry::Probe, Health::Answered, 32_000), Some(BreakerChange::Closed));
        assert_eq!(breaker.enter(32_000), Ok(Entry::Allowed));
        assert_eq!(breaker.end(Entry::Allowed, Health::Failed, 32_000), None, "failures are counted anew");
    }

    #[test]
    fn a_failed_probe_starts_another_pause_and_an_unclear_one_does_not() {
        let mut breaker = opened(0);
        assert_eq!(breaker.enter(30_000), Ok(Entry::Probe));
        breaker.end(Entry::Probe, Health::Failed, 31_000);
        assert_eq!(breaker.enter(60_000), Err(Duration::from_secs(1)));
        assert_eq!(breaker.enter(61_000), Ok(Entry::Probe));
        breaker.end(Entry::Probe, Health::Unclear, 61_500);
        assert_eq!(breaker.enter(61_500), Ok(Entry::Probe));
    }

    #[test]
    fn a_long_probe_does_not_block_other_probes() {
        let mut breaker = opened(0);
        assert_eq!(breaker.enter(30_000), Ok(Entry::Probe));
        assert_eq!(breaker.enter(50_000), Err(Duration::from_secs(10)));
        assert_eq!(breaker.enter(60_000), Ok(Entry::Probe));
        assert_eq!(breaker.end(Entry::Probe, Health::Answered, 61_000), Some(BreakerChange::Closed));
        // The late probe has no more effect than any other call.
        assert_eq!(breaker.end(Entry::Probe, Health::Failed, 500_000), None);
        assert_eq!(breaker.end(Entry::Probe, Health::Answered, 500_000), None);
        assert_eq!(breaker.enter(500_000), Ok(Entry::Allowed));
    }

    #[test]
    fn calls_that_started_before_the_breaker_opened_change_nothing() {
        let mut breaker = opened(0);
        assert_eq!(breaker.end(Entry::Allowed, Health::Failed, 0), None);
        assert_eq!(breaker.end(Entry::Allowed, Health::Answered, 0), None);
        assert_eq!(breaker.enter(0), Err(Duration::from_secs(30)));
    }
}
