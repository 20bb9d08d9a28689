//! Ground truth, unaffected by crashes, against which every start of a tool and every answer to a caller is checked.
//!
//! `starts` checks what reaches servers, `answers` what reaches callers, `joins` which calls share an answer.

mod answers;
mod joins;
mod starts;

pub use starts::Start;

use super::wire::{CANCELLED, Outcome, WireAnswer, Work};
use bytestring::ByteString;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use toolbus_engine::{Millis, Seq};
use toolbus_journal::CallKey;

pub type RequestNo = usize;
/// A start of a tool at a server.
pub type RunNo = usize;

/// A request of a client.
#[derive(Default)]
pub struct Request {
    pub agent: usize,
    pub mailbox: ByteString,
    pub host: usize,
    pub work: Work,
    pub id: ByteString,
    pub deadline: Option<Millis>,
    /// The unanswered request of a stopped worker that the client repeats with this one.
    pub repeats: Option<RequestNo>,
    /// The worker that sent it stopped, so no caller waits for the answer.
    pub caller_is_gone: bool,
    /// The client cancelled it and no longer waits.
    pub cancelled: bool,
    /// It was withdrawn, and that is not confirmed. If its end is lost with a link, the caller waits until its deadline.
    pub in_withdrawal: bool,
    /// The answer that the caller received.
    pub received: Option<WireAnswer>,
    /// That answer had no RESULT.
    pub unwritten: Option<Unwritten>,
    /// The caller stopped waiting because the deadline passed, or because the broker reported the request as withdrawn.
    pub timed_out: bool,
    pub effects: u64,
    pub starts: u64,
    /// Starts since START may have been lost, which happens only to replay-safe calls.
    pub counted_starts: u32,
    /// The outcome in RESULT.
    pub ended: Option<Outcome>,
    /// A host wrote, or tried to write, a RESULT that says that it was cancelled. One whose sync failed may survive.
    pub cancel_was_written: bool,
    /// The last process of a host that started it.
    pub started_by: Option<u64>,
    /// The last process that replied.
    pub replied_by: Option<u64>,
    /// The number of crashes of the broker before that.
    pub replied_at: u64,
    /// A host replied that it was cancelled.
    pub cancel_is_acknowledged: bool,
    /// The process whose reply the broker receipted.
    pub settled_by: Option<u64>,
    /// The broker receipted an answer.
    pub answer_is_durable: bool,
}

impl Request {
    pub fn is_answered(&self) -> bool {
        self.received.is_some() || self.timed_out || self.cancelled
    }
}

/// When a process replied without RESULT: only if the broker crashes after that and another process of the host takes the
/// request, the call is decided again. The caller may have the answer by then, or get it from a batch that the crash tore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unwritten {
    broker_crashes: u64,
    /// The process that replied.
    process: Option<u64>,
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
    /// Calls whose deadline passed at the broker.
    pub expired: u64,
    /// Answers to calls that reached the attempt limit.
    pub poisoned: u64,
    /// Answers to calls that were not run.
    pub refused: u64,
    /// Answers to calls that were cancelled.
    pub cancelled: u64,
    /// Answers that a caller received more than once.
    pub sent_again: u64,
    /// Accepted tasks.
    pub tasks: u64,
    /// Fail-fast calls that were withdrawn.
    pub withdrawn: u64,
    /// Requests that were delivered to a journal that may have forgotten them.
    pub unsure: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.effects += other.effects;
        self.results += other.results;
        self.unknown += other.unknown;
        self.joined += other.joined;
        self.expired += other.expired;
        self.poisoned += other.poisoned;
        self.refused += other.refused;
        self.cancelled += other.cancelled;
        self.sent_again += other.sent_again;
        self.tasks += other.tasks;
        self.withdrawn += other.withdrawn;
        self.unsure += other.unsure;
    }
}

