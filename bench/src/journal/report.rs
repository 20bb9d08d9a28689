//! The table and the goals: at most 15 % of the rate lost, at most one sync added to a call that is not replay-safe,
//! and none to one that is.

use super::{JournalOptions, Mode, Sample, Syncs, sync::SyncTime};
use crate::{goals::tool_calls::JOURNAL_RATE_LOSS, results};

/// Maximum added latency of a call that is not replay-safe, in syncs of the disk.
const NEVER_SYNCS: f64 = 1.0;
/// Maximum added latency of a replay-safe call: far less than a sync, for the noise of the measurement.
const SAFE_SYNCS: f64 = 0.25;

pub fn render(measured: &[(Mode, Vec<Sample>)], syncs: &Syncs, options: &JournalOptions) -> (String, bool) {
    let mut text = String::new();
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    let sync = median(syncs.bare.iter().map(|sync| sync.p50_us));
    let none = of(measured, Mode::None);
    let rate_title = format!("calls/s, {} in flight", options.in_flight);
    line(format!(
        "{:30} {:>10} {:>10} {:>12} {:>10} {:>24} {:>8} {:>12}",
        "", "p50 alone", "p99 alone", "added (p50)", "in syncs", rate_title, "loss", "CPU per call"
    ));
    let mut goals = Vec::new();
    for (mode, _) in measured {
        let sample = of(measured, *mode);
        let added = sample.p50_us - none.p50_us;
        let loss = 1.0 - sample.rate / none.rate;
        line(format!(
            "{:30} {:>10} {:>10} {:>12} {:>10} {:>24.0} {:>8} {:>12}",
            mode.description(),
            format!("{:.0} µs", sample.p50_us),
            format!("{:.0} µs", sample.p99_us),
            if *mode == Mode::None { "–".to_owned() } else { format!("{added:.0} µs") },
            if *mode == Mode::None { "–".to_owned() } else { format!("{:.2}", added / sync) },
            sample.rate,
            if *mode == Mode::None { "–".to_owned() } else { format!("{:.1} %", loss * 100.0) },
            format!("{:.0} µs", sample.cpu_us),
        ));
        let most = match mode {
            Mode::None => continue,
            Mode::Safe => SAFE_SYNCS,
            Mode::Never => NEVER_SYNCS,
        };
        let name = mode.description();
        let text = format!("{name}: {:.1} % of the rate lost (at most {:.0})", loss * 100.0, JOURNAL_RATE_LOSS * 100.0);
        goals.push((text, loss <= JOURNAL_RATE_LOSS));
        let text = format!("{name}: {:.2} syncs added to a call alone (at most {most})", added / sync);
        goals.push((text, added <= most * sync));
    }
    let mut sync_line = |label: &str, times: &[SyncTime]| {
        let (p50, p99) = (median(times.iter().map(|it| it.p50_us)), median(times.iter().map(|it| it.p99_us)));
        line(format!("{label:30} {:>10} {:>10}", format!("{p50:.0} µs"), format!("{p99:.0} µs")));
    };
    sync_line("a sync through the journal", &syncs.journal);
    sync_line("bare append and fdatasync", &syncs.bare);
    line(String::new());
    if options.short {
        goals.clear();
    }
    for (goal, reached) in &goals {
        line(format!("{goal}: {}", if *reached { "reached" } else { "MISSED" }));
    }
    line(format!(
        "medians of {} rounds of {} s; client → toolbus connect → broker → host → tool",
        options.rounds(),
        options.seconds()
    ));
    line(
        "a call that is not replay-safe waits for the sync of START; RESULT is written before the reply, synced later"
            .to_owned(),
    );
    (text, goals.iter().all(|(_, reached)| *reached))
}

fn of(measured: &[(Mode, Vec<Sample>)], mode: Mode) -> Sample {
    let samples = measured.iter().filter(|(one, _)| *one == mode).flat_map(|(_, samples)| samples);
    let value = |value: fn(&Sample) -> f64| median(samples.clone().map(value));
    Sample {
        p50_us: value(|sample| sample.p50_us),
        p99_us: value(|sample| sample.p99_us),
        rate: value(|sample| sample.rate),
        cpu_us: value(|sample| sample.cpu_us),
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    results::median(values).unwrap_or(f64::NAN)
}
