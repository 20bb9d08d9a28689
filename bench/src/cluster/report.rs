//! The report: answers and effects as in `chaos`, and what each kind of blow cost.

use super::{plan::KINDS, run::ClusterVerdict, timing::Cost};
use crate::faults::{recovery::Times, table};

const LABEL: usize = 34;
const COLUMN: usize = 25;
const HEAD: [&str; 5] = ["blows", "worker waits", "longest wait", "calls in flight", "calls/s"];

pub fn render(verdict: &ClusterVerdict) -> String {
    let mut text = table::render(std::slice::from_ref(&verdict.calls), &KINDS);
    let messages = &verdict.messages;
    text.push_str(&format!(
        "\nmessages: {} with a receipt, {} arrived again, {} lost; longest time to a receipt {:.0} ms\n",
        messages.receipts, messages.repeated, messages.lost, messages.longest_receipt_ms
    ));
    text.push_str("\nfrom each blow until calls of all workers succeed again (p50 / p99 / longest, ms)\n");
    text.push_str(&row("", &HEAD.map(str::to_owned)));
    for cost in &verdict.costs.kinds {
        let Cost { kind, blows, worker, all, calls, rate } = cost;
        text.push_str(&row(kind, &[blows.to_string(), times(worker), times(all), times(calls), format!("{rate:.0}")]));
    }
    let costs = &verdict.costs;
    let calm = ["–".to_owned(), "–".to_owned(), "–".to_owned(), times(&costs.calm), format!("{:.0}", costs.calm_rate)];
    text.push_str(&row("no blow", &calm));
    text.push_str(&format!("longest call: {:.0} ms\n", costs.longest_call_ms));
    text
}

fn row(label: &str, cells: &[String; 5]) -> String {
    let cells: String = cells.iter().map(|cell| format!("{cell:>COLUMN$}")).collect();
    format!("{label:LABEL$}{}\n", &cells[COLUMN - 6..])
}

fn times(times: &Option<Times>) -> String {
    times.map_or("–".to_owned(), |times| format!("{:.0} / {:.0} / {:.0}", times.p50_ms, times.p99_ms, times.max_ms))
}