#[derive(Default)]
pub struct Oracle {
    pub requests: Vec<Request>,
    pub tally: Tally,
    by_id: BTreeMap<ByteString, RequestNo>,
    /// The call of each run of a tool.
    runs: Vec<RequestNo>,
    /// Calls for which a host wrote, or began to write, START.
    started: BTreeSet<ByteString>,
    /// Calls that were delivered to a journal that may have forgotten them.
    unsure: BTreeSet<ByteString>,
    /// Calls that an operator cancelled. Their client may make them again, also if the server answered in spite of it.
    pub operator_cancelled: BTreeSet<ByteString>,
    /// Hosts whose journal was lost, damaged or replaced.
    forgetful: BTreeSet<usize>,
    /// The first outcome that was reported for a call, which may have had no RESULT.
    first_outcome: BTreeMap<ByteString, (Outcome, Option<Unwritten>)>,
    broker_crashes: u64,
    /// The reply that a tag of a mailbox stands for.
    tags: BTreeMap<(ByteString, Seq), ByteString>,
    /// Replies that were acknowledged since the broker's last crash, as mailbox and id.
    acked: BTreeSet<(ByteString, ByteString)>,
    /// Calls whose RESULT was lost: in a machine crash before it was synced, or by corruption.
    in_doubt: BTreeSet<ByteString>,
    /// Ids of replies that no journal has.
    pub unrecorded: BTreeSet<ByteString>,
    /// The earlier call whose answer a call shares.
    joined_to: BTreeMap<ByteString, ByteString>,
    /// The truth at the time of an inspection, by its id.
    inspections: BTreeMap<ByteString, joins::Truth>,
    /// The id of the reply in the RESULT of a call.
    pub reply_ids: BTreeMap<ByteString, ByteString>,
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

    pub fn find(&self, mailbox: &ByteString, id: &ByteString) -> Option<RequestNo> {
        self.by_id.get(id).copied().filter(|no| self.requests[*no].mailbox == *mailbox)
    }

    pub fn number(&self, key: &CallKey) -> u64 {
        self.by_id.get(&key.id).map_or(u64::MAX, |no| *no as u64)
    }

    /// A host is about to write START.
    pub fn writes_start(&mut self, key: &CallKey) {
        self.started.insert(key.id.clone());
        // A join that a crash has undone does not count.
        self.joined_to.remove(&key.id);
    }

    /// A host writes RESULT.
    pub fn writes_result(&mut self, key: &CallKey, outcome: Outcome) {
        if let Some(no) = self.by_id.get(&key.id) {
            self.requests[*no].ended = Some(outcome);
            self.requests[*no].cancel_was_written |= [Outcome::Cancelled, CANCELLED].contains(&outcome);
        }
    }

    /// RESULT could not be written.
    pub fn result_failed(&mut self, key: &CallKey) {
        if let Some(no) = self.by_id.get(&key.id) {
            self.requests[*no].ended = None;
        }
    }

    /// A call reaches a journal that may have forgotten it.
    pub fn is_unsure(&mut self, key: &CallKey) {
        self.tally.unsure += 1;
        self.unsure.insert(key.id.clone());
    }

    /// The journal of a host was lost, damaged or replaced.
    pub fn forgets(&mut self, host: usize) {
        self.forgetful.insert(host);
    }

    pub fn is_forgetful(&self, host: usize) -> bool {
        self.forgetful.contains(&host)
    }

    /// Whether the call may be started again because host and broker forgot it: the journal was lost or replaced, and a
    /// task is only there.
    fn is_lost_twice(&self, request: &Request) -> bool {
        self.forgetful.contains(&request.host) && request.work.task
    }

    /// An answer to the call that its caller receives now has no RESULT.
    fn unwritten(request: &Request) -> Option<Unwritten> {
        let unwritten = Unwritten { broker_crashes: request.replied_at, process: request.replied_by };
        request.ended.is_none().then_some(unwritten)
    }

    /// Whether the process may decide the call again although its caller has an answer.
    fn is_undone(&self, unwritten: Option<Unwritten>, process: Option<u64>) -> bool {
        unwritten.is_some_and(|then| then.broker_crashes < self.broker_crashes && then.process != process)
    }

    /// A crash or corruption lost the RESULT of these calls.
    pub fn ends_lost<'a>(&mut self, ended: impl Iterator<Item = &'a CallKey>) {
        self.in_doubt.extend(ended.map(|key| key.id.clone()));
    }

    /// A machine crash may have lost unsynced entries: those of replay-safe calls.
    pub fn starts_lost(&mut self, host: usize) {
        self.requests.iter_mut().filter(|request| request.host == host).for_each(|request| request.counted_starts = 0);
    }

    /// Called when all faults have ended and no work remains.
    pub fn check_ends(&mut self) {
        let is_lost = |request: &&Request| !request.is_answered() && !request.caller_is_gone && !request.in_withdrawal;
        let lost = self.requests.iter().find(is_lost);
        if let Some(request) = lost {
            self.violated(format!("{} was never answered", request.id));
        }
    }
}
