//! The report: faults, answers to callers, effects of the tools and recovery times, with one column per system.

use super::{recovery::Times, verdict::Verdict};

const LABEL: usize = 46;
const COLUMN: usize = 16;

pub fn render(verdicts: &[Verdict], faults: &[&str]) -> String {
    let mut table = Table { verdicts, text: String::new() };
    table.row("", |verdict| verdict.system.to_owned());
    table.row("seconds", |verdict| format!("{:.0}", verdict.seconds));
    for fault in faults {
        table.number(fault, |verdict| verdict.faults.get(fault).copied().unwrap_or_default());
    }
    table.section("answers to callers");
    table.number("calls", |verdict| verdict.calls);
    table.number("repeated after their worker died", |verdict| verdict.repeated);
    table.number("joined to an earlier call", |verdict| verdict.joined);
    table.number("result", |verdict| verdict.results);
    table.number("error", |verdict| verdict.errors);
    table.row("outcome unknown", |verdict| {
        let rate = verdict.unknown as f64 / verdict.calls.max(1) as f64 * 100.0;
        format!("{} ({rate:.2} %)", verdict.unknown)
    });
    table.number("no answer (lost)", |verdict| verdict.lost);
    table.number("more than one answer", |verdict| verdict.answered_twice);
    table.number("answer to another call", |verdict| verdict.wrong);
    table.section("effects of the tool (not replay-safe)");
    table.number("ids with more than one effect", |verdict| verdict.ids_with_two_effects);
    table.number("maximum effects of one id", |verdict| u64::from(verdict.most_effects));
    table.number("result without an effect", |verdict| verdict.results_without_effect);
    table.number("error that denies the effect", |verdict| verdict.denied_effects);
    table.number("outcome unknown, with an effect", |verdict| verdict.unknown_with_effect);
    table.section("replay-safe tool");
    table.number("calls", |verdict| verdict.safe_calls);
    table.number("ids with more than one effect (allowed)", |verdict| verdict.safe_ids_with_two_effects);
    table.number("outcome unknown", |verdict| verdict.safe_unknown);
    table.section("time from fault to next result (p50 / p99, ms)");
    let times = |times: Option<&Times>| {
        times.map_or("–".to_owned(), |times| format!("{:.0} / {:.0}", times.p50_ms, times.p99_ms))
    };
    for fault in faults {
        table.row(fault, |verdict| times(verdict.recovery.get(fault)));
    }
    table.row("all", |verdict| times(verdict.recovery_all.as_ref()));
    table.details();
    table.text
}

struct Table<'a> {
    verdicts: &'a [Verdict],
    text: String,
}

impl Table<'_> {
    fn row(&mut self, label: &str, cell: impl Fn(&Verdict) -> String) {
        let cells: String = self.verdicts.iter().map(|verdict| format!("{:>COLUMN$}", cell(verdict))).collect();
        self.text.push_str(&format!("{label:LABEL$}{cells}\n"));
    }

    fn number(&mut self, label: &str, cell: impl Fn(&Verdict) -> u64) {
        self.row(label, |verdict| cell(verdict).to_string());
    }

    fn section(&mut self, title: &str) {
        self.text.push_str(&format!("\n{title}\n"));
    }

    fn details(&mut self) {
        for verdict in self.verdicts {
            let list = |counts: Vec<String>| if counts.is_empty() { "none".to_owned() } else { counts.join("; ") };
            let codes = verdict.error_codes.iter().map(|(code, count)| format!("{count} × {code}")).collect();
            let notes = verdict.notes.iter().map(|(note, count)| format!("{count} {note}")).collect();
            self.text.push_str(&format!("\n{}: errors by code: {}", verdict.system, list(codes)));
            self.text.push_str(&format!("\n{}: other events: {}\n", verdict.system, list(notes)));
        }
    }
}
