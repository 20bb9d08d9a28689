//! The tables of a run: rates, latencies, verdicts, and failed or skipped measurements.

use std::fmt::Write;

use super::{
    RunFacts,
    number::{duration, grouped},
};
use crate::{
    contenders::Contender,
    goals::Verdict,
    results::{Results, Summary},
};

pub fn render(results: &Results, verdicts: &[Verdict], run: &RunFacts) -> String {
    let mut text = String::new();
    if !results.is_empty() {
        let rate = |summary: Summary| Some(grouped(summary.rate));
        section(&mut text, "Rates per second", &matrix(results, rate));
        let spread = |summary: Summary| {
            let spread = (summary.fastest - summary.slowest) / summary.rate;
            Some(format!("{:.0} %", spread * 100.0))
        };
        if run.rounds > 1 {
            let title = "Spread of the rate over the rounds";
            section(&mut text, title, &matrix(results, spread));
        }
        let latency = |summary: Summary| {
            let (p50, p99) = (summary.p50_us?, summary.p99_us?);
            Some(format!("{} / {}", duration(p50), duration(p99)))
        };
        section(&mut text, "Latency p50 / p99", &matrix(results, latency));
    }
    if !verdicts.is_empty() {
        section(&mut text, "Ratios against goals", &verdict_rows(verdicts));
    }
    footnotes(&mut text, results);
    if results.disturbed > 0 {
        let all = results.attempts();
        line(&mut text, &format!("the machine was busy before {} of {all} measurements", results.disturbed));
    }
    line(&mut text, &run.summary());
    if let Some(version) = &run.nats_server {
        line(&mut text, version);
    }
    text
}

fn section(text: &mut String, title: &str, rows: &[Vec<String>]) {
    line(text, title);
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut written = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Names are aligned left, figures right.
            let padding = " ".repeat(width - cell.chars().count());
            if column == 0 {
                written += &format!("{cell}{padding}");
            } else {
                written += &format!("  {padding}{cell}");
            }
        }
        line(text, written.trim_end());
    }
    text.push('\n');
}

fn matrix(results: &Results, cell: impl Fn(Summary) -> Option<String>) -> Vec<Vec<String>> {
    let shapes = results.shapes();
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(shapes.iter().map(ToString::to_string));
    for contender in results.contenders() {
        let mut row = vec![contender.to_string()];
        row.extend(shapes.iter().map(|&shape| {
            let summary = results.summary(contender, shape);
            summary.and_then(&cell).unwrap_or_else(|| "–".to_owned())
        }));
        rows.push(row);
    }
    rows
}

fn verdict_rows(verdicts: &[Verdict]) -> Vec<Vec<String>> {
    let row = |verdict: &Verdict| {
        let outcome = match verdict.reached {
            Some(true) => "reached",
            Some(false) => "MISSED",
            None => "",
        };
        vec![format!("{:14} {}", verdict.shape, verdict.goal), verdict.measured_text.clone(), outcome.to_owned()]
    };
    verdicts.iter().map(row).collect()
}

fn footnotes(text: &mut String, results: &Results) {
    for (contender, reason) in &results.skipped {
        line(text, &format!("skipped {contender}: {reason}"));
    }
    for failure in &results.failures {
        let crate::results::Failure { contender, shape, round, reason } = failure;
        line(text, &format!("FAILED {contender}, {shape}, round {round}: {reason}"));
    }
    for contender in results.contenders() {
        let name = Contender::name(contender);
        line(text, &format!("{name:16} {}", contender.description()));
    }
}

fn line(text: &mut String, content: &str) {
    writeln!(text, "{content}").expect("writing to a string never fails");
}
