//! Recovery times: from a fault (a kill or a cut) to the next result of each affected worker.

use std::{
    collections::BTreeMap,
    sync::Mutex,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    KillBroker,
    KillHost,
    KillWorker,
    StopBroker,
    StopHost,
    StopWorker,
    PauseBroker,
    PauseHost,
    CutHost,
    CutWorker,
}

impl Fault {
    pub const ALL: [Fault; 10] = [
        Fault::KillBroker,
        Fault::KillHost,
        Fault::KillWorker,
        Fault::StopBroker,
        Fault::StopHost,
        Fault::StopWorker,
        Fault::PauseBroker,
        Fault::PauseHost,
        Fault::CutHost,
        Fault::CutWorker,
    ];
    /// Faults that `--terms` counts.
    pub const STOPS: [Fault; 5] =
        [Fault::StopBroker, Fault::StopHost, Fault::StopWorker, Fault::PauseBroker, Fault::PauseHost];

    pub fn name(self) -> &'static str {
        match self {
            Fault::KillBroker => "broker killed",
            Fault::KillHost => "host killed",
            Fault::KillWorker => "worker killed",
            Fault::StopBroker => "broker stopped (SIGTERM)",
            Fault::StopHost => "host stopped (SIGTERM)",
            Fault::StopWorker => "worker stopped (SIGTERM)",
            Fault::PauseBroker => "broker paused (SIGSTOP)",
            Fault::PauseHost => "host paused (SIGSTOP)",
            Fault::CutHost => "host's link cut",
            Fault::CutWorker => "worker's link cut",
        }
    }
}

pub struct Recoveries {
    workers: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Vec<(usize, Fault, Instant)>,
    times: BTreeMap<Fault, Vec<Duration>>,
    faults: BTreeMap<Fault, u64>,
    /// All events with their times, to be compared with the logs.
    timeline: Vec<String>,
}

impl Recoveries {
    pub fn new(workers: usize) -> Self {
        Self { workers, state: Mutex::default() }
    }

    /// Records a fault that affects this worker, or all workers.
    pub fn record_fault(&self, fault: Fault, worker: Option<usize>) {
        let mut state = self.state.lock().expect("no panic");
        *state.faults.entry(fault).or_default() += 1;
        let suffix = worker.map_or(String::new(), |worker| format!(" {worker}"));
        state.timeline.push(format!("{} {}{suffix}", time_of_day(), fault.name()));
        let affected = worker.map_or(0..self.workers, |worker| worker..worker + 1);
        state.open.extend(affected.map(|worker| (worker, fault, Instant::now())));
    }

    pub fn log_event(&self, event: &str) {
        self.state.lock().expect("no panic").timeline.push(format!("{} {event}", time_of_day()));
    }

    pub fn timeline(&self) -> String {
        self.state.lock().expect("no panic").timeline.join("\n")
    }

    /// A worker got a result.
    pub fn succeeded(&self, worker: usize) {
        let mut state = self.state.lock().expect("no panic");
        let State { open, times, .. } = &mut *state;
        open.retain(|(affected, fault, at)| {
            if *affected == worker {
                times.entry(*fault).or_default().push(at.elapsed());
            }
            *affected != worker
        });
    }

    pub fn count(&self, fault: Fault) -> u64 {
        self.state.lock().expect("no panic").faults.get(&fault).copied().unwrap_or_default()
    }

    /// Recovery times after one kind of fault, or after all.
    pub fn times(&self, fault: Option<Fault>) -> Option<Times> {
        let state = self.state.lock().expect("no panic");
        let chosen = state.times.iter().filter(|(kind, _)| fault.is_none_or(|fault| fault == **kind));
        let mut times: Vec<Duration> = chosen.flat_map(|(_, times)| times.iter().copied()).collect();
        times.sort();
        let at = |part: f64| {
            let index = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
            times.get(index).map(|time| time.as_secs_f64() * 1e3)
        };
        Some(Times { p50_ms: at(0.5)?, p99_ms: at(0.99)?, max_ms: at(1.0)? })
    }
}

/// The time in UTC, as in the logs.
fn time_of_day() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = now.as_secs() % 86_400;
    format!("{:02}:{:02}:{:02}.{:03}", seconds / 3600, seconds / 60 % 60, seconds % 60, now.subsec_millis())
}

#[derive(Clone, Copy, Serialize)]
pub struct Times {
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_all_workers_ends_for_each_worker_separately() {
        let recoveries = Recoveries::new(2);
        recoveries.record_fault(Fault::KillHost, None);
        recoveries.record_fault(Fault::CutWorker, Some(1));
        recoveries.succeeded(1);
        recoveries.succeeded(1);
        assert_eq!(recoveries.state.lock().unwrap().times[&Fault::KillHost].len(), 1);
        assert_eq!(recoveries.state.lock().unwrap().times[&Fault::CutWorker].len(), 1);
        recoveries.succeeded(0);
        assert_eq!(recoveries.state.lock().unwrap().times[&Fault::KillHost].len(), 2);
        assert!(recoveries.times(Some(Fault::CutHost)).is_none());
    }
}
