//! The report of `bench mcp`: the table, the verdicts, and the reasons for missing figures.

use std::fmt::Write;

use super::{Era, McpOptions, Path, Results};
use crate::goals::Verdict;

pub fn render(results: &Results, verdicts: &[Verdict], options: &McpOptions) -> String {
    let mut text = String::new();
    let mut line = |content: String| writeln!(text, "{content}").expect("writing to a string never fails");
    line(format!(
        "{:18} {:7} {:>10} {:>10} {:>10} {:>12} {:>12}",
        "path",
        "era",
        "p50",
        "added p50",
        "p99",
        format!("calls/s ×{}", options.in_flight),
        "first call"
    ));
    let microseconds = |value: f64| format!("{value:.0} µs");
    for (path, era) in Path::ALL.into_iter().flat_map(|path| [(path, Era::Modern), (path, Era::Legacy)]) {
        let Some(sample) = results.of(path, era) else { continue };
        let direct = results.of(Path::Direct, era);
        line(format!(
            "{:18} {:7} {:>10} {:>10} {:>10} {:>12.0} {:>12}",
            path.name(),
            era.name(),
            microseconds(sample.p50_us),
            direct.map_or("–".to_owned(), |direct| microseconds(sample.p50_us - direct.p50_us)),
            microseconds(sample.p99_us),
            sample.rate,
            format!("{:.1} ms", sample.first_us / 1e3),
        ));
    }
    let alone = [
        ("the bus, 1×1 100 B", results.bus_p50_us()),
        ("append, fdatasync", results.sync_p50_us()),
        ("the same by a thread", results.journal_p50_us()),
    ];
    for (name, p50) in alone {
        line(format!("{name:26} {:>10}", p50.map_or("–".to_owned(), microseconds)));
    }
    line(String::new());
    for verdict in verdicts {
        let outcome = match verdict.reached {
            Some(true) => "reached",
            Some(false) => "MISSED",
            None => "–",
        };
        line(format!("{:26} {:50} {:>12}  {outcome}", verdict.shape, verdict.goal, verdict.measured_text));
    }
    for (path, reason) in &results.skipped {
        line(format!("not measured: {}: {reason}", path.name()));
    }
    for path in options.paths() {
        line(format!("{:18} {}", path.name(), path.description()));
    }
    line(format!("medians of {} × {} s", options.rounds(), options.seconds()));
    text
}
