//! What reaches callers: one true answer for each, the same each time it is sent.

use super::{Oracle, Request, RequestNo};
use crate::simulation::calls::wire::{
    CALLER_GONE, HOST_OFFLINE, JOINED_CANCELLED, NOT_JOURNALED, Outcome, POISONED, RESULT_NOT_JOURNALED, UNKNOWN,
    WireAnswer,
};
use bytestring::ByteString;
use toolbus_journal::CallKey;

impl Oracle {
    /// A caller receives an answer.
    pub fn answered(&mut self, no: RequestNo, answer: WireAnswer) {
        let request = &self.requests[no];
        if request.received.as_ref() == Some(&answer) {
            self.tally.sent_again += 1;
            return;
        }
        let replay_safe = request.work.is_replay_safe();
        if let Some(received) = &request.received {
            // The caller keeps the answer that it received first.
            // The acceptance of a task is not recorded as a reply.
            let process = request.replied_by.filter(|_| answer.outcome != Outcome::Accepted);
            let is_excused = self.may_run_again(no)
                || self.is_undone(request.unwritten, process)
                || self.may_become_known(&request.id, received.outcome)
                || self.is_lost_twice(request)
                || self.is_in_doubt(&answer);
            if !is_excused {
                let what = format!("the caller of {} got two answers: {received:?}, then {answer:?}", request.id);
                self.violated(what);
            }
            return;
        }
        self.check_origin(no, &answer);
        if answer.outcome != Outcome::Accepted {
            self.check_answer(&answer, replay_safe);
        }
        self.count(&answer);
        let is_accepted = answer.outcome == Outcome::Accepted;
        self.requests[no].unwritten = Self::unwritten(&self.requests[no]).filter(|_| !is_accepted);
        self.requests[no].received = Some(answer);
    }

    /// The worker itself answers its client, for a call that the host does not and will not run.
    pub fn not_run(&mut self, no: RequestNo) {
        let answer = WireAnswer { outcome: HOST_OFFLINE, of: self.requests[no].id.clone(), joined: false };
        self.answered(no, answer);
        self.requests[no].unwritten = None;
    }

    /// An answer must be true and equal to those given before.
    fn check_answer(&mut self, answer: &WireAnswer, replay_safe: bool) {
        // A joined call reports the cancellation of the other one in its own words.
        let root = self.root_of(&answer.of);
        // A joined call whose own RESULT was lost says nothing about the other one.
        let is_own = root != answer.of && self.is_in_doubt(answer);
        if answer.outcome != JOINED_CANCELLED && !is_own {
            let request = self.by_id.get(&root).map(|no| &self.requests[*no]);
            let (unwritten, process) =
                request.map_or((None, None), |request| (Self::unwritten(request), request.replied_by));
            let is_lost_twice = request.is_some_and(|request| self.is_lost_twice(request));
            let (first, unwritten) = *self.first_outcome.entry(root.clone()).or_insert((answer.outcome, unwritten));
            let is_excused = is_lost_twice
                || self.by_id.get(&answer.of).is_some_and(|no| self.may_run_again(*no))
                || self.is_undone(unwritten, process)
                || self.may_become_known(&root, first)
                // A call that joined it while it was interrupted; then it ran again.
                || (first.is_unknown() && request.is_some_and(|request| request.work.is_replay_safe()))
                // START may be in the journal although its sync failed.
                || (first == NOT_JOURNALED && answer.outcome.is_unknown())
                // The answer that a joined call shares could not be written for it.
                || (answer.outcome == RESULT_NOT_JOURNALED && root != answer.of)
                || self.is_in_doubt(answer);
            if first != answer.outcome && !is_excused {
                self.violated(format!("{} changed from {first:?} to {:?}", answer.of, answer.outcome));
            }
        }
        self.check_outcome(answer, replay_safe);
    }

    /// Whether a call that was reported as unknown may have another answer later: RESULT is in the journal although its sync
    /// failed, or an earlier journal comes back.
    fn may_become_known(&self, id: &ByteString, outcome: Outcome) -> bool {
        outcome == RESULT_NOT_JOURNALED || (outcome.is_unknown() && self.is_forgotten(id))
    }

    /// Whether the call is replay-safe, and its RESULT was lost.
    fn may_run_again(&self, no: RequestNo) -> bool {
        let request = &self.requests[no];
        let is_lost = self.in_doubt.contains(&request.id) || self.forgetful.contains(&request.host);
        request.work.is_replay_safe() && is_lost
    }

