//! What really happened, outside of everything that can crash, and what must therefore be true of what callers are told.

use super::wire::{Answer, Outcome, Work};
use bytestring::ByteString;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use toolbus_engine::{Millis, Seq};
use toolbus_journal::CallKey;

pub type RequestNo = usize;

/// What a client wants to know.
pub struct Request {
    pub agent: usize,
    pub mailbox: ByteString,
    pub host: usize,
    pub work: Work,
    pub id: ByteString,
    pub deadline: Option<Millis>,
    pub receipted: bool,
    /// Nobody waits for the answer any more.
    pub caller_is_gone: bool,
    /// What a host answered, and whether the client stopped waiting before.
    heard: Option<Answer>,
    gave_up: bool,
    effects: u64,
    /// Its caller was told that it was not run.
    told_not_run: bool,
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
        let (receipted, caller_is_gone, gave_up, told_not_run) = (false, false, false, false);
        let (heard, effects) = (None, 0);
        Self {
            agent,
            mailbox,
            host,
            work,
            id,
            deadline,
            receipted,
            caller_is_gone,
            heard,
            gave_up,
            effects,
            told_not_run,
        }
    }

    pub fn is_answered(&self) -> bool {
        self.heard.is_some() || self.gave_up
    }
}

/// How often what happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub effects: u64,
    pub results: u64,
    pub unknown: u64,
    pub joined: u64,
    pub expired: u64,
    pub poisoned: u64,
    pub sent_again: u64,
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
pub struct Truth {
    pub requests: Vec<Request>,
    pub tally: Tally,
    by_id: BTreeMap<ByteString, RequestNo>,
    /// Each time a tool was told to do something: for which call.
    runs: Vec<ByteString>,
    /// Calls of which a host wrote down that they begin.
    begun: BTreeSet<ByteString>,
    /// The first that anybody heard of a call.
    seen: BTreeMap<ByteString, Outcome>,
    /// Which answer a tag of a mailbox stands for.
    tags: BTreeMap<(ByteString, Seq), ByteString>,
    /// Answers that were acknowledged, and how many batches the broker had begun to write by then.
    acked: BTreeMap<(ByteString, ByteString), u64>,
    safe_before: u64,
    /// Calls whose ends their hosts lost with their machines, before they were synced.
    in_doubt: BTreeSet<ByteString>,
    /// Whether what was asked for in a look had been collected.
    looks: BTreeMap<ByteString, bool>,
    violation: Option<String>,
}

impl Truth {
    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    pub fn violated(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert(what.into());
    }

    pub fn asked(&mut self, request: Request) {
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

    /// A host decides to write down that a call begins.
    pub fn begins(&mut self, key: &CallKey) {
        self.begun.insert(key.id.clone());
    }

    /// A tool is told to do something. Returns the number of this run.
    pub fn runs(&mut self, key: &CallKey, now: Millis, deadline: Option<Millis>) -> usize {
        if deadline.is_some_and(|deadline| deadline <= now) {
            self.violated(format!("{} was run after its deadline", key.id));
        }
        self.runs.push(key.id.clone());
        self.runs.len() - 1
    }

    /// The tool does it.
    pub fn takes_effect(&mut self, run: usize) {
        self.tally.effects += 1;
        let id = self.runs[run].clone();
        let Some(no) = self.by_id.get(&id).copied() else { return self.violated("somebody else's call was run") };
        let request = &mut self.requests[no];
        request.effects += 1;
        let (effects, told_not_run) = (request.effects, request.told_not_run);
        if request.work.is_safe() {
            return;
        }
        if effects > 1 {
            self.violated(format!("{id} had {effects} effects"));
        }
        if told_not_run {
            self.violated(format!("{id} had an effect after its caller was told that it was not run"));
        }
    }

    /// The caller of a request hears from a host.
    pub fn told(&mut self, no: RequestNo, answer: Answer) {
        let request = &self.requests[no];
        if request.heard.as_ref() == Some(&answer) {
            self.tally.sent_again += 1;
            return;
        }
        let is_safe = request.work.is_safe();
        if request.heard.is_some() && self.is_in_doubt(&answer) {
            // Its caller has its answer, and is not told another.
            return;
        }
        if let Some(heard) = request.heard.as_ref().filter(|_| !is_safe) {
            let what = format!("the caller of {} was told {heard:?}, and then {answer:?}", request.id);
            return self.violated(what);
        }
        self.check_origin(no, &answer);
        if answer.outcome != Outcome::Accepted {
            self.sees(&answer, is_safe);
        }
        self.count(&answer);
        self.requests[no].heard = Some(answer);
    }

    /// What is said of a call is true, and what was said before.
    fn sees(&mut self, answer: &Answer, is_safe: bool) {
        let first = *self.seen.entry(answer.of.clone()).or_insert(answer.outcome);
        if first != answer.outcome && !is_safe && !self.is_in_doubt(answer) {
            self.violated(format!("{} turned from {first:?} into {:?}", answer.of, answer.outcome));
        }
        self.check_outcome(answer, is_safe);
    }

    /// A host's machine stopped before these ends were on its disk.
    pub fn forgotten<'a>(&mut self, ended: impl Iterator<Item = &'a CallKey>) {
        self.in_doubt.extend(ended.map(|key| key.id.clone()));
    }

