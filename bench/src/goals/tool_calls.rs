//! The goals for tool calls, and the verdicts of `bench mcp` on them. They compare figures of the same run only.

use super::{Verdict, times};
use crate::mcp::{Era, Path, Results};

/// Maximum latency that `/mcp` of `toolbus up` adds to the median of the direct call of a replay-safe tool.
const HTTP_ADDED_US: f64 = 150.0;
/// Maximum latency that `toolbus connect` → broker → host adds to it, beyond the bus's own median of a lone call.
const CONNECT_ADDED_US: f64 = 100.0;
/// Maximum number of bare syncs that a call of a tool that is not replay-safe takes longer.
const SYNCS: f64 = 1.0;
/// Minimum rate as a multiple of the fastest other proxy.
const OVER_PROXIES: f64 = 5.0;
/// Minimum rate as a fraction of relays that do nothing, with as many processes and hops.
const OVER_RELAY: f64 = 0.25;
/// Maximum time from the start of a new client to its first answer.
const FIRST_US: f64 = 20_000.0;
/// Maximum loss of the rate through the journal; `bench journal` measures it.
pub const JOURNAL_RATE_LOSS: f64 = 0.15;

pub fn judge(results: &Results) -> Vec<Verdict> {
    [Era::Modern, Era::Legacy].into_iter().flat_map(|era| judge_era(results, era)).collect()
}

fn judge_era(results: &Results, era: Era) -> Vec<Verdict> {
    let p50 = |path| Some(results.of(path, era)?.p50_us);
    let rate = |path| Some(results.of(path, era)?.rate);
    let added = |path| Some(p50(path)? - p50(Path::Direct)?);
    let subject = |path: Path| format!("{}, {}", path.name(), era.name());
    let mut verdicts = vec![
        at_most(subject(Path::ToolbusHttpSafe), "added p50", added(Path::ToolbusHttpSafe), Some(HTTP_ADDED_US)),
        at_most(
            subject(Path::ToolbusSafe),
            "added p50, the bus's p50 + 100 µs",
            added(Path::ToolbusSafe),
            results.bus_p50_us().map(|bus| bus + CONNECT_ADDED_US),
        ),
    ];
    for (path, safe) in [(Path::Toolbus, Path::ToolbusSafe), (Path::ToolbusHttp, Path::ToolbusHttpSafe)] {
        let syncs = || Some((p50(path)? - p50(safe)?) / results.sync_p50_us()?);
        verdicts.push(Verdict::new(
            subject(path),
            format!("p50 ≤ {} + {SYNCS} × append and fdatasync", safe.name()),
            syncs().map(|syncs| (syncs, syncs <= SYNCS)),
            times,
        ));
        let over = |rival: Option<f64>| Some(rate(path)? / rival?);
        verdicts.push(at_least(subject(path), "best proxy", over(results.best_proxy()), OVER_PROXIES));
        // Only this path has as many processes and hops as the relays.
        if path == Path::Toolbus {
            verdicts.push(at_least(subject(path), Path::Relay.name(), over(rate(Path::Relay)), OVER_RELAY));
        }
        let first = results.of(path, era).map(|sample| sample.first_us);
        verdicts.push(at_most(subject(path), "first call of a new client", first, Some(FIRST_US)));
    }
    verdicts
}

fn at_most(subject: String, figure: &str, measured: Option<f64>, limit: Option<f64>) -> Verdict {
    let (limit_text, measured) = match limit {
        Some(limit) => (format!("{limit:.0} µs"), measured.map(|value| (value, value <= limit))),
        None => ("?".to_owned(), None),
    };
    Verdict::new(subject, format!("{figure} ≤ {limit_text}"), measured, |value| format!("{value:.0} µs"))
}

fn at_least(subject: String, rival: &str, measured: Option<f64>, limit: f64) -> Verdict {
    let goal = format!("rate ≥ {limit} × {rival}");
    Verdict::new(subject, goal, measured.map(|value| (value, value >= limit)), times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::Sample;

    fn sample(p50_us: f64, rate: f64) -> Sample {
        Sample { p50_us, p99_us: 2.0 * p50_us, rate, first_us: 10_000.0 }
    }

    #[test]
    fn tool_calls_are_judged_against_the_bus_the_disk_and_the_relay_of_the_same_run() {
        let mut results = Results::default();
        results.bus_us.push(200.0);
        results.sync_us.push(150.0);
        let samples = [
            (Path::Direct, sample(50.0, 20_000.0)),
            (Path::Relay, sample(120.0, 10_000.0)),
            (Path::Toolbus, sample(490.0, 2_600.0)),
            (Path::ToolbusSafe, sample(350.0, 3_000.0)),
            (Path::ToolbusHttp, sample(380.0, 2_000.0)),
            (Path::ToolbusHttpSafe, sample(199.0, 3_000.0)),
            (Path::Supergateway, sample(400.0, 500.0)),
        ];
        for (path, sample) in samples {
            results.add(path, Era::Modern, sample);
        }
        let verdicts = judge(&results);
        let outcome = |subject: &str, goal: &str| {
            let found = verdicts.iter().find(|v| v.shape == subject && v.goal.contains(goal));
            found.unwrap_or_else(|| panic!("no goal {goal:?} for {subject:?}")).reached
        };
        assert_eq!(outcome("toolbus-http-safe, modern", "added p50"), Some(true));
        assert_eq!(outcome("toolbus-safe, modern", "≤ 300 µs"), Some(true));
        assert_eq!(outcome("toolbus, modern", "fdatasync"), Some(true));
        assert_eq!(outcome("toolbus-http, modern", "fdatasync"), Some(false));
        assert_eq!(outcome("toolbus, modern", "best proxy"), Some(true));
        assert_eq!(outcome("toolbus-http, modern", "best proxy"), Some(false));
        assert_eq!(outcome("toolbus, modern", "bare-relay"), Some(true));
        assert_eq!(outcome("toolbus, legacy", "bare-relay"), None);
    }
}
