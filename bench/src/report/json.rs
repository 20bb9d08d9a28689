//! The run as JSON: every sample, the medians, the verdicts, and failed or skipped measurements.

use serde::Serialize;

use super::RunFacts;
use crate::{goals::Verdict, load::Sample, results::Results};

pub fn render(results: &Results, verdicts: &[Verdict], run: &RunFacts) -> anyhow::Result<String> {
    let mut measurements = Vec::new();
    for contender in results.contenders() {
        for shape in results.shapes() {
            let Some(summary) = results.summary(contender, shape) else {
                continue;
            };
            measurements.push(Measurement {
                contender: contender.name(),
                shape: shape.key(),
                unit: shape.unit(),
                rate: summary.rate,
                p50_us: summary.p50_us,
                p99_us: summary.p99_us,
                samples: results.samples(contender, shape).collect(),
            });
        }
    }
    let skipped = results.skipped.iter();
    let failures = results.failures.iter();
    let document = Document {
        run,
        disturbed: results.disturbed,
        measurements,
        verdicts,
        skipped: skipped
            .map(|(contender, reason)| Missing { contender: contender.name(), shape: None, round: None, reason })
            .collect(),
        failures: failures
            .map(|failure| Missing {
                contender: failure.contender.name(),
                shape: Some(failure.shape.key()),
                round: Some(failure.round),
                reason: &failure.reason,
            })
            .collect(),
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

#[derive(Serialize)]
struct Document<'a> {
    run: &'a RunFacts,
    disturbed: u32,
    measurements: Vec<Measurement<'a>>,
    verdicts: &'a [Verdict],
    skipped: Vec<Missing<'a>>,
    failures: Vec<Missing<'a>>,
}

#[derive(Serialize)]
struct Measurement<'a> {
    contender: &'static str,
    shape: String,
    unit: &'static str,
    rate: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    samples: Vec<&'a Sample>,
}

#[derive(Serialize)]
struct Missing<'a> {
    contender: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    shape: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    round: Option<u32>,
    reason: &'a str,
}
