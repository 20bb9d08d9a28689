//! The goals of a cluster of brokers: ratios to one embedded broker and to bare JetStream at equal replication.

use super::Verdict;
use crate::{
    contenders::Contender::{
        self, ClusterOfOne, ClusterOfThree, JetStreamReplicated, JetStreamReplicatedAlways, Toolbus,
    },
    results::Results,
    shape::{CROWD_SMALL, LONE_SMALL, PIPELINED_SMALL, Shape},
};

pub const CONTENDERS: [Contender; 5] =
    [Toolbus, ClusterOfOne, ClusterOfThree, JetStreamReplicatedAlways, JetStreamReplicated];
pub const SHAPES: [Shape; 4] = [LONE_SMALL, PIPELINED_SMALL, CROWD_SMALL, Shape::OneWay];

/// Minimum rates as multiples of the other contender's, by shape; `None` if there is no goal.
const RATIOS: [(Contender, Contender, [Option<f64>; 4]); 5] = [
    (ClusterOfOne, Toolbus, [Some(0.6), Some(0.8), Some(0.8), Some(0.45)]),
    (ClusterOfThree, Toolbus, [Some(0.4), Some(0.4), Some(0.4), None]),
    (ClusterOfThree, ClusterOfOne, [None, None, None, None]),
    (ClusterOfThree, JetStreamReplicatedAlways, [Some(20.0), Some(20.0), None, None]),
    (ClusterOfThree, JetStreamReplicated, [Some(10.0), Some(10.0), None, None]),
];

/// Returns the ratios in all shapes that were part of the run.
pub fn judge(results: &Results) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for (ours, other, goals) in RATIOS {
        for (shape, goal) in SHAPES.into_iter().zip(goals).filter(|(shape, _)| results.shapes().contains(shape)) {
            let rate = |contender| Some(results.summary(contender, shape)?.rate);
            let ratio = rate(ours).zip(rate(other)).map(|(ours, other)| ours / other);
            let text = match goal {
                Some(goal) => format!("{ours} ≥ {goal} × {other}"),
                None => format!("{ours} ÷ {other}"),
            };
            let measured = ratio.map(|ratio| (ratio, goal.is_none_or(|goal| ratio >= goal)));
            verdicts.push(Verdict::new(shape.to_string(), text, measured, super::times));
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::Sample;

    #[test]
    fn a_ratio_below_its_goal_is_missed() {
        let mut results = Results::default();
        for (contender, rate) in [(Toolbus, 1_000), (ClusterOfOne, 599), (ClusterOfThree, 400)] {
            results.add(contender, LONE_SMALL, Sample::of_total(rate, Duration::from_secs(1)));
        }
        let reached: Vec<_> = judge(&results).iter().map(|verdict| verdict.reached).collect();
        assert_eq!(reached, [Some(false), Some(true), Some(true), None, None]);
    }
}
