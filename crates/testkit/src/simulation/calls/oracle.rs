//! Ground truth, unaffected by crashes, against which every answer to a caller is checked.

use super::wire::{Answer, Outcome, Work};
use bytestring::ByteString;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use toolbus_engine::{Millis, Seq};
use toolbus_journal::CallKey;

pub type RequestNo = usize;

/// A request of a client.
pub struct Request {
    pub agent: usize,
    pub mailbox: ByteString,
    pub host: usize,
    pub work: Work,
    pub id: ByteString,
    pub deadline: Option<Millis>,
    pub receipted: bool,
    /// The worker that sent it crashed, so no caller waits for the answer.
    pub caller_is_gone: bool,
    /// The answer that the caller received.
    received: Option<Answer>,
    /// The caller stopped waiting because the deadline passed.
    timed_out: bool,
    effects: u64,
    /// An answer said that the call was not run.
    reported_not_run: bool,
}

impl Request {
    pub fn new(
        agent: usize,
        mailbox: ByteString,
        host: usize,
        work: Work,
        id: ByteString,
        deadline: Option<Millis>,
    ) -> Self {
        let (receipted, caller_is_gone, timed_out, reported_not_run) = (false, false, false, false);
        let (received, effects) = (None, 0);
        Self {
            agent,
            mailbox,
            host,
            work,
            id,
            deadline,
            receipted,
            caller_is_gone,
            received,
            timed_out,
            effects,
            reported_not_run,
        }
    }

    pub fn is_answered(&self) -> bool {
        self.received.is_some() || self.timed_out
    }
}

/// How often each kind of outcome occurred.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Effects of tools.
    pub effects: u64,
    /// Answers with the result or the error of a tool.
    pub results: u64,
    /// Answers "outcome unknown".
    pub unknown: u64,
    /// Answers to calls that were joined to an earlier one.
    pub joined: u64,
    /// Answers to calls that were not run because their deadline had passed.
    pub expired: u64,
    /// Answers to calls that reached the attempt limit.
    pub poisoned: u64,
    /// Answers that a caller received more than once.
    pub sent_again: u64,
    /// Accepted tasks.
    pub tasks: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.effects += other.effects;
        self.results += other.results;
        self.unknown += other.unknown;
        self.joined += other.joined;
        self.expired += other.expired;
        self.poisoned += other.poisoned;
        self.sent_again += other.sent_again;
        self.tasks += other.tasks;
    }
}

#[derive(Default)]
pub struct Oracle {
    pub requests: Vec<Request>,
    pub tally: Tally,
    by_id: BTreeMap<ByteString, RequestNo>,
    /// The id of the call, for each run of a tool.
    runs: Vec<ByteString>,
    /// Calls for which a host wrote, or began to write, START.
    started: BTreeSet<ByteString>,
    /// The first outcome that was reported for a call.
    first_outcome: BTreeMap<ByteString, Outcome>,
    /// The reply that a tag of a mailbox stands for.
    tags: BTreeMap<(ByteString, Seq), ByteString>,
    /// Acknowledged replies, each with the number of batches that the broker had taken by then.
    acked: BTreeMap<(ByteString, ByteString), u64>,
    /// Acknowledgements with a lower number of batches are durable.
    durable_before: u64,
    /// Calls whose RESULT was lost in a machine crash before it was synced.
    in_doubt: BTreeSet<ByteString>,
    /// Whether any of the inspected answers had been collected, by inspection.
    inspections: BTreeMap<ByteString, bool>,
    violation: Option<String>,
}

impl Oracle {
    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    pub fn violated(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert(what.into());
    }

    pub fn add_request(&mut self, request: Request) {
        self.by_id.insert(request.id.clone(), self.requests.len());
        self.requests.push(request);
    }

    pub fn renamed(&mut self, no: RequestNo, id: ByteString) {
        self.by_id.insert(id.clone(), no);
        self.requests[no].id = id;
    }

    pub fn find(&self, mailbox: &ByteString, id: &ByteString) -> Option<RequestNo> {
        self.by_id.get(id).copied().filter(|no| self.requests[*no].mailbox == *mailbox)
    }

