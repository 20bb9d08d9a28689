//! The results of a run: samples, failures, skipped contenders, and medians.

use crate::{contenders::Contender, load::Sample, shape::Shape};

#[derive(Default)]
pub struct Results {
    samples: Vec<(Contender, Shape, Sample)>,
    /// Measurements taken while the machine was busy with other processes.
    pub disturbed: u32,
    pub failures: Vec<Failure>,
    pub skipped: Vec<(Contender, String)>,
}

/// A failed measurement.
pub struct Failure {
    pub contender: Contender,
    pub shape: Shape,
    pub round: u32,
    pub reason: String,
}

/// Medians over the rounds of one contender in one shape.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    pub rate: f64,
    pub slowest: f64,
    pub fastest: f64,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
}

impl Results {
    pub fn add(&mut self, contender: Contender, shape: Shape, sample: Sample) {
        self.samples.push((contender, shape, sample));
    }

    /// Number of measurements, failed ones included.
    pub fn attempts(&self) -> usize {
        self.samples.len() + self.failures.len()
    }

    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    pub fn samples(&self, contender: Contender, shape: Shape) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |(c, s, _)| (*c, *s) == (contender, shape)).map(|(_, _, sample)| sample)
    }

    pub fn summary(&self, contender: Contender, shape: Shape) -> Option<Summary> {
        let all = || self.samples(contender, shape);
        Some(Summary {
            rate: median(all().map(|sample| sample.rate))?,
            slowest: all().map(|sample| sample.rate).reduce(f64::min)?,
            fastest: all().map(|sample| sample.rate).reduce(f64::max)?,
            p50_us: median(all().filter_map(|sample| sample.p50_us)),
            p99_us: median(all().filter_map(|sample| sample.p99_us)),
        })
    }

    /// Contenders with at least one sample, in canonical order.
    pub fn contenders(&self) -> Vec<Contender> {
        let measured = |contender: &Contender| self.samples.iter().any(|(c, ..)| c == contender);
        Contender::ALL.into_iter().filter(measured).collect()
    }

    /// Shapes with at least one sample, in canonical order.
    pub fn shapes(&self) -> Vec<Shape> {
        let measured = |shape: &Shape| self.samples.iter().any(|(_, s, _)| s == shape);
        Shape::ALL.into_iter().filter(measured).collect()
    }
}

pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_is_the_mean_of_the_middle_two() {
        assert_eq!(median([3.0, 1.0, 9.0].into_iter()), Some(3.0));
        assert_eq!(median([4.0, 2.0].into_iter()), Some(3.0));
        assert_eq!(median([].into_iter()), None);
    }
}
