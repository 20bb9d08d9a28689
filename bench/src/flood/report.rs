//! The table of all ways, and the goals that each way missed.

use super::{
    honest::Sample,
    hostile::Outcome,
    tally::SENT,
    usage::Usage,
    ways::{Role, Way},
};

/// Honest agents may become slower by this factor.
const MAX_RATIO: f64 = 2.0;
/// A faster p99 without hostile agents counts as this many milliseconds, because less is noise on a busy machine.
const FLOOR_MS: f64 = 2.0;
/// Maximum growth of the memory of broker or host in MiB.
const MAX_GROWTH: f64 = 128.0;
/// Codes and kinds that are listed for each way.
const LISTED: usize = 6;

/// The measurements of one way.
pub struct Measured {
    pub way: Way,
    pub role: Role,
    pub undisturbed: Sample,
    /// Beside some hostile agents, in the order of their number.
    pub beside: Vec<Beside>,
    /// Beside a process that uses as much CPU as the largest number of hostile agents did.
    pub control: Option<Sample>,
    pub before: Usage,
    /// At the end of the last flood.
    pub flooded: Usage,
    pub after: Usage,
    pub left_over: Vec<String>,
    /// Whether other processes kept the machine busy before the measurement.
    pub was_busy: bool,
}

pub struct Beside {
    pub agents: usize,
    pub sample: Sample,
    pub outcome: Outcome,
}

impl Measured {
    /// The goals that were missed. Latencies and memory are judged only in a run that is long enough.
    pub fn problems(&self, judge_figures: bool) -> Vec<String> {
        let mut problems = Vec::new();
        for beside in self.beside.iter().filter(|beside| judge_figures && self.ratio(&beside.sample) >= MAX_RATIO) {
            let ratio = self.ratio(&beside.sample);
            problems.push(format!("p99 is {ratio:.1} times as high beside {} hostile agents", beside.agents));
        }
        let samples = self.beside.iter().map(|beside| &beside.sample).chain([&self.undisturbed]).chain(&self.control);
        for (text, count) in samples.flat_map(|sample| &sample.errors) {
            problems.push(format!("{count} honest errors: {text}"));
        }
        for (name, growth) in [("broker", self.broker_growth()), ("host", self.host_growth())] {
            if judge_figures && growth >= MAX_GROWTH {
                problems.push(format!("the {name}'s memory grew by {growth:.0} MiB"));
            }
        }
        problems.extend(self.left_over.iter().map(|what| format!("left over: {what}")));
        problems
    }

    /// Growth at the peak.
    fn broker_growth(&self) -> f64 {
        self.flooded.broker.peak.max(self.after.broker.peak) - self.before.broker.memory
    }

    fn host_growth(&self) -> f64 {
        self.flooded.host.peak.max(self.after.host.peak) - self.before.host.memory
    }

    fn ratio(&self, sample: &Sample) -> f64 {
        sample.p99 / self.undisturbed.p99.max(FLOOR_MS)
    }

    fn errors(&self) -> u64 {
        self.beside.iter().flat_map(|beside| beside.sample.errors.values()).sum()
    }
}

pub fn heading(agents: &[usize]) -> String {
    let mut text = format!(
        "p99 of honest calls in ms; ratios are to the undisturbed p99, at least {FLOOR_MS} ms; growth of memory at its peak in MiB\n\
         {:<18}{:<10}{:>9}",
        "way", "role", "alone"
    );
    for count in agents {
        text.push_str(&format!("{:>18}", format!("beside {count}")));
    }
    text + &format!("{:>18}{:>8}{:>8}{:>8}{:>8}", "control (ratio)", "new", "errors", "broker", "host")
}

pub fn row(measured: &Measured) -> String {
    let mut text = format!("{:<18}{:<10}{:>9.1}", measured.way.name(), measured.role.name(), measured.undisturbed.p99);
    for beside in &measured.beside {
        text.push_str(&format!("{:>10.1} ({:>4.1}x)", beside.sample.p99, measured.ratio(&beside.sample)));
    }
    let last = measured.beside.last();
    let control = match (&measured.control, last) {
        (Some(control), Some(last)) => {
            format!("{:.1} ({:.1}x)", control.p99, last.sample.p99 / control.p99.max(FLOOR_MS))
        }
        _ => "–".to_owned(),
    };
    let newcomer = last.map_or(0.0, |last| last.sample.newcomer);
    text.push_str(&format!("{control:>18}{newcomer:>8.0}{:>8}", measured.errors()));
    text.push_str(&format!("{:>8.0}{:>8.0}", measured.broker_growth(), measured.host_growth()));
    if measured.was_busy {
        text.push_str("  (busy machine)");
    }
    text
}

/// What the hostile agents did and got, one line for each number of agents.
pub fn details(measured: &Measured) -> String {
    let sample = |sample: &Sample| format!("p50 {:.1}, p99 {:.1}, max {:.1} ms", sample.p50, sample.p99, sample.max);
    let mut text = format!("    alone: {}\n", sample(&measured.undisturbed));
    for beside in &measured.beside {
        let sent = beside.outcome.counts.get(SENT).copied().unwrap_or_default();
        let mut got: Vec<_> = beside.outcome.counts.iter().filter(|(key, _)| *key != SENT).collect();
        got.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let got: Vec<String> = got.iter().take(LISTED).map(|(key, count)| format!("{count} × {key}")).collect();
        text.push_str(&format!(
            "    beside {}: {}; {:.0} requests/s with {:.2} cores; got {}\n",
            beside.agents,
            sample(&beside.sample),
            sent as f64 / beside.outcome.seconds.max(0.1),
            beside.outcome.cores,
            if got.is_empty() { "nothing".to_owned() } else { got.join(", ") }
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(alone: f64, beside: f64) -> Measured {
        let sample = |p99| Sample { p99, ..Sample::default() };
        let beside = Beside { agents: 1, sample: sample(beside), outcome: Outcome::default() };
        Measured {
            way: Way::Queue,
            role: Role::Nothing,
            undisturbed: sample(alone),
            beside: vec![beside],
            control: None,
            before: Usage::default(),
            flooded: Usage::default(),
            after: Usage::default(),
            left_over: Vec::new(),
            was_busy: false,
        }
    }

    #[test]
    fn a_fast_undisturbed_run_counts_as_two_milliseconds() {
        assert!(measured(0.5, 3.9).problems(true).is_empty());
        assert_eq!(measured(0.5, 4.1).problems(true).len(), 1);
        assert!(measured(3.0, 4.1).problems(true).is_empty());
    }

    #[test]
    fn latency_is_not_judged_in_the_short_form() {
        assert!(measured(0.5, 100.0).problems(false).is_empty());
    }

    #[test]
    fn errors_growth_and_leftovers_are_problems() {
        let mut measured = measured(1.0, 1.0);
        measured.beside[0].sample.errors.insert("TB0412".to_owned(), 3);
        measured.flooded.host.peak = 129.0;
        measured.left_over.push("2 processes".to_owned());
        assert_eq!((measured.problems(true).len(), measured.problems(false).len()), (3, 2));
    }
}
