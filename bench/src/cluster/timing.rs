//! What the blows cost the callers, computed after the run from the times of all calls and blows.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::faults::{recovery::Times, tally::Record};

/// An answered call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub worker: usize,
    pub sent: Instant,
    pub answered: Instant,
}

/// When a blow fell, and when calls of all workers succeeded again. Between that and the next blow it is calm.
#[derive(Clone, Copy, Debug)]
pub struct BlowTimes {
    pub kind: &'static str,
    pub at: Instant,
    pub recovered: Instant,
}

/// The cost of one kind of blow.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    pub kind: &'static str,
    pub blows: usize,
    /// The longest time for which a call of a worker waited after a blow, over the workers and blows.
    pub worker: Option<Times>,
    /// The longest time for which any call waited after a blow, over the blows.
    pub all: Option<Times>,
    /// Durations of the calls that were in flight at some time between a blow and the recovery.
    pub calls: Option<Times>,
    pub rate: f64,
}

/// The costs of all kinds, and calls in the calm.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Costs {
    pub kinds: Vec<Cost>,
    pub calm: Option<Times>,
    pub calm_rate: f64,
    pub longest_call_ms: f64,
}

pub fn calls(records: &[(usize, Vec<Record>)]) -> Vec<Call> {
    let of =
        |worker: usize, record: &Record| Some(Call { worker, sent: record.first_sent?, answered: record.answered? });
    let mut calls: Vec<Call> =
        records.iter().flat_map(|(worker, records)| records.iter().filter_map(|record| of(*worker, record))).collect();
    calls.sort_by_key(|call| call.answered);
    calls
}

/// `calls` are sorted by the time of their answers, `blows` by their time.
pub fn costs(calls: &[Call], blows: &[BlowTimes], kinds: &[&'static str], end: Instant) -> Costs {
    let longest = calls.iter().map(|call| call.answered - call.sent).max().unwrap_or_default();
    let next = |index: usize| blows.get(index + 1).map_or(end, |next| next.at);
    let calm: Vec<(Instant, Instant)> =
        blows.iter().enumerate().map(|(index, blow)| (blow.recovered, next(index))).collect();
    let in_calm = |call: &&Call| calm.iter().any(|(from, to)| call.sent >= *from && call.answered < *to);
    let calm_calls: Vec<Duration> = calls.iter().filter(in_calm).map(|call| call.answered - call.sent).collect();
    let cost = |kind: &&'static str| {
        let of_kind: Vec<&BlowTimes> = blows.iter().filter(|blow| blow.kind == *kind).collect();
        (!of_kind.is_empty()).then(|| cost(kind, calls, &of_kind))
    };
    Costs {
        kinds: kinds.iter().filter_map(cost).collect(),
        calm_rate: rate(calm_calls.len(), calm.iter().map(|(from, to)| *to - *from).sum()),
        calm: Times::of(calm_calls),
        longest_call_ms: longest.as_secs_f64() * 1e3,
    }
}

fn cost(kind: &'static str, calls: &[Call], blows: &[&BlowTimes]) -> Cost {
    let (mut worker, mut all, mut durations, mut answered) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for blow in blows {
        let mut waits: HashMap<usize, Duration> = HashMap::new();
        let first = calls.partition_point(|call| call.answered < blow.at);
        for call in calls[first..].iter().filter(|call| call.sent < blow.recovered) {
            durations.push(call.answered - call.sent);
            answered += usize::from(call.answered < blow.recovered);
            let wait = waits.entry(call.worker).or_default();
            *wait = (*wait).max(call.answered - call.sent.max(blow.at));
        }
        all.extend(waits.values().max());
        worker.extend(waits.values());
    }
    let time = blows.iter().map(|blow| blow.recovered - blow.at).sum();
    Cost {
        kind,
        blows: blows.len(),
        worker: Times::of(worker),
        all: Times::of(all),
        calls: Times::of(durations),
        rate: rate(answered, time),
    }
}

fn rate(calls: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { calls as f64 / time.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_a_blow_is_how_long_its_callers_waited() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let call = |worker, sent, answered| Call { worker, sent: at(sent), answered: at(answered) };
        // Worker 0 has a call in flight when the blow falls, worker 1 sends one soon after it.
        let mut calls = [
            call(0, 100, 110),
            call(0, 900, 1_500),
            call(0, 1_510, 1_520),
            call(1, 1_100, 3_100),
            call(0, 4_100, 4_130),
        ];
        calls.sort_by_key(|call| call.answered);
        let blow = BlowTimes { kind: "kill", at: at(1_000), recovered: at(4_000) };
        let costs = costs(&calls, &[blow], &["cut", "kill"], at(5_000));
        let [kill] = &costs.kinds[..] else { panic!("{costs:?}") };
        assert_eq!((kill.kind, kill.blows, kill.rate), ("kill", 1, 1.0));
        assert_eq!(kill.worker, Some(Times { p50_ms: 2_000.0, p99_ms: 2_000.0, max_ms: 2_000.0 }));
        assert_eq!(kill.all.map(|times| times.max_ms), Some(2_000.0));
        assert_eq!(kill.calls.map(|times| times.max_ms), Some(2_000.0));
        assert_eq!(costs.calm, Some(Times { p50_ms: 30.0, p99_ms: 30.0, max_ms: 30.0 }));
        assert_eq!((costs.calm_rate, costs.longest_call_ms), (1.0, 2_000.0));
    }
}
