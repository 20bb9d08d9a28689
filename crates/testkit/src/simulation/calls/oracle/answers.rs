//! What reaches callers: one true answer for each, the same each time it is sent.

use super::{Oracle, Request, RequestNo};
use crate::simulation::calls::wire::{CALLER_GONE, JOINED_CANCELLED, Outcome, POISONED, UNKNOWN, WireAnswer};
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
            let is_undone = request.is_unwritten || received.outcome.is_unknown();
            let is_excused = replay_safe || is_undone || self.is_in_doubt(&answer) || self.is_lost_twice(request);
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
        self.requests[no].is_unwritten = self.requests[no].ended.is_none() && answer.outcome != Outcome::Accepted;
        self.requests[no].received = Some(answer);
    }

    /// An answer must be true and equal to those given before.
    fn check_answer(&mut self, answer: &WireAnswer, replay_safe: bool) {
        // A joined call reports the cancellation of the other one in its own words.
        if answer.outcome != JOINED_CANCELLED {
            let root = self.root_of(&answer.of);
            let request = self.by_id.get(&root).map(|no| &self.requests[*no]);
            let is_written = request.is_some_and(|request| request.ended.is_some());
            // It may have run again, and then the second run has an answer of its own.
            let is_lost_twice = request.is_some_and(|request| self.is_lost_twice(request));
            let (first, is_written) = *self.first_outcome.entry(root).or_insert((answer.outcome, is_written));
            let is_undone = first.is_unknown() || !is_written || is_lost_twice;
            if first != answer.outcome && !replay_safe && !is_undone && !self.is_in_doubt(answer) {
                self.violated(format!("{} changed from {first:?} to {:?}", answer.of, answer.outcome));
            }
        }
        self.check_outcome(answer, replay_safe);
    }

    /// Whether the result of the call may have been lost, so that it is reported as unknown.
    fn is_in_doubt(&self, answer: &WireAnswer) -> bool {
        let of = &self.root_of(&answer.of);
        answer.outcome.is_unknown() && (self.in_doubt.contains(of) || self.unsure.contains(of) || self.is_forgotten(of))
    }

    fn is_forgotten(&self, of: &bytestring::ByteString) -> bool {
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
