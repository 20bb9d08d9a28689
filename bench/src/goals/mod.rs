//! The performance goals, and the verdict of a run on each of them: of the bus here, of tool calls in `tool_calls`, of a cluster in `cluster`. A goal
//! compares only contenders of the same run; a goal without measurements has no verdict.

pub mod cluster;
pub mod tool_calls;

use serde::Serialize;

use crate::{
    contenders::Contender,
    results::Results,
    shape::{CROWD_LARGE, CROWD_SMALL, DRAIN_FEW, DRAIN_MANY, LONE_SMALL, PIPELINED_LARGE, PIPELINED_SMALL, Shape},
};

/// A requirement on our broker in one shape.
pub struct Goal {
    pub shape: Shape,
    pub requirement: Requirement,
}

pub enum Requirement {
    /// Our rate is at least this multiple of the contender's.
    RateOver(Contender, f64),
    /// Our median latency is no higher than the contender's.
    MedianNoHigherThan(Contender),
    /// Our rate is at least this many operations per second.
    RateAtLeast(f64),
    /// Our rate is at least this fraction of our rate in a smaller shape.
    FlatFrom(Shape, f64),
}

#[derive(Serialize)]
pub struct Verdict {
    /// The shape or path that is judged.
    pub shape: String,
    pub goal: String,
    pub measured: Option<f64>,
    pub measured_text: String,
    pub reached: Option<bool>,
}

impl Verdict {
    /// `measured` is the figure and whether it reaches the goal.
    fn new(shape: String, goal: String, measured: Option<(f64, bool)>, text: fn(f64) -> String) -> Self {
        let (measured, reached) = measured.unzip();
        let measured_text = measured.map_or_else(|| "not measured".to_owned(), text);
        Self { shape, goal, measured, measured_text, reached }
    }
}

/// Rate over NATS core, the multi-thread relay, JetStream and the original, by shape.
const RATIOS: [(Shape, [f64; 4]); 5] = [
    (LONE_SMALL, [1.2, 0.9, 2.5, 12.0]),
    (PIPELINED_SMALL, [1.5, 0.6, 5.0, 170.0]),
    (CROWD_SMALL, [1.1, 0.8, 5.0, 80.0]),
    (PIPELINED_LARGE, [1.2, 0.8, 4.0, 70.0]),
    (CROWD_LARGE, [1.2, 0.8, 4.0, 40.0]),
];

const RIVALS: [Contender; 4] =
    [Contender::NatsCore, Contender::RelayMultiThread, Contender::JetStream, Contender::Bamboo];

/// Minimum drain rate in messages per second, for any number of pending messages.
const DRAIN_RATE: f64 = 50_000.0;
/// Minimum drain rate of a large mailbox, as a fraction of the rate of a small one.
const FLAT: f64 = 0.8;

pub fn goals() -> Vec<Goal> {
    let mut goals = Vec::new();
    for (shape, ratios) in RATIOS {
        let over = |(rival, ratio)| Goal { shape, requirement: Requirement::RateOver(rival, ratio) };
        goals.extend(RIVALS.into_iter().zip(ratios).map(over));
    }
    let others = [
        (LONE_SMALL, Requirement::MedianNoHigherThan(Contender::NatsCore)),
        (Shape::OneWay, Requirement::RateOver(Contender::JetStream, 1.0)),
        (Shape::OneWay, Requirement::RateOver(Contender::JetStreamAlways, 50.0)),
        (DRAIN_FEW, Requirement::RateAtLeast(DRAIN_RATE)),
        (DRAIN_MANY, Requirement::RateAtLeast(DRAIN_RATE)),
        (DRAIN_MANY, Requirement::FlatFrom(DRAIN_FEW, FLAT)),
    ];
    goals.extend(others.into_iter().map(|(shape, requirement)| Goal { shape, requirement }));
    goals
}

/// Returns the verdicts on all goals whose shape was part of the run.
pub fn judge(results: &Results) -> Vec<Verdict> {
    let shapes = results.shapes();
    goals().iter().filter(|goal| shapes.contains(&goal.shape)).map(|goal| goal.judge(results)).collect()
}

impl Goal {
    fn judge(&self, results: &Results) -> Verdict {
        let shape = self.shape;
        let rate = |contender, shape| Some(results.summary(contender, shape)?.rate);
        let median = |contender| results.summary(contender, shape)?.p50_us;
        let ours = rate(Contender::Toolbus, shape);
        let divide = |a: Option<f64>, b: Option<f64>| Some(a? / b?);
        let (goal, measured, limit, text): (_, _, _, fn(f64) -> String) = match self.requirement {
            Requirement::RateOver(rival, limit) => {
                let ratio = divide(ours, rate(rival, shape));
                (format!("rate ≥ {limit} × {rival}"), ratio, limit, times)
            }
            Requirement::MedianNoHigherThan(rival) => {
                let ratio = divide(median(rival), median(Contender::Toolbus));
                let goal = format!("p50 ≤ {rival} (rival's p50 ÷ ours ≥ 1)");
                (goal, ratio, 1.0, times)
            }
            Requirement::RateAtLeast(limit) => {
                (format!("rate ≥ {limit}/s"), ours, limit, |rate| format!("{rate:.0}/s"))
            }
            Requirement::FlatFrom(base, limit) => {
                let ratio = divide(ours, rate(Contender::Toolbus, base));
                (format!("rate ≥ {limit} × {base}"), ratio, limit, times)
            }
        };
        Verdict::new(shape.to_string(), goal, measured.map(|value| (value, value >= limit)), text)
    }
}

fn times(ratio: f64) -> String {
    format!("{ratio:.2} ×")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::Sample;

    fn sample(rate: u64, p50_us: f64) -> Sample {
        Sample { p50_us: Some(p50_us), ..Sample::of_total(rate, Duration::from_secs(1)) }
    }

    #[test]
    fn a_verdict_compares_medians_of_the_same_run() {
        let mut results = Results::default();
        for rate in [1_000, 3_600, 9_000] {
            results.add(Contender::Toolbus, LONE_SMALL, sample(rate, 150.0));
        }
        results.add(Contender::NatsCore, LONE_SMALL, sample(2_000, 300.0));
        let verdicts = judge(&results);
        let of = |text: &str| verdicts.iter().find(|v| v.goal.contains(text)).unwrap();
        assert_eq!(of("1.2 × nats-core").measured, Some(1.8));
        assert_eq!(of("1.2 × nats-core").reached, Some(true));
        assert_eq!(of("p50 ≤ nats-core").reached, Some(true));
        assert_eq!(of("jetstream").reached, None);
    }
}
