//! What reaches servers: at most one start of a call, only with a START in the journal, never after its answer.

use super::{Oracle, Request, RequestNo, RunNo};
use crate::simulation::calls::wire::{CANCELLED, Outcome, WireAnswer};
use toolbus_call::JoinMode;
use toolbus_journal::CallKey;

/// A start of a tool, as its host sees it.
pub struct Start<'a> {
    pub key: &'a CallKey,
    /// The process of the host.
    pub process: u64,
    /// Whether START is in the journal: durable, or written if the call is replay-safe.
    pub is_journaled: bool,
    pub max_attempts: u32,
}

impl Oracle {
    /// A server receives a call. Returns the number of this run.
    pub fn tool_started(&mut self, start: &Start<'_>) -> RunNo {
        let id = &start.key.id;
        let no = self.by_id.get(id).copied().unwrap_or_default();
        self.requests[no].starts += 1;
        self.requests[no].counted_starts += 1;
        self.requests[no].started_by = Some(start.process);
        if let Some(wrong) = self.wrong_start(no, start) {
            self.violated(format!("{} was started {wrong}", start.key.id));
        }
        self.runs.push(no);
        self.runs.len() - 1
    }

    fn wrong_start(&self, no: RequestNo, start: &Start<'_>) -> Option<String> {
        let request = &self.requests[no];
        let (safe, is_forgotten) = (request.work.is_replay_safe(), self.forgetful.contains(&request.host));
        let is_undone = self.is_undone(request.unwritten, Some(start.process));
        let is_final = |answer: &WireAnswer| answer.outcome != Outcome::Accepted && !is_undone;
        let was_answered = request.received.as_ref().is_some_and(is_final)
            || request.answer_is_durable
            || request.replied_by == Some(start.process);
        // A task whose entry could not be synced is reported as unknown, and may be found by the next process.
        let is_unknown_task = request.work.task && request.received.as_ref().is_none_or(|it| it.outcome.is_unknown());
        let is_answer_lost = safe && (is_forgotten || self.in_doubt.contains(&start.key.id));
        // Of two hosts of one name, one reports as unknown what the other one is about to start.
        let is_unsure = self.unsure.contains(&start.key.id)
            && request.received.as_ref().is_none_or(|answer| answer.outcome.is_unknown());
        let is_excused = is_unknown_task || is_answer_lost || is_unsure || self.is_lost_twice(request);
        let wrong = match () {
            () if !start.is_journaled => "without START in the journal".to_owned(),
            () if request.starts > 1 && !safe && !self.is_lost_twice(request) => format!("{} times", request.starts),
            () if safe && request.counted_starts > start.max_attempts && !is_forgotten => {
                format!("{} times, more than the attempt limit", request.counted_starts)
            }
            () if request.cancel_is_acknowledged && !is_excused => "after its cancellation was acknowledged".to_owned(),
            () if was_answered && !is_excused => "after it was answered".to_owned(),
            () => return None,
        };
        Some(wrong)
    }

    /// The tool has its effect.
    pub fn tool_acted(&mut self, run: RunNo, join: JoinMode) {
        self.tally.effects += 1;
        let no = self.runs[run];
        self.requests[no].effects += 1;
        let request = &self.requests[no];
        if request.work.is_replay_safe() {
            return;
        }
        if request.effects > 1 && !self.is_lost_twice(request) {
            let (id, effects) = (&request.id, request.effects);
            return self.violated(format!("{id} had {effects} effects"));
        }
        if join != JoinMode::Never && !request.work.task {
            self.check_repeats(no);
        }
    }

    /// A client that repeats a call after its worker stopped causes at most one effect, unless the answer of the earlier
    /// call was collected, or that call was cancelled.
    fn check_repeats(&mut self, no: RequestNo) {
        let chain: Vec<RequestNo> = std::iter::successors(Some(no), |no| self.requests[*no].repeats).collect();
        let request = &self.requests[no];
        let equals = |other: &&Request| {
            (other.agent, other.host, other.work.content()) == (request.agent, request.host, request.work.content())
        };
        // The latest equal call decides, so a call that is meant twice hides the earlier one.
        let others = self.requests.iter().filter(equals).count();
        let is_cancelled = |no: &RequestNo| {
            let request = &self.requests[*no];
            request.cancel_was_written || self.operator_cancelled.contains(&request.id)
        };
        if self.forgetful.contains(&request.host) || others > chain.len() || chain.iter().any(is_cancelled) {
            return;
        }
        let is_joinable = |no: &RequestNo| {
            let earlier = &self.requests[*no];
            earlier.effects > 0 && earlier.caller_is_gone && earlier.received.is_none()
        };
        if let Some(earlier) = chain[1..].iter().find(|no| is_joinable(no)) {
            let (id, earlier) = (request.id.clone(), self.requests[*earlier].id.clone());
            self.violated(format!("{id} had an effect although {earlier}, which it repeats, had one"));
        }
    }

    /// A process of a host replies to a call.
    pub fn replies(&mut self, key: &CallKey, outcome: Outcome, process: u64) {
        let Some(no) = self.by_id.get(&key.id).copied() else { return };
        let request = &mut self.requests[no];
        (request.replied_by, request.replied_at) = (Some(process), self.broker_crashes);
        request.cancel_is_acknowledged |= [Outcome::Cancelled, CANCELLED].contains(&outcome);
        let request = &self.requests[no];
        if outcome == Outcome::Cancelled && !(request.cancelled || request.timed_out || request.in_withdrawal) {
            return self.violated(format!("{} was cancelled, and not by its client", key.id));
        }
        let is_excused = request.work.is_replay_safe() || self.is_lost_twice(request);
        if outcome.says_not_run() && request.starts > 0 && !is_excused {
            self.violated(format!("{} was started and is answered with {outcome:?}", key.id));
        }
    }
}