    fn is_in_doubt(&self, answer: &Answer) -> bool {
        answer.outcome == Outcome::Unknown && self.in_doubt.contains(&answer.of)
    }

    /// Tasks that somebody was told were taken.
    pub fn accepted(&self) -> Vec<RequestNo> {
        let is_accepted =
            |request: &Request| request.heard.as_ref().is_some_and(|answer| answer.outcome == Outcome::Accepted);
        (0..self.requests.len()).filter(|no| is_accepted(&self.requests[*no])).collect()
    }

    /// Somebody is shown what became of a task.
    pub fn task_seen(&mut self, no: RequestNo, answer: &Answer) {
        let is_safe = self.requests[no].work.is_safe();
        if answer.of != self.requests[no].id {
            self.violated(format!("{} was shown what {} gave", self.requests[no].id, answer.of));
        }
        self.sees(answer, is_safe);
    }

    /// An answer belongs to the call itself or, where it was joined, to an equal one of the same agent.
    fn check_origin(&mut self, no: RequestNo, answer: &Answer) {
        let Some(of) = self.by_id.get(&answer.of).copied() else { return self.violated("an answer of no call") };
        let (asked, ran) = (&self.requests[no], &self.requests[of]);
        let same = asked.agent == ran.agent && asked.work == ran.work && asked.host == ran.host;
        if answer.joined && (!same || of == no || asked.mailbox == ran.mailbox) {
            self.violated(format!("{} was joined to {}, which is not the same call", asked.id, answer.of));
        } else if !answer.joined && of != no {
            self.violated(format!("{} was answered with what {} gave", asked.id, answer.of));
        }
    }

    fn check_outcome(&mut self, answer: &Answer, is_safe: bool) {
        let of = &answer.of;
        let lie = match answer.outcome {
            Outcome::Result(run) | Outcome::Failed(run) => self.runs.get(run) != Some(of),
            Outcome::Unknown | Outcome::Poisoned => !self.begun.contains(of),
            Outcome::Accepted => false,
            Outcome::Expired => {
                let request = self.by_id.get(of).map(|no| &mut self.requests[*no]);
                request.is_some_and(|request| {
                    request.told_not_run = true;
                    request.effects > 0 && !is_safe
                })
            }
        };
        if lie {
            self.violated(format!("it is not true of {of}: {:?}", answer.outcome));
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

    /// The client was told that its time is over, by its worker or by the broker.
    pub fn gave_up(&mut self, no: RequestNo) {
        self.requests[no].gave_up = true;
    }

    pub fn delivered(&mut self, mailbox: &ByteString, tag: Seq, reply_id: &ByteString) {
        self.tags.insert((mailbox.clone(), tag), reply_id.clone());
    }

    /// The broker hears that answers were collected.
    pub fn acked(&mut self, mailbox: &ByteString, tags: &[Seq], batches: u64) {
        for tag in tags {
            if let Some(reply_id) = self.tags.get(&(mailbox.clone(), *tag)) {
                self.acked.entry((mailbox.clone(), reply_id.clone())).or_insert(batches);
            }
        }
    }

    pub fn acks_are_safe(&mut self, batches: u64) {
        self.safe_before = batches;
    }

    /// What it had not written down it has not heard.
    pub fn broker_crashed(&mut self) {
        let safe_before = self.safe_before;
        self.acked.retain(|_, batches| *batches < safe_before);
    }

    pub fn is_collected(&self, mailbox: &ByteString, reply_id: &ByteString) -> bool {
        self.acked.contains_key(&(mailbox.clone(), reply_id.clone()))
    }

    pub fn inspected(&mut self, inspect: &ByteString, collected: bool) {
        self.looks.insert(inspect.clone(), collected);
    }

    /// A host joins a call to an earlier one, by that look.
    pub fn joins(&mut self, key: &CallKey, to: &CallKey, inspect: &ByteString) {
        if self.looks.get(inspect).is_none_or(|collected| *collected) {
            self.violated(format!("{} was joined to {}, whose answer had been collected", key.id, to.id));
        }
        let (joined, earlier) = (self.by_id.get(&key.id), self.by_id.get(&to.id));
        let work = |no: Option<&RequestNo>| no.map(|no| (self.requests[*no].agent, self.requests[*no].work));
        if work(joined) != work(earlier) || key.caller == to.caller {
            self.violated(format!("{} was joined to {}, which is not the same call", key.id, to.id));
        }
    }

    /// Everything has healed and nothing happens any more.
    pub fn check_ends(&mut self) {
        let lost = self.requests.iter().find(|request| !request.is_answered() && !request.caller_is_gone);
        if let Some(request) = lost {
            self.violated(format!("{} was never answered", request.id));
        }
    }
}
