//! What is counted while the run goes on, and what is kept of each call for the verdict.

use std::{collections::BTreeMap, sync::Mutex};

use super::{
    answer::{Answer, Outcome},
    site::Tool,
};

/// One call of a client: one id, however often it was made.
pub struct Record {
    pub tool: Tool,
    /// How often the client made it: again after each death of its worker process.
    pub made: u32,
    pub answers: u32,
    pub answer: Option<Answer>,
}

impl Record {
    pub fn new(tool: Tool) -> Self {
        Self { tool, made: 0, answers: 0, answer: None }
    }
}

#[derive(Default)]
pub struct Tally {
    counts: Mutex<Counts>,
}

#[derive(Clone, Default)]
pub struct Counts {
    pub results: u64,
    pub errors: u64,
    pub unknown: u64,
    pub notes: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub fn answered(&self, answer: &Answer) {
        let mut counts = self.counts.lock().expect("no panic");
        match answer.outcome {
            Outcome::Result => counts.results += 1,
            Outcome::Unknown => counts.unknown += 1,
            Outcome::Error | Outcome::OpenError | Outcome::Wrong => counts.errors += 1,
        }
    }

    /// Something worth a line in the report.
    pub fn note(&self, what: &'static str) {
        *self.counts.lock().expect("no panic").notes.entry(what).or_default() += 1;
    }

    pub fn counts(&self) -> Counts {
        self.counts.lock().expect("no panic").clone()
    }
}
