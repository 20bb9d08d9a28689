//! Shows the progress of a call on standard error: a bar on a terminal, plain lines elsewhere.

use crate::output::print_error;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use std::io::{IsTerminal, stderr};
use std::time::Duration;
use toolbus_base::terminal_line;

pub struct Progress {
    /// `None` unless standard error is a terminal.
    bar: Option<ProgressBar>,
    quiet: bool,
    stopped: bool,
}

#[derive(Deserialize)]
struct Report {
    progress: f64,
    total: Option<f64>,
    message: Option<String>,
}

/// The bar counts whole steps, and totals may be as small as 1.0.
const STEPS: f64 = 1000.0;

impl Progress {
    pub fn new(quiet: bool) -> Self {
        Self { bar: (!quiet && stderr().is_terminal()).then(ProgressBar::hidden), quiet, stopped: false }
    }

    /// Takes the params of `notifications/progress`.
    pub fn report(&mut self, params: Option<&toolbus_mcp::Raw>) {
        if self.stopped {
            return;
        }
        let Some(report) = params.and_then(|params| serde_json::from_str::<Report>(params.get()).ok()) else { return };
        let message = report.message.map(|message| terminal_line(&message));
        match &mut self.bar {
            Some(bar) => advance(bar, report.progress, report.total, message.unwrap_or_default()),
            None => self.say(&line(report.progress, report.total, message.as_deref())),
        }
    }

    /// Prints a line without disturbing the bar.
    pub fn say(&self, line: &str) {
        match &self.bar {
            _ if self.quiet => {}
            Some(bar) if !bar.is_hidden() => bar.suspend(|| print_error(line)),
            _ => print_error(line),
        }
    }

    /// Ignores all further reports: the call was cancelled.
    pub fn stop(&mut self) {
        self.finish();
        self.bar = None;
        self.stopped = true;
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn advance(bar: &mut ProgressBar, progress: f64, total: Option<f64>, message: String) {
    if bar.is_hidden() {
        *bar = ProgressBar::no_length();
        bar.enable_steady_tick(Duration::from_millis(120));
    }
    match total.filter(|total| *total > 0.0) {
        Some(total) => {
            bar.set_style(style("{bar:32.cyan/blue} {percent:>3}% {elapsed} {wide_msg}"));
            bar.set_length((total * STEPS) as u64);
            bar.set_position((progress.clamp(0.0, total) * STEPS) as u64);
            bar.set_message(message);
        }
        None => {
            bar.set_style(style("{spinner:.cyan} {elapsed} {wide_msg}"));
            bar.set_message(words(progress, Some(&*message).filter(|message| !message.is_empty())));
        }
    }
}

/// A report as a line of text.
fn line(progress: f64, total: Option<f64>, message: Option<&str>) -> String {
    match (total, message) {
        (Some(total), None) => format!("progress {progress}/{total}"),
        (Some(total), Some(message)) => format!("progress {progress}/{total} {message}"),
        (None, Some(_)) if progress.fract() != 0.0 => words(progress, message),
        (None, _) => format!("progress {}", words(progress, message)),
    }
}

/// Progress without a total. A fraction says nothing then: servers, and hosts that wait for approval, take small steps
/// that only have to increase.
fn words(progress: f64, message: Option<&str>) -> String {
    match message {
        Some(message) if progress.fract() != 0.0 => message.to_owned(),
        Some(message) => format!("{progress} {message}"),
        None => progress.to_string(),
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates are constants and valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_is_shown_only_if_it_tells_something() {
        assert_eq!(line(0.0001, None, Some("waiting for approval")), "waiting for approval");
        assert_eq!(line(3.0, None, Some("files")), "progress 3 files");
        assert_eq!(line(0.5, None, None), "progress 0.5");
        assert_eq!(line(0.5, Some(1.0), Some("half")), "progress 0.5/1 half");
    }
}
