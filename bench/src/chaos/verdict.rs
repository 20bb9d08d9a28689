//! Whether the promises were kept: what callers were told, held against what the tools did.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use super::{
    answer::Outcome,
    client::call_id,
    effect,
    recovery::{Blow, Recoveries, Times},
    site::{Site, Tool},
    tally::{Record, Tally},
};

/// Ids that are named in a complaint.
const NAMED: usize = 5;
const TWICE: &str = "with more than one effect";
const TWICE_REPEATED: &str = "with more than one effect, which their client had made again";

#[derive(Default, Serialize)]
pub struct Verdict {
    pub system: &'static str,
    pub seconds: f64,
    pub blows: BTreeMap<&'static str, u64>,
    pub calls: u64,
    /// Calls that a client made again because its worker process had died.
    pub repeated: u64,
    pub joined: u64,
    pub results: u64,
    pub errors: u64,
    pub unknown: u64,
    pub lost: u64,
    pub answered_twice: u64,
    pub wrong: u64,
    /// Of tools that are not replay-safe.
    pub ids_with_two_effects: u64,
    pub most_effects: u32,
    pub results_without_effect: u64,
    /// Told that it failed, without a word that it may have run, though it did.
    pub denied_effects: u64,
    pub unknown_with_effect: u64,
    pub safe_calls: u64,
    pub safe_ids_with_two_effects: u64,
    pub safe_unknown: u64,
    pub error_codes: BTreeMap<String, u64>,
    pub notes: BTreeMap<&'static str, u64>,
    pub recovery: BTreeMap<&'static str, Times>,
    pub recovery_all: Option<Times>,
    pub complaints: Vec<String>,
}

impl Verdict {
    pub fn of(
        site: &Site,
        records: Vec<(usize, Vec<Record>)>,
        recoveries: &Recoveries,
        tally: &Tally,
        complaints: Vec<String>,
        took: Duration,
    ) -> anyhow::Result<Self> {
        let mut verdict =
            Self { system: site.system.name(), seconds: took.as_secs_f64(), complaints, ..Self::default() };
        let (never, safe) = (effect::count(&site.effects(Tool::Never))?, effect::count(&site.effects(Tool::Safe))?);
        let mut bad = Bad::default();
        for (worker, records) in &records {
            for (number, record) in records.iter().enumerate() {
                let id = call_id(*worker, number);
                let counts = if record.tool == Tool::Safe { &safe } else { &never };
                verdict.count(record, counts.get(&id).copied().unwrap_or_default(), &id, &mut bad);
            }
        }
        verdict.blame(bad);
        for blow in Blow::ALL {
            verdict.blows.insert(blow.name(), recoveries.blows(blow));
            if let Some(times) = recoveries.times(Some(blow)) {
                verdict.recovery.insert(blow.name(), times);
            }
        }
        verdict.recovery_all = recoveries.times(None);
        verdict.notes = tally.counts().notes;
        Ok(verdict)
    }

    fn count(&mut self, record: &Record, effects: u32, id: &str, bad: &mut Bad) {
        self.calls += 1;
        self.repeated += u64::from(record.made > 1);
        if record.answers > 1 {
            self.answered_twice += 1;
            bad.add("answered more than once", id);
        }
        let is_safe = record.tool == Tool::Safe;
        self.safe_calls += u64::from(is_safe);
        if effects > 1 && is_safe {
            self.safe_ids_with_two_effects += 1;
        } else if effects > 1 {
            self.ids_with_two_effects += 1;
            self.most_effects = self.most_effects.max(effects);
            bad.add(if record.made > 1 { TWICE_REPEATED } else { TWICE }, id);
        } else if !is_safe {
            self.most_effects = self.most_effects.max(effects);
        }
        let Some(answer) = &record.answer else {
            self.lost += 1;
            return bad.add("without an answer", id);
        };
        self.joined += u64::from(answer.joined);
        if let Some(code) = &answer.code {
            let code: String = code.chars().take(60).collect();
            *self.error_codes.entry(code).or_default() += 1;
        }
        match answer.outcome {
            Outcome::Result => self.results += 1,
            Outcome::Unknown => self.unknown += 1,
            Outcome::Error | Outcome::OpenError => self.errors += 1,
            Outcome::Wrong => self.wrong += 1,
        }
        match (answer.outcome, effects) {
            (Outcome::Result, 0) => {
                self.results_without_effect += 1;
                bad.add("with a result but no effect", id);
            }
            (Outcome::Error, 1..) if !is_safe => {
                self.denied_effects += 1;
                bad.add("that were told of a failure but had their effect", id);
            }
            (Outcome::Unknown, _) if is_safe => self.safe_unknown += 1,
            (Outcome::Unknown, 1..) => self.unknown_with_effect += 1,
            (Outcome::Wrong, _) => bad.add("with somebody else's answer", id),
            _ => {}
        }
    }

    fn blame(&mut self, bad: Bad) {
        for (what, ids) in bad.ids {
            let named = ids.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
            self.complaints.push(format!("{} calls {what}: {named}", ids.len()));
        }
    }

    pub fn is_kept(&self) -> bool {
        self.complaints.is_empty()
    }
}

#[derive(Default)]
struct Bad {
    ids: BTreeMap<&'static str, Vec<String>>,
}

impl Bad {
    fn add(&mut self, what: &'static str, id: &str) {
        self.ids.entry(what).or_default().push(id.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::{super::answer::Answer, *};

    fn check(tool: Tool, outcome: Option<Outcome>, effects: u32, expected: Option<&str>) {
        let answer = outcome.map(|outcome| Answer { outcome, code: None, joined: false });
        let record = Record { tool, made: 1, answers: u32::from(answer.is_some()), answer };
        let (mut verdict, mut bad) = (Verdict::default(), Bad::default());
        verdict.count(&record, effects, "w0-0", &mut bad);
        verdict.blame(bad);
        assert_eq!(verdict.complaints.first().map(String::as_str), expected, "{outcome:?} with {effects} effects");
    }

    #[test]
    fn what_was_told_has_to_fit_what_was_done() {
        check(Tool::Never, Some(Outcome::Result), 1, None);
        check(Tool::Never, Some(Outcome::Unknown), 0, None);
        check(Tool::Never, Some(Outcome::Unknown), 1, None);
        check(Tool::Never, Some(Outcome::Error), 0, None);
        check(Tool::Never, Some(Outcome::OpenError), 1, None);
        check(Tool::Never, None, 0, Some("1 calls without an answer: w0-0"));
        check(Tool::Never, Some(Outcome::Result), 2, Some("1 calls with more than one effect: w0-0"));
        check(Tool::Never, Some(Outcome::Unknown), 2, Some("1 calls with more than one effect: w0-0"));
        check(Tool::Never, Some(Outcome::Result), 0, Some("1 calls with a result but no effect: w0-0"));
        check(Tool::Never, Some(Outcome::Wrong), 1, Some("1 calls with somebody else's answer: w0-0"));
        let denied = "1 calls that were told of a failure but had their effect: w0-0";
        check(Tool::Never, Some(Outcome::Error), 1, Some(denied));
    }

    #[test]
    fn a_tool_that_may_run_twice_may() {
        check(Tool::Safe, Some(Outcome::Result), 3, None);
        check(Tool::Safe, Some(Outcome::Result), 0, Some("1 calls with a result but no effect: w0-0"));
    }
}