    /// A host is about to write START.
    pub fn writes_start(&mut self, key: &CallKey) {
        self.started.insert(key.id.clone());
    }

    /// A host starts a tool. Returns the number of this run.
    pub fn tool_started(&mut self, key: &CallKey, now: Millis, deadline: Option<Millis>) -> usize {
        if deadline.is_some_and(|deadline| deadline <= now) {
            self.violated(format!("{} was run after its deadline", key.id));
        }
        self.runs.push(key.id.clone());
        self.runs.len() - 1
    }

    /// The tool has its effect.
    pub fn tool_acted(&mut self, run: usize) {
        self.tally.effects += 1;
        let id = self.runs[run].clone();
        let Some(no) = self.by_id.get(&id).copied() else { return self.violated("a call was run that was never sent") };
        let request = &mut self.requests[no];
        request.effects += 1;
        let (effects, reported_not_run) = (request.effects, request.reported_not_run);
        if request.work.is_replay_safe() {
            return;
        }
        if effects > 1 {
            self.violated(format!("{id} had {effects} effects"));
        }
        if reported_not_run {
            self.violated(format!("{id} had an effect after it was reported as not run"));
        }
    }

    /// A caller receives an answer.
    pub fn answered(&mut self, no: RequestNo, answer: Answer) {
        let request = &self.requests[no];
        if request.received.as_ref() == Some(&answer) {
            self.tally.sent_again += 1;
            return;
        }
        let replay_safe = request.work.is_replay_safe();
        if request.received.is_some() && self.is_in_doubt(&answer) {
            // The caller keeps the answer that it received before the crash.
            return;
        }
        if let Some(received) = request.received.as_ref().filter(|_| !replay_safe) {
            let what = format!("the caller of {} got two answers: {received:?}, then {answer:?}", request.id);
            return self.violated(what);
        }
        self.check_origin(no, &answer);
        if answer.outcome != Outcome::Accepted {
            self.check_answer(&answer, replay_safe);
        }
        self.count(&answer);
        self.requests[no].received = Some(answer);
    }

    /// An answer must be true and equal to those given before.
    fn check_answer(&mut self, answer: &Answer, replay_safe: bool) {
        let first = *self.first_outcome.entry(answer.of.clone()).or_insert(answer.outcome);
        if first != answer.outcome && !replay_safe && !self.is_in_doubt(answer) {
            self.violated(format!("{} changed from {first:?} to {:?}", answer.of, answer.outcome));
        }
        self.check_outcome(answer, replay_safe);
    }

