//! Recovery times: from a fault (a kill or a cut) to the next result of each affected worker.

use std::{
    collections::BTreeMap,
    sync::Mutex,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde::Serialize;

pub struct Recoveries {
    workers: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Vec<(usize, &'static str, Instant)>,
    times: BTreeMap<&'static str, Vec<Duration>>,
    faults: BTreeMap<&'static str, u64>,
    /// When the call of each worker's latest result was sent.
    latest: BTreeMap<usize, Instant>,
    /// All events with their times, to be compared with the logs.
    timeline: Vec<String>,
}

impl Recoveries {
    pub fn new(workers: usize) -> Self {
        Self { workers, state: Mutex::default() }
    }

    /// Records a fault that affects this worker, or all workers.
    pub fn record_fault(&self, fault: &'static str, worker: Option<usize>) {
        let mut state = self.state.lock().expect("no panic");
        *state.faults.entry(fault).or_default() += 1;
        let suffix = worker.map_or(String::new(), |worker| format!(" {worker}"));
        state.timeline.push(format!("{} {}{suffix}", time_of_day(), fault));
        let affected = worker.map_or(0..self.workers, |worker| worker..worker + 1);
        state.open.extend(affected.map(|worker| (worker, fault, Instant::now())));
    }

    pub fn log_event(&self, event: &str) {
        self.state.lock().expect("no panic").timeline.push(format!("{} {event}", time_of_day()));
    }

    pub fn timeline(&self) -> String {
        self.state.lock().expect("no panic").timeline.join("\n")
    }

    /// A worker got the result of a call that was sent at that time.
    pub fn succeeded(&self, worker: usize, sent: Instant) {
        let mut state = self.state.lock().expect("no panic");
        let State { open, times, latest, .. } = &mut *state;
        let newest = latest.entry(worker).or_insert(sent);
        *newest = sent.max(*newest);
        open.retain(|(affected, fault, at)| {
            if *affected == worker {
                times.entry(*fault).or_default().push(at.elapsed());
            }
            *affected != worker
        });
    }

    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.state.lock().expect("no panic").faults.clone()
    }

    /// Whether every worker got the result of a call that was sent after this time.
    pub fn all_succeeded_since(&self, time: Instant) -> bool {
        let state = self.state.lock().expect("no panic");
        (0..self.workers).all(|worker| state.latest.get(&worker).is_some_and(|sent| *sent > time))
    }

    /// Recovery times after one kind of fault, or after all.
    pub fn times(&self, fault: Option<&str>) -> Option<Times> {
        let state = self.state.lock().expect("no panic");
        let chosen = state.times.iter().filter(|(kind, _)| fault.is_none_or(|fault| fault == **kind));
        Times::of(chosen.flat_map(|(_, times)| times.iter().copied()).collect())
    }
}

/// The time in UTC, as in the logs.
fn time_of_day() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = now.as_secs() % 86_400;
    format!("{:02}:{:02}:{:02}.{:03}", seconds / 3600, seconds / 60 % 60, seconds % 60, now.subsec_millis())
}

/// Quantiles of a number of times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

impl Times {
    /// Returns `None` if there are no times.
    pub fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort();
        let at = |part: f64| {
            let index = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
            times.get(index).map(|time| time.as_secs_f64() * 1e3)
        };
        Some(Times { p50_ms: at(0.5)?, p99_ms: at(0.99)?, max_ms: at(1.0)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_all_workers_ends_for_each_worker_separately() {
        let (recoveries, before) = (Recoveries::new(2), Instant::now());
        recoveries.record_fault("host killed", None);
        recoveries.record_fault("link cut", Some(1));
        let sent = Instant::now();
        recoveries.succeeded(1, sent);
        recoveries.succeeded(1, sent);
        assert_eq!(recoveries.state.lock().unwrap().times["host killed"].len(), 1);
        assert_eq!(recoveries.state.lock().unwrap().times["link cut"].len(), 1);
        assert!(!recoveries.all_succeeded_since(before));
        recoveries.succeeded(0, sent);
        assert_eq!(recoveries.state.lock().unwrap().times["host killed"].len(), 2);
        assert!(recoveries.times(Some("host's link cut")).is_none());
        assert!(recoveries.all_succeeded_since(before) && !recoveries.all_succeeded_since(sent));
    }
}
