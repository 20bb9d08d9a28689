//! The report: what was done, what callers were told, what the tools did, and how long it took to recover; one column for
//! each system.

use super::{recovery::Blow, verdict::Verdict};

const LABEL: usize = 46;
const COLUMN: usize = 16;

pub fn render(verdicts: &[Verdict]) -> String {
    let mut table = Table { verdicts, text: String::new() };
    table.row("", |verdict| verdict.system.to_owned());
    table.row("seconds", |verdict| format!("{:.0}", verdict.seconds));
    for blow in Blow::ALL {
        table.number(blow.name(), |verdict| verdict.blows.get(blow.name()).copied().unwrap_or_default());
    }
    table.gap("what callers were told");
    table.number("calls", |verdict| verdict.calls);
    table.number("made again after their worker died", |verdict| verdict.repeated);
    table.number("joined to an earlier one", |verdict| verdict.joined);
    table.number("result", |verdict| verdict.results);
    table.number("error", |verdict| verdict.errors);
    table.row("outcome unknown", |verdict| {
        let rate = verdict.unknown as f64 / verdict.calls.max(1) as f64 * 100.0;
        format!("{} ({rate:.2} %)", verdict.unknown)
    });
    table.number("no answer (lost)", |verdict| verdict.lost);
    table.number("more than one answer", |verdict| verdict.answered_twice);
    table.number("somebody else's answer", |verdict| verdict.wrong);
    table.gap("what the tool did (not replay-safe)");
    table.number("ids with more than one effect", |verdict| verdict.ids_with_two_effects);
    table.number("most effects of one id", |verdict| u64::from(verdict.most_effects));
    table.number("result, but no effect", |verdict| verdict.results_without_effect);
    table.number("error that denies its effect", |verdict| verdict.denied_effects);
    table.number("outcome unknown, and it had its effect", |verdict| verdict.unknown_with_effect);
    table.gap("replay-safe tool");
    table.number("calls", |verdict| verdict.safe_calls);
    table.number("ids with more than one effect (allowed)", |verdict| verdict.safe_ids_with_two_effects);
    table.number("outcome unknown", |verdict| verdict.safe_unknown);
    table.gap("until the next result of a worker (p50 / p99, ms)");
    let times = |times: Option<&super::recovery::Times>| {
        times.map_or("–".to_owned(), |times| format!("{:.0} / {:.0}", times.p50_ms, times.p99_ms))
    };
    for blow in Blow::ALL {
        table.row(blow.name(), |verdict| times(verdict.recovery.get(blow.name())));
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

    fn gap(&mut self, title: &str) {
        self.text.push_str(&format!("\n{title}\n"));
    }

    fn details(&mut self) {
        for verdict in self.verdicts {
            let list = |counts: Vec<String>| if counts.is_empty() { "none".to_owned() } else { counts.join("; ") };
            let codes = verdict.error_codes.iter().map(|(code, count)| format!("{count} × {code}")).collect();
            let notes = verdict.notes.iter().map(|(note, count)| format!("{count} {note}")).collect();
            self.text.push_str(&format!("\n{}: errors by code: {}", verdict.system, list(codes)));
            self.text.push_str(&format!("\n{}: besides: {}\n", verdict.system, list(notes)));
        }
    }
}