    /// A machine crash lost the RESULT of these calls.
    pub fn ends_lost<'a>(&mut self, ended: impl Iterator<Item = &'a CallKey>) {
        self.in_doubt.extend(ended.map(|key| key.id.clone()));
    }

    fn is_in_doubt(&self, answer: &Answer) -> bool {
        answer.outcome == Outcome::Unknown && self.in_doubt.contains(&answer.of)
    }

    /// Tasks whose callers received the acceptance.
    pub fn accepted(&self) -> Vec<RequestNo> {
        let is_accepted =
            |request: &Request| request.received.as_ref().is_some_and(|answer| answer.outcome == Outcome::Accepted);
        (0..self.requests.len()).filter(|no| is_accepted(&self.requests[*no])).collect()
    }

    /// A client queried the result of a task.
    pub fn task_answered(&mut self, no: RequestNo, answer: &Answer) {
        let replay_safe = self.requests[no].work.is_replay_safe();
        if answer.of != self.requests[no].id {
            self.violated(format!("task {} shows the answer of {}", self.requests[no].id, answer.of));
        }
        self.check_answer(answer, replay_safe);
    }

    /// An answer belongs to the call itself or, if it was joined, to an equal call of the same agent.
    fn check_origin(&mut self, no: RequestNo, answer: &Answer) {
        let Some(of) = self.by_id.get(&answer.of).copied() else {
            return self.violated("an answer names an unknown call");
        };
        let (asked, ran) = (&self.requests[no], &self.requests[of]);
        let same = asked.agent == ran.agent && asked.work == ran.work && asked.host == ran.host;
        if answer.joined && (!same || of == no || asked.mailbox == ran.mailbox) {
            self.violated(format!("{} was joined to {}, which is not the same call", asked.id, answer.of));
        } else if !answer.joined && of != no {
            self.violated(format!("{} got the answer of {}", asked.id, answer.of));
        }
    }

    fn check_outcome(&mut self, answer: &Answer, replay_safe: bool) {
        let of = &answer.of;
        let is_wrong = match answer.outcome {
            Outcome::Result(run) | Outcome::Failed(run) => self.runs.get(run) != Some(of),
            Outcome::Unknown | Outcome::Poisoned => !self.started.contains(of),
            Outcome::Accepted => false,
            Outcome::Expired => {
                let request = self.by_id.get(of).map(|no| &mut self.requests[*no]);
                request.is_some_and(|request| {
                    request.reported_not_run = true;
                    request.effects > 0 && !replay_safe
                })
            }
        };
        if is_wrong {
            self.violated(format!("wrong answer for {of}: {:?}", answer.outcome));
        }
    }

    fn count(&mut self, answer: &Answer) {
        let tally = &mut self.tally;
        tally.joined += u64::from(answer.joined);
        match answer.outcome {
            Outcome::Result(_) | Outcome::Failed(_) => tally.results += 1,
            Outcome::Unknown => tally.unknown += 1,
            Outcome::Expired => tally.expired += 1,
            Outcome::Poisoned => tally.poisoned += 1,
            Outcome::Accepted => tally.tasks += 1,
        }
    }

    /// The deadline passed: reported by the broker, or noticed by the worker.
    pub fn timed_out(&mut self, no: RequestNo) {
        self.requests[no].timed_out = true;
    }

    pub fn delivered(&mut self, mailbox: &ByteString, tag: Seq, reply_id: &ByteString) {
        self.tags.insert((mailbox.clone(), tag), reply_id.clone());
    }

    /// The broker received acknowledgements of answers.
    pub fn acked(&mut self, mailbox: &ByteString, tags: &[Seq], batches: u64) {
        for tag in tags {
            if let Some(reply_id) = self.tags.get(&(mailbox.clone(), *tag)) {
                self.acked.entry((mailbox.clone(), reply_id.clone())).or_insert(batches);
            }
        }
    }

    pub fn acks_durable(&mut self, batches: u64) {
        self.durable_before = batches;
    }

    /// The crash loses acknowledgements that were not durable.
    pub fn broker_crashed(&mut self) {
        let durable_before = self.durable_before;
        self.acked.retain(|_, batches| *batches < durable_before);
    }

    pub fn is_collected(&self, mailbox: &ByteString, reply_id: &ByteString) -> bool {
        self.acked.contains_key(&(mailbox.clone(), reply_id.clone()))
    }

    pub fn inspected(&mut self, inspect: &ByteString, collected: bool) {
        self.inspections.insert(inspect.clone(), collected);
    }

    /// A host joins a call to an earlier one because of this inspection.
    pub fn joins(&mut self, key: &CallKey, to: &CallKey, inspect: &ByteString) {
        if self.inspections.get(inspect).is_none_or(|collected| *collected) {
            self.violated(format!("{} was joined to {}, whose answer had been collected", key.id, to.id));
        }
        let (joined, earlier) = (self.by_id.get(&key.id), self.by_id.get(&to.id));
        let work = |no: Option<&RequestNo>| no.map(|no| (self.requests[*no].agent, self.requests[*no].work));
        if work(joined) != work(earlier) || key.caller == to.caller {
            self.violated(format!("{} was joined to {}, which is not the same call", key.id, to.id));
        }
    }

    /// Called when all faults have ended and no work remains.
    pub fn check_ends(&mut self) {
        let lost = self.requests.iter().find(|request| !request.is_answered() && !request.caller_is_gone);
        if let Some(request) = lost {
            self.violated(format!("{} was never answered", request.id));
        }
    }
}
