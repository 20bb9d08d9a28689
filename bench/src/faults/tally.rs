//! Counters of a running test, and the record of each call for the verdict.

use std::{collections::BTreeMap, sync::Mutex, time::Instant};

use super::{
    Tool,
    answer::{Answer, Outcome},
};

/// One call of a client under one id, however often it was sent.
pub struct Record {
    pub tool: Tool,
    /// How often the client sent it: again after each death of its worker process.
    pub sent: u32,
    pub first_sent: Option<Instant>,
    pub answers: u32,
    pub answer: Option<Answer>,
    pub answered: Option<Instant>,
}

impl Record {
    pub fn new(tool: Tool) -> Self {
        Self { tool, sent: 0, first_sent: None, answers: 0, answer: None, answered: None }
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
            Outcome::Error | Outcome::AmbiguousError | Outcome::Wrong => counts.errors += 1,
        }
    }

    /// Counts an event for the report.
    pub fn note(&self, event: &'static str) {
        *self.counts.lock().expect("no panic").notes.entry(event).or_default() += 1;
    }

    pub fn counts(&self) -> Counts {
        self.counts.lock().expect("no panic").clone()
    }
}
