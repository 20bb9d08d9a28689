//! The report of `bench mcp`: the table, and the goals with their verdicts.

use std::fmt::Write;

use super::{Era, McpOptions, Measured, Sample, paths::Path};

/// Maximum latency added to the median of the direct call in the modern era.
const ADDED_US: f64 = 300.0;
/// Minimum ratio of our rate to that of the fastest other proxy.
const RATE_RATIO: f64 = 3.0;
/// Maximum latency of a new worker's first call when the server is warm.
const FIRST_US: f64 = 50_000.0;

pub fn render(measured: &[Measured], skipped: &[(Path, String)], options: &McpOptions) -> (String, bool) {
    let mut text = String::new();
    let mut line = |content: String| writeln!(text, "{content}").expect("writing to a string never fails");
    line(format!(
        "{:16} {:7} {:>10} {:>10} {:>10} {:>12} {:>12}",
        "path",
        "era",
        "p50",
        "added p50",
        "p99",
        format!("calls/s ×{}", options.in_flight),
        "first call"
    ));
    for one in measured {
        let Some(sample) = median(one) else { continue };
        let added = added(measured, one.era, sample).map_or("–".to_owned(), |added| format!("{added:.0} µs"));
        line(format!(
            "{:16} {:7} {:>10} {:>10} {:>10} {:>12.0} {:>12}",
            one.path.name(),
            one.era.name(),
            format!("{:.0} µs", sample.p50_us),
            added,
            format!("{:.0} µs", sample.p99_us),
            sample.rate,
            format!("{:.1} ms", sample.first_us / 1e3),
        ));
    }
    line(String::new());
    let goals = goals(measured);
    for (goal, outcome) in &goals {
        line(format!("{goal}: {}", if *outcome { "reached" } else { "MISSED" }));
    }
    for (path, reason) in skipped {
        line(format!("not measured: {}: {reason}", path.name()));
    }
    for path in Path::ALL {
        line(format!("{:16} {}", path.name(), path.description()));
    }
    line(format!("medians of {} rounds of {} s", options.rounds, options.seconds));
    (text, goals.iter().all(|(_, reached)| *reached))
}

fn goals(measured: &[Measured]) -> Vec<(String, bool)> {
    let mut goals = Vec::new();
    let rivals = measured.iter().filter(|one| !one.path.is_ours() && one.path != Path::Direct);
    let best = rivals.filter_map(|one| Some((median(one)?.rate, one.path))).max_by(|a, b| a.0.total_cmp(&b.0));
    for one in measured.iter().filter(|one| one.path.is_ours() && one.era == Era::Modern) {
        let Some(sample) = median(one) else { continue };
        let name = one.path.name();
        if let Some(added) = added(measured, one.era, sample) {
            goals.push((format!("{name} adds {added:.0} µs to the median (at most {ADDED_US:.0})"), added <= ADDED_US));
        }
        if let Some((rate, path)) = best {
            let ratio = sample.rate / rate;
            let text = format!("{name} does {ratio:.1} × the calls/s of {} (at least {RATE_RATIO})", path.name());
            goals.push((text, ratio >= RATE_RATIO));
        }
        let first = sample.first_us / 1e3;
        goals.push((
            format!("{name}: a new worker's first call takes {first:.1} ms (at most 50)"),
            sample.first_us <= FIRST_US,
        ));
    }
    goals
}

fn added(measured: &[Measured], era: Era, sample: Sample) -> Option<f64> {
    let direct = measured.iter().find(|one| one.path == Path::Direct && one.era == era)?;
    Some(sample.p50_us - median(direct)?.p50_us)
}

fn median(measured: &Measured) -> Option<Sample> {
    let of = |value: fn(&Sample) -> f64| {
        let mut values: Vec<f64> = measured.samples.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    Some(Sample {
        p50_us: of(|sample| sample.p50_us)?,
        p99_us: of(|sample| sample.p99_us)?,
        rate: of(|sample| sample.rate)?,
        first_us: of(|sample| sample.first_us)?,
    })
}