    /// Whether the result of the call may have been lost, so that it is reported as unknown.
    fn is_in_doubt(&self, answer: &WireAnswer) -> bool {
        let is_lost = |of: &ByteString| self.in_doubt.contains(of) || self.unsure.contains(of) || self.is_forgotten(of);
        // Of a joined call, its own RESULT or that of the call that it joined.
        answer.outcome.is_unknown() && (is_lost(&self.root_of(&answer.of)) || is_lost(&answer.of))
    }

    fn is_forgotten(&self, of: &ByteString) -> bool {
        self.by_id.get(of).is_some_and(|no| self.forgetful.contains(&self.requests[*no].host))
    }

    /// Tasks whose callers received the acceptance.
    pub fn accepted(&self) -> Vec<RequestNo> {
        let is_accepted =
            |request: &Request| request.received.as_ref().is_some_and(|answer| answer.outcome == Outcome::Accepted);
        (0..self.requests.len()).filter(|no| is_accepted(&self.requests[*no])).collect()
    }

    /// A client queried the result of a task.
    pub fn task_answered(&mut self, no: RequestNo, answer: &WireAnswer) {
        let replay_safe = self.requests[no].work.is_replay_safe();
        if answer.of != self.requests[no].id {
            self.violated(format!("task {} shows the answer of {}", self.requests[no].id, answer.of));
        }
        self.check_answer(answer, replay_safe);
    }

    /// An answer belongs to the call itself or, if it was joined, to an equal call of the same agent.
    fn check_origin(&mut self, no: RequestNo, answer: &WireAnswer) {
        let Some(of) = self.by_id.get(&answer.of).copied() else {
            return self.violated("an answer names an unknown call");
        };
        if answer.joined && (of == no || !self.are_equal(no, of)) {
            let id = self.requests[no].id.clone();
            self.violated(format!("{id} was joined to {}, which is not the same call", answer.of));
        } else if !answer.joined && of != no {
            let id = self.requests[no].id.clone();
            self.violated(format!("{id} got the answer of {}", answer.of));
        }
    }

    fn check_outcome(&mut self, answer: &WireAnswer, replay_safe: bool) {
        let of = &self.root_of(&answer.of);
        let Some(no) = self.by_id.get(of).copied() else { return };
        let request = &self.requests[no];
        let is_wrong = match answer.outcome {
            Outcome::Result(run) | Outcome::Failed(run) | Outcome::Died(run) => {
                // A joined call that is replay-safe may run after all.
                let own = self.by_id.get(&answer.of).filter(|_| replay_safe);
                ![Some(&no), own].contains(&self.runs.get(run))
            }
            UNKNOWN => !self.started.contains(of) && !self.unsure.contains(of),
            POISONED => !self.started.contains(of),
            JOINED_CANCELLED => request.ended == Some(CALLER_GONE),
            outcome => outcome.says_not_run() && request.starts > 0 && !replay_safe && !self.is_lost_twice(request),
        };
        if is_wrong {
            self.violated(format!("wrong answer for {of}: {:?}", answer.outcome));
        }
    }

    fn count(&mut self, answer: &WireAnswer) {
        let tally = &mut self.tally;
        tally.joined += u64::from(answer.joined);
        match answer.outcome {
            Outcome::Result(_) | Outcome::Failed(_) => tally.results += 1,
            Outcome::Accepted => tally.tasks += 1,
            UNKNOWN => tally.unknown += 1,
            POISONED => tally.poisoned += 1,
            Outcome::Cancelled => tally.cancelled += 1,
            other if other.says_not_run() => tally.refused += 1,
            _ => {}
        }
    }

    pub fn outcome_of(&self, no: RequestNo) -> Option<Outcome> {
        self.requests[no].received.as_ref().map(|answer| answer.outcome)
    }

    /// The deadline passed, or the request was withdrawn: reported by the broker, or noticed by the worker.
    pub fn timed_out(&mut self, no: RequestNo) {
        self.requests[no].timed_out = true;
    }

    /// The broker receipted the final reply to a call.
    pub fn reply_is_durable(&mut self, key: &CallKey, process: u64) {
        if let Some(no) = self.by_id.get(&key.id) {
            // The receipt of a reply that was collected at once precedes the record that its request is settled.
            self.requests[*no].answer_is_durable |= self.requests[*no].ended.is_some();
            self.requests[*no].settled_by = Some(process);
        }
    }
}
