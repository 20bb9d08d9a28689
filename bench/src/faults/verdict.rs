//! The verdict of a run: the answers to callers, checked against the effects of the tools.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use serde::Serialize;

use super::{
    answer::Outcome,
    client::call_id,
    recovery::{Recoveries, Times},
    tally::{Record, Tally},
};

/// Maximum number of ids listed in a problem.
const MAX_LISTED_IDS: usize = 5;
const TWICE: &str = "with more than one effect";
const TWICE_REPEATED: &str = "with more than one effect, repeated by their client";

#[derive(Default, Serialize)]
pub struct Verdict {
    pub system: &'static str,
    pub seconds: f64,
    pub faults: BTreeMap<&'static str, u64>,
    pub calls: u64,
    /// Calls that a client repeated because its worker process had died.
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
    /// Calls with an effect whose error doesn't say that the tool may have run.
    pub denied_effects: u64,
    pub unknown_with_effect: u64,
    pub safe_calls: u64,
    pub safe_ids_with_two_effects: u64,
    pub safe_unknown: u64,
    pub error_codes: BTreeMap<String, u64>,
    pub notes: BTreeMap<&'static str, u64>,
    pub recovery: BTreeMap<&'static str, Times>,
    pub recovery_all: Option<Times>,
    pub problems: Vec<String>,
}

/// What a run observed.
pub struct Evidence<'a> {
    pub system: &'static str,
    /// The calls of each worker.
    pub records: &'a [(usize, Vec<Record>)],
    /// The number of effects of each call id.
    pub effects: HashMap<String, u32>,
    pub recoveries: &'a Recoveries,
    pub tally: &'a Tally,
    /// Violations that were seen during the run.
    pub problems: Vec<String>,
    pub took: Duration,
}

impl Verdict {
    pub fn of(evidence: Evidence<'_>) -> Self {
        let Evidence { system, records, effects, recoveries, tally, problems, took } = evidence;
        let mut verdict = Self { system, seconds: took.as_secs_f64(), problems, ..Self::default() };
        let mut violations = Violations::default();
        for (worker, records) in records {
            for (number, record) in records.iter().enumerate() {
                let id = call_id(*worker, number);
                verdict.count(record, effects.get(&id).copied().unwrap_or_default(), &id, &mut violations);
            }
        }
        verdict.add_problems(violations);
        verdict.faults = recoveries.counts();
        for fault in verdict.faults.keys() {
            if let Some(times) = recoveries.times(Some(fault)) {
                verdict.recovery.insert(fault, times);
            }
        }
        verdict.recovery_all = recoveries.times(None);
        verdict.notes = tally.counts().notes;
        verdict
    }

    fn count(&mut self, record: &Record, effects: u32, id: &str, violations: &mut Violations) {
        self.calls += 1;
        self.repeated += u64::from(record.sent > 1);
        if record.answers > 1 {
            self.answered_twice += 1;
            violations.add("answered more than once", id);
        }
        let is_safe = record.tool.is_safe;
        self.safe_calls += u64::from(is_safe);
        if effects > 1 && is_safe {
            self.safe_ids_with_two_effects += 1;
        } else if effects > 1 {
            self.ids_with_two_effects += 1;
            self.most_effects = self.most_effects.max(effects);
            violations.add(if record.sent > 1 { TWICE_REPEATED } else { TWICE }, id);
        } else if !is_safe {
            self.most_effects = self.most_effects.max(effects);
        }
        let Some(answer) = &record.answer else {
            self.lost += 1;
            return violations.add("without an answer", id);
        };
        self.joined += u64::from(answer.joined);
        if let Some(code) = &answer.code {
            let code: String = code.chars().take(60).collect();
            *self.error_codes.entry(code).or_default() += 1;
        }
        match answer.outcome {
            Outcome::Result => self.results += 1,
            Outcome::Unknown => self.unknown += 1,
            Outcome::Error | Outcome::AmbiguousError => self.errors += 1,
            Outcome::Wrong => self.wrong += 1,
        }
        match (answer.outcome, effects) {
            (Outcome::Result, 0) => {
                self.results_without_effect += 1;
                violations.add("with a result but no effect", id);
            }
            // The error is about the repetition, which its worker did not forward. The reply to the first call, whose worker
            // died, has no recipient any more.
            (Outcome::Error, 1..) if record.sent > 1 && answer.is_not_forwarded() => {}
            (Outcome::Error, 1..) if !is_safe => {
                self.denied_effects += 1;
                violations.add("with an error that denies their effect", id);
            }
            (Outcome::Unknown, _) if is_safe => self.safe_unknown += 1,
            (Outcome::Unknown, 1..) => self.unknown_with_effect += 1,
            (Outcome::Wrong, _) => violations.add("with the answer to another call", id),
            _ => {}
        }
    }

