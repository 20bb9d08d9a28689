//! How long a worker is without a result after a blow: from a kill or a cut to its next successful answer.

use std::{
    collections::BTreeMap,
    sync::Mutex,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Blow {
    KillBroker,
    KillHost,
    KillWorker,
    CutHost,
    CutWorker,
}

impl Blow {
    pub const ALL: [Blow; 5] = [Blow::KillBroker, Blow::KillHost, Blow::KillWorker, Blow::CutHost, Blow::CutWorker];

    pub fn name(self) -> &'static str {
        match self {
            Blow::KillBroker => "broker killed",
            Blow::KillHost => "host killed",
            Blow::KillWorker => "worker killed",
            Blow::CutHost => "host's link cut",
            Blow::CutWorker => "worker's link cut",
        }
    }
}

pub struct Recoveries {
    workers: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Vec<(usize, Blow, Instant)>,
    took: BTreeMap<Blow, Vec<Duration>>,
    blows: BTreeMap<Blow, u64>,
    /// What happened when, for whoever looks for a cause in the logs.
    story: Vec<String>,
}

impl Recoveries {
    pub fn new(workers: usize) -> Self {
        Self { workers, state: Mutex::default() }
    }

    /// A blow against one worker, or against something that all need.
    pub fn hit(&self, blow: Blow, worker: Option<usize>) {
        let mut state = self.state.lock().expect("no panic");
        *state.blows.entry(blow).or_default() += 1;
        let whose = worker.map_or(String::new(), |worker| format!(" {worker}"));
        state.story.push(format!("{} {}{whose}", time_of_day(), blow.name()));
        let hit = worker.map_or(0..self.workers, |worker| worker..worker + 1);
        state.open.extend(hit.map(|worker| (worker, blow, Instant::now())));
    }

    pub fn tell(&self, what: &str) {
        self.state.lock().expect("no panic").story.push(format!("{} {what}", time_of_day()));
    }

    pub fn story(&self) -> String {
        self.state.lock().expect("no panic").story.join("\n")
    }

    /// A worker got a result.
    pub fn succeeded(&self, worker: usize) {
        let mut state = self.state.lock().expect("no panic");
        let State { open, took, .. } = &mut *state;
        open.retain(|(hit, blow, at)| {
            if *hit == worker {
                took.entry(*blow).or_default().push(at.elapsed());
            }
            *hit != worker
        });
    }

    pub fn blows(&self, blow: Blow) -> u64 {
        self.state.lock().expect("no panic").blows.get(&blow).copied().unwrap_or_default()
    }

    /// Median and 99th percentile, in milliseconds; of one kind of blow or of all.
    pub fn times(&self, blow: Option<Blow>) -> Option<Times> {
        let state = self.state.lock().expect("no panic");
        let chosen = state.took.iter().filter(|(kind, _)| blow.is_none_or(|blow| blow == **kind));
        let mut times: Vec<Duration> = chosen.flat_map(|(_, times)| times.iter().copied()).collect();
        times.sort();
        let at = |part: f64| {
            let place = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
            times.get(place).map(|time| time.as_secs_f64() * 1e3)
        };
        Some(Times { p50_ms: at(0.5)?, p99_ms: at(0.99)?, max_ms: at(1.0)? })
    }
}

/// In UTC, as the logs have it.
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
    fn a_blow_to_all_is_over_for_each_worker_by_itself() {
        let recoveries = Recoveries::new(2);
        recoveries.hit(Blow::KillHost, None);
        recoveries.hit(Blow::CutWorker, Some(1));
        recoveries.succeeded(1);
        recoveries.succeeded(1);
        assert_eq!(recoveries.state.lock().unwrap().took[&Blow::KillHost].len(), 1);
        assert_eq!(recoveries.state.lock().unwrap().took[&Blow::CutWorker].len(), 1);
        recoveries.succeeded(0);
        assert_eq!(recoveries.state.lock().unwrap().took[&Blow::KillHost].len(), 2);
        assert!(recoveries.times(Some(Blow::CutHost)).is_none());
    }
}
