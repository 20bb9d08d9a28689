//! Keeps calls away from a server that fails again and again: after so many failures in a while it gets none for a pause,
//! then one, by which it shows whether it is well again. Pure: the time comes in with every question.

use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_upstream::TripSettings;

#[derive(Debug)]
pub struct Breaker {
    settings: TripSettings,
    /// The last failures, at most as many as it takes.
    failures: VecDeque<Instant>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    /// No calls until then.
    Open(Instant),
    /// One call is on its way since then; the others wait for what becomes of it, but not for ever: it may be a long one.
    Probing(Instant),
}

/// What becomes of a call that wants to reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    Free,
    /// It shows whether the server is well again.
    Probe,
    /// How long until it is worth trying.
    Refused(Duration),
}

/// How a call ended, as far as the server's health shows in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It answered, whatever it said.
    Answered,
    /// It died, or could not be started.
    Failed,
    /// The call ended before either showed.
    Unclear,
}

/// What changed for everybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    None,
    Tripped,
    Recovered,
}

impl Breaker {
    pub fn new(settings: TripSettings) -> Self {
        Self { settings, failures: VecDeque::new(), state: State::Closed }
    }

    pub fn enter(&mut self, now: Instant) -> Entry {
        match self.state {
            State::Closed => Entry::Free,
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
        // Another probe has shown it already.
        let entry = if entry == Entry::Probe && self.state == State::Closed { Entry::Free } else { entry };
        match (entry, health) {
            (Entry::Refused(_), _) => Change::None,
            (Entry::Probe, Health::Answered) => self.close(),
            (Entry::Probe, Health::Failed) => {
                self.state = State::Open(now + self.settings.pause);
                Change::None
            }
            // The next one shows it.
            (Entry::Probe, Health::Unclear) => {
                self.state = State::Open(now);
                Change::None
            }
            (Entry::Free, Health::Failed) => self.count(now),
            (Entry::Free, Health::Answered | Health::Unclear) => Change::None,
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
        // Calls that were on their way when it tripped may still fail; that is no news.
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

    /// A breaker that tripped just now.
    fn tripped(now: Instant) -> Breaker {
        let mut breaker = Breaker::new(SETTINGS);
        let changes = [(); 3].map(|()| breaker.end(Entry::Free, Health::Failed, now));
        assert_eq!(changes, [Change::None, Change::None, Change::Tripped]);
        breaker
    }

    #[test]
    fn a_server_that_fails_now_and_then_gets_its_calls() {
        let mut breaker = Breaker::new(SETTINGS);
        let start = Instant::now();
        for minute in 0..100 {
            let now = start + seconds(31 * minute);
            assert_eq!(breaker.enter(now), Entry::Free);
            assert_eq!(
                breaker.end(Entry::Free, Health::Failed, now),
                Change::None,
                "two within a minute are not three"
            );
        }
    }

    #[test]
    fn after_the_pause_one_call_shows_how_the_server_is() {
        let now = Instant::now();
        let mut breaker = tripped(now);
        assert_eq!(breaker.enter(now + seconds(10)), Entry::Refused(seconds(20)));
        assert_eq!(breaker.enter(now + seconds(30)), Entry::Probe);
        assert!(matches!(breaker.enter(now + seconds(31)), Entry::Refused(_)), "one at a time");
        assert_eq!(breaker.end(Entry::Probe, Health::Answered, now + seconds(32)), Change::Recovered);
        assert_eq!(breaker.enter(now + seconds(32)), Entry::Free);
        assert_eq!(breaker.end(Entry::Free, Health::Failed, now + seconds(32)), Change::None, "it counts anew");
    }

    #[test]
    fn a_probe_that_fails_begins_another_pause() {
        let now = Instant::now();
        let mut breaker = tripped(now);
        assert_eq!(breaker.enter(now + seconds(30)), Entry::Probe);
        breaker.end(Entry::Probe, Health::Failed, now + seconds(31));
        assert_eq!(breaker.enter(now + seconds(60)), Entry::Refused(seconds(1)));
        assert_eq!(breaker.enter(now + seconds(61)), Entry::Probe);
    }

    #[test]
    fn a_probe_that_shows_nothing_lets_the_next_call_show_it() {
        let now = Instant::now();
        let mut breaker = tripped(now);
        assert_eq!(breaker.enter(now + seconds(30)), Entry::Probe);
        breaker.end(Entry::Probe, Health::Unclear, now + seconds(31));
        assert_eq!(breaker.enter(now + seconds(31)), Entry::Probe);
    }

    #[test]
    fn a_long_probe_does_not_keep_a_healthy_server_from_its_calls() {
        let now = Instant::now();
        let mut breaker = tripped(now);
        assert_eq!(breaker.enter(now + seconds(30)), Entry::Probe);
        assert_eq!(breaker.enter(now + seconds(50)), Entry::Refused(seconds(10)));
        assert_eq!(breaker.enter(now + seconds(60)), Entry::Probe);
        assert_eq!(breaker.end(Entry::Probe, Health::Answered, now + seconds(61)), Change::Recovered);
        // The long one changes no more than any call.
        assert_eq!(breaker.end(Entry::Probe, Health::Failed, now + seconds(500)), Change::None);
        assert_eq!(breaker.end(Entry::Probe, Health::Answered, now + seconds(500)), Change::None);
        assert_eq!(breaker.enter(now + seconds(500)), Entry::Free);
    }

    #[test]
    fn what_was_on_its_way_when_it_tripped_changes_nothing() {
        let now = Instant::now();
        let mut breaker = tripped(now);
        assert_eq!(breaker.end(Entry::Free, Health::Failed, now), Change::None);
        assert_eq!(breaker.end(Entry::Free, Health::Answered, now), Change::None);
        assert_eq!(breaker.enter(now), Entry::Refused(seconds(30)));
    }
}