    fn add_problems(&mut self, violations: Violations) {
        for (violation, ids) in violations.ids {
            let listed = ids.iter().take(MAX_LISTED_IDS).cloned().collect::<Vec<_>>().join(", ");
            self.problems.push(format!("{} calls {violation}: {listed}", ids.len()));
        }
    }

    pub fn passed(&self) -> bool {
        self.problems.is_empty()
    }
}

#[derive(Default)]
struct Violations {
    ids: BTreeMap<&'static str, Vec<String>>,
}

impl Violations {
    fn add(&mut self, violation: &'static str, id: &str) {
        self.ids.entry(violation).or_default().push(id.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Tool, answer::Answer},
        *,
    };

    const NEVER: Tool = Tool { name: "effect", is_safe: false };
    const SAFE: Tool = Tool { name: "effect_safe", is_safe: true };

    fn check(tool: Tool, outcome: Option<Outcome>, effects: u32, expected: Option<&str>) {
        let answer = outcome.map(|outcome| Answer { outcome, code: None, joined: false });
        let record = Record { sent: 1, answers: u32::from(answer.is_some()), answer, ..Record::new(tool) };
        let (mut verdict, mut violations) = (Verdict::default(), Violations::default());
        verdict.count(&record, effects, "w0-0", &mut violations);
        verdict.add_problems(violations);
        assert_eq!(verdict.problems.first().map(String::as_str), expected, "{outcome:?} with {effects} effects");
    }

    #[test]
    fn answers_must_agree_with_effects() {
        check(NEVER, Some(Outcome::Result), 1, None);
        check(NEVER, Some(Outcome::Unknown), 0, None);
        check(NEVER, Some(Outcome::Unknown), 1, None);
        check(NEVER, Some(Outcome::Error), 0, None);
        check(NEVER, Some(Outcome::AmbiguousError), 1, None);
        check(NEVER, None, 0, Some("1 calls without an answer: w0-0"));
        check(NEVER, Some(Outcome::Result), 2, Some("1 calls with more than one effect: w0-0"));
        check(NEVER, Some(Outcome::Unknown), 2, Some("1 calls with more than one effect: w0-0"));
        check(NEVER, Some(Outcome::Result), 0, Some("1 calls with a result but no effect: w0-0"));
        check(NEVER, Some(Outcome::Wrong), 1, Some("1 calls with the answer to another call: w0-0"));
        let denied = "1 calls with an error that denies their effect: w0-0";
        check(NEVER, Some(Outcome::Error), 1, Some(denied));
    }

    #[test]
    fn a_repetition_that_was_not_forwarded_says_nothing_about_the_first_call() {
        let problems = |sent, code: &str| {
            let answer = Answer { outcome: Outcome::Error, code: Some(code.to_owned()), joined: false };
            let record = Record { sent, answers: 1, answer: Some(answer), ..Record::new(NEVER) };
            let (mut verdict, mut violations) = (Verdict::default(), Violations::default());
            verdict.count(&record, 1, "w0-0", &mut violations);
            verdict.add_problems(violations);
            verdict.problems.len()
        };
        assert_eq!((problems(2, "TB0401"), problems(1, "TB0401"), problems(2, "TB0402")), (0, 1, 1));
    }

    #[test]
    fn a_replay_safe_tool_may_have_several_effects() {
        check(SAFE, Some(Outcome::Result), 3, None);
        check(SAFE, Some(Outcome::Result), 0, Some("1 calls with a result but no effect: w0-0"));
    }
}
