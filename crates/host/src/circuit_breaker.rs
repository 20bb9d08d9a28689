//! The circuit breaker of a server. After several failures within a window, calls are refused for a pause; then one
//! call probes the server. No I/O and no clock: the time is an argument.

use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_upstream::TripSettings;

#[derive(Debug)]
pub struct CircuitBreaker {
    settings: TripSettings,
    /// The latest failures, at most as many as open the breaker.
    failures: VecDeque<Instant>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    /// Calls are refused until then.
    Open(Instant),
    /// A probe has been running since then. Other calls are refused until it ends or the pause has passed again,
    /// because a probe may be a long call.
    Probing(Instant),
}

/// Whether a call may reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    Allowed,
    /// As the call that shows whether the server has recovered.
    Probe,
    /// With the time until the next attempt.
    Refused(Duration),
}

/// What the end of a call says about its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// The server answered, with a result or an error.
    Answered,
    /// The server died or could not be started.
    Failed,
    /// The call ended before either was known.
    Unclear,
}

/// The transition that the end of a call caused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    None,
    Tripped,
    Recovered,
}

impl CircuitBreaker {
    pub fn new(settings: TripSettings) -> Self {
        Self { settings, failures: VecDeque::new(), state: State::Closed }
    }

    pub fn enter(&mut self, now: Instant) -> Entry {
        match self.state {
            State::Closed => Entry::Allowed,
            State::Open(until) => self.probe_after(until, now),
            State::Probing(since) => self.probe_after(since + self.settings.pause, now),
        }
    }

    fn probe_after(&mut self, until: Instant, now: Instant) -> Entry {
        if now < until {
            return Entry::Refused(until - now);
        }
        self.state = State::Probing(now);
        Entry::Probe
    }

    pub fn end(&mut self, entry: Entry, health: Health, now: Instant) -> Change {
        // Another probe has already closed the breaker.
        let entry = if entry == Entry::Probe && self.state == State::Closed { Entry::Allowed } else { entry };
        match (entry, health) {
            (Entry::Refused(_), _) => Change::None,
            (Entry::Probe, Health::Answered) => self.close(),
            (Entry::Probe, Health::Failed) => {
                self.state = State::Open(now + self.settings.pause);
                Change::None
            }
            // The next call becomes the probe.
            (Entry::Probe, Health::Unclear) => {
                self.state = State::Open(now);
                Change::None
            }
            (Entry::Allowed, Health::Failed) => self.count(now),
            (Entry::Allowed, Health::Answered | Health::Unclear) => Change::None,
        }
    }

    fn close(&mut self) -> Change {
        self.state = State::Closed;
        self.failures.clear();
        Change::Recovered
    }

    fn count(&mut self, now: Instant) -> Change {
        self.failures.push_back(now);
        let is_old = |failure: &Instant| now.saturating_duration_since(*failure) > self.settings.window;
        while self.failures.front().is_some_and(is_old) || self.failures.len() > self.settings.after {
            self.failures.pop_front();
        }
        // Calls that started before the breaker opened may still fail.
        if self.state != State::Closed || self.failures.len() < self.settings.after {
            return Change::None;
        }
        self.state = State::Open(now + self.settings.pause);
        self.failures.clear();
        Change::Tripped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: TripSettings =
        TripSettings { after: 3, window: Duration::from_secs(60), pause: Duration::from_secs(30) };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A breaker that has just opened.
    fn tripped(now: Instant) -> CircuitBreaker {
        let mut breaker = CircuitBreaker::new(SETTINGS);
        let changes = [(); 3].map(|()| breaker.end(Entry::Allowed, Health::Failed, now));
        assert_eq!(changes, [Change::None, Change::None, Change::Tripped]);
        breaker
    }

    #[test]
    fn occasional_failures_do_not_open_the_breaker() {
        let mut breaker = CircuitBreaker::new(SETTINGS);
        let start = Instant::now();
        for minute in 0..100 {
            let now = start + seconds(31 * minute);
            assert_eq!(breaker.enter(now), Entry::Allowed);
            assert_eq!(
                breaker.end(Entry::Allowed, Health::Failed, now),
                Change::None,
                "two failures within the window"
            );
        }
    }

    #[test]
    fn after_the_pause_one_call_probes_the_server() {
        let now = Instant::now();
        let mut breaker = tripped(now);
        assert_eq!(breaker.enter(now + seconds(10)), Entry::Refused(seconds(20)));
        assert_eq!(breaker.enter(now + seconds(30)), Entry::Probe);
        assert!(matches!(breaker.enter(now + seconds(31)), Entry::Refused(_)), "one at a time");
        assert_eq!(breaker.end(Entry::Probe, Health::Answered, now + seconds(32)), Change::Recovered);
        assert_eq!(breaker.enter(now + seconds(32)), Entry::Allowed);
        assert_eq!(
            breaker.end(Entry::Allowed, Health::Failed, now + seconds(32)),
            Change::None,
            "failures are counted anew"
        );
    }

    #[test]
    fn a_failed_probe_starts_another_pause() {
        let now = Instant::now();
        let mut breaker = tripped(now);
        assert_eq!(breaker.enter(now + seconds(30)), Entry::Probe);
        breaker.end(Entry::Probe, Health::Failed, now + seconds(31));
        assert_eq!(breaker.enter(now + seconds(60)), Entry::Refused(seconds(1)));
        assert_eq!(breaker.enter(now + seconds(61)), Entry::Probe);
    }

    #[test]
    fn after_an_unclear_probe_the_next_call_probes() {
        let now = Instant::now();
        let mut breaker = tripped(now);
        assert_eq!(breaker.enter(now + seconds(30)), Entry::Probe);
        breaker.end(Entry::Probe, Health::Unclear, now + seconds(31));
        assert_eq!(breaker.enter(now + seconds(31)), Entry::Probe);
    }

    #[test]
    fn a_long_probe_does_not_block_other_probes() {
        let now = Instant::now();
        let mut breaker = tripped(now);
        assert_eq!(breaker.enter(now + seconds(30)), Entry::Probe);
        assert_eq!(breaker.enter(now + seconds(50)), Entry::Refused(seconds(10)));
        assert_eq!(breaker.enter(now + seconds(60)), Entry::Probe);
        assert_eq!(breaker.end(Entry::Probe, Health::Answered, now + seconds(61)), Change::Recovered);
        // The late probe has no more effect than any other call.
        assert_eq!(breaker.end(Entry::Probe, Health::Failed, now + seconds(500)), Change::None);
        assert_eq!(breaker.end(Entry::Probe, Health::Answered, now + seconds(500)), Change::None);
        assert_eq!(breaker.enter(now + seconds(500)), Entry::Allowed);
    }

    #[test]
    fn calls_that_started_before_the_breaker_opened_change_nothing() {
        let now = Instant::now();
        let mut breaker = tripped(now);
        assert_eq!(breaker.end(Entry::Allowed, Health::Failed, now), Change::None);
        assert_eq!(breaker.end(Entry::Allowed, Health::Answered, now), Change::None);
        assert_eq!(breaker.enter(now), Entry::Refused(seconds(30)));
    }
}
