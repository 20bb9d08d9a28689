//! Attempts at the server: connection, START, the server's answer or death, and further attempts.
//!
//! A request is sent only after its START is as durable as the call requires. It is sent again only if the server
//! certainly did not take it, or if the operator marked it replay-safe.

use crate::admission::not_journaled;
use crate::call::State;
use crate::cancel::{Cancelled, Cause};
use crate::circuit_breaker::{Entry, Health};
use crate::effect::{Answer, Effect, Failure, Record};
use crate::event::CallNo;
use crate::machine::{CallMachine, Context};
use crate::planted::PlantedBug;
use crate::request::{Origin, SessionHold};
use std::sync::Arc;
use toolbus_journal::{End, JournalError, Replay, Wait};

impl<A: Clone> CallMachine<A> {
    pub(crate) fn connect(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        if self.must_leave(no) {
            return self.pass_on(no, cx);
        }
        self.set_state(no, State::Connecting);
        self.wait_until(no, cx.now.ms + self.options.wait_limit);
        cx.out.push(Effect::Connect { call: no });
    }

    /// During a drain no attempt starts; a call without a START for its next attempt is left to the next host.
    fn must_leave(&self, no: CallNo) -> bool {
        let is_begun = self.calls.get(&no).is_some_and(|call| call.attempt_begun);
        self.draining && !is_begun && !self.is_planted(PlantedBug::DrainStarts)
    }

    pub(crate) fn connected(&mut self, no: CallNo, outcome: Result<(), A>, cx: &mut Context<'_, A>) {
        let Some(call) = self.get(no).filter(|call| matches!(call.state, State::Connecting)) else { return };
        match outcome {
            Ok(()) => {
                // The rules, the names or the approved definitions may have changed while it waited.
                self.recheck(no, cx);
            }
            Err(error) => {
                call.health = Health::Failed;
                if !self.ended_by_shutdown(no, cx) {
                    self.finish(no, Answer::Given(error), End::Failed, cx);
                }
            }
        }
    }

    /// Asks for the verdict by the current rules, right before the call starts or is sent.
    pub(crate) fn recheck(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        self.set_state(no, State::Rechecking);
        if let Some(call) = self.get(no) {
            call.is_verdict_outdated = false;
        }
        cx.out.push(Effect::Authorise { call: no, again: true });
    }

    /// The host answers the request without the server, or can't send it.
    pub(crate) fn refused_by_host(&mut self, no: CallNo, answer: A, cx: &mut Context<'_, A>) {
        let Some(call) = self.calls.get(&no) else { return };
        if matches!(
            call.state,
            State::Connecting | State::Rechecking | State::Sending | State::Running | State::Cancelling
        ) {
            self.finish(no, Answer::Given(answer), End::Failed, cx);
        }
    }

    /// Journals START, unless the request needs none or has one in this attempt.
    pub(crate) fn start(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        if self.must_leave(no) {
            return self.pass_on(no, cx);
        }
        if !self.is_planted(PlantedBug::DeadlineIgnored) && self.end_overdue(no, cx) {
            return;
        }
        if self.is_planted(PlantedBug::StartSkipped) {
            return self.send_in_order(no, cx);
        }
        let skips_start = self.is_planted(PlantedBug::StartNotWritten);
        let early = self.is_planted(PlantedBug::StartNotSynced);
        let Some(call) = self.get(no) else { return };
        if !call.request.has_effect || call.attempt_begun || skips_start {
            call.may_send = true;
            return self.send_in_order(no, cx);
        }
        let (attempt, safe) = (call.attempt, call.replay == Replay::Safe);
        (call.attempt_begun, call.begun) = (true, Some(call.replay));
        // A replay-safe call need not wait: if START is lost, it runs again.
        let wait = if safe { Wait::Written } else { Wait::Synced };
        self.set_state(no, State::Starting);
        cx.out.push(Effect::Append { call: no, record: Record::Start { attempt, safe }, wait });
        if early && !safe {
            self.start_written(no, Ok(()), cx);
        }
    }

    pub(crate) fn start_written(&mut self, no: CallNo, outcome: Result<(), JournalError>, cx: &mut Context<'_, A>) {
        let Some(call) = self.get(no).filter(|call| matches!(call.state, State::Starting)) else { return };
        if let Err(error) = outcome {
            let is_first = call.attempt == 1;
            call.attempt_begun = false;
            if is_first {
                call.begun = None;
            }
            return self.fail(no, not_journaled(error), End::Failed, cx);
        }
        call.may_send = true;
        let is_outdated = call.is_verdict_outdated;
        // From here on every end is journaled. A call that was cancelled or expired meanwhile is not sent.
        if self.end_cancelled(no, cx) {
            return;
        }
        if is_outdated { self.recheck(no, cx) } else { self.send_in_order(no, cx) }
    }

    pub(crate) fn send_in_order(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        let session = self.session_of(no).filter(|_| !self.is_planted(PlantedBug::OrderIgnored));
        let is_next =
            session.is_none_or(|session| !self.orders.contains(&session, no) || self.orders.is_first(&session, no));
        if !is_next {
            return self.set_state(no, State::Ready);
        }
        if !self.is_planted(PlantedBug::DeadlineIgnored) && self.end_overdue(no, cx) {
            return;
        }
        if !self.calls.get(&no).is_some_and(|call| call.may_send) {
            return self.refuse_unstarted(no, cx);
        }
        let longest = self.options.wait_limit;
        let limit =
            self.calls.get(&no).and_then(|call| call.request.timeout).map_or(longest, |limit| limit.min(longest));
        self.set_state(no, State::Sending);
        self.wait_until(no, cx.now.ms.saturating_add(limit));
        cx.out.push(Effect::Send { call: no });
    }

    /// Only a bug leads here. The call ends rather than run without a trace in the journal, and never runs again.
    fn refuse_unstarted(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        const RULE: &str = "no request is sent before its START is written";
        debug_assert!(self.is_planted(PlantedBug::StartSkipped), "{RULE}");
        let Some(call) = self.get(no) else { return };
        call.always_journaled = true;
        self.give_up_wait(no, Answer::Failure(Failure::BrokenInvariant(RULE)), End::Unknown, cx);
    }

    pub(crate) fn sent(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        let Some(call) = self.get(no).filter(|call| matches!(call.state, State::Sending)) else { return };
        let until = call.request.timeout.map(|timeout| cx.now.ms.saturating_add(timeout));
        let holds = matches!(call.request.session, Some((_, SessionHold::UntilAnswered)));
        self.set_state(no, State::Running);
        if let Some(call) = self.get(no) {
            call.wait_until = until;
        }
        if !holds {
            self.leave_order(no, cx);
        }
        self.cancel_at_server(no, cx);
    }

    pub(crate) fn not_taken(&mut self, no: CallNo, error: A, cx: &mut Context<'_, A>) {
        let (max, shutdown) = (self.options.max_connections, self.shutdown);
        let Some(call) = self.get(no) else { return };
        match call.state {
            State::Cancelling => {
                self.end_cancelled(no, cx);
            }
            State::Sending | State::Running => {
                call.not_taken += 1;
                if call.not_taken < max && call.cancelled.is_none() && !shutdown {
                    return self.connect(no, cx);
                }
                call.health = Health::Failed;
                if !self.end_cancelled(no, cx) {
                    self.finish(no, Answer::Given(error), End::Failed, cx);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn server_answered(&mut self, no: CallNo, answer: A, end: End, cx: &mut Context<'_, A>) {
        let Some(call) = self.get(no) else { return };
        if matches!(call.state, State::Sending | State::Running | State::Cancelling) {
            call.health = Health::Answered;
            self.finish(no, Answer::Given(answer), end, cx);
        }
    }

    pub(crate) fn server_died(&mut self, no: CallNo, error: A, why: String, retry: bool, cx: &mut Context<'_, A>) {
        let runs_unsafe = self.is_planted(PlantedBug::DiedRuns);
        let Some(call) = self.get(no) else { return };
        match call.state {
            State::Cancelling => {
                self.end_cancelled(no, cx);
                return;
            }
            State::Sending | State::Running => {}
            _ => return,
        }
        if self.ended_by_shutdown(no, cx) {
            return;
        }
        let Some(call) = self.get(no) else { return };
        call.health = Health::Failed;
        call.history.push(format!("attempt {}: {why}", call.attempt));
        let is_safe = call.begun == Some(Replay::Safe) || runs_unsafe;
        let may_retry = call.request.has_effect && is_safe && retry && call.cancelled.is_none();
        if !may_retry {
            return self.finish(no, Answer::Given(error), End::Failed, cx);
        }
        if self.draining {
            // The next host runs it again.
            return self.pass_on(no, cx);
        }
        self.next_attempt(no, cx);
    }

    /// Starts a replay-safe call again, or dead-letters it.
    fn next_attempt(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        let max = if self.is_planted(PlantedBug::AttemptsUnlimited) { u32::MAX } else { self.options.max_attempts };
        let Some(call) = self.get(no) else { return };
        if call.attempt >= max {
            return self.dead_letter(no, cx);
        }
        call.attempt += 1;
        (call.attempt_begun, call.may_send, call.not_taken) = (false, false, 0);
        let server = call.request.server;
        self.note_health(server, Entry::Allowed, Health::Failed, cx);
        self.connect(no, cx);
    }

    /// Dead-letters a call before it is answered.
    pub(crate) fn dead_letter(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        let Some(call) = self.get(no) else { return };
        call.always_journaled = true;
        let record = Record::Dead { attempts: call.attempt, history: call.history.clone() };
        self.set_state(no, State::DeadLettering);
        cx.out.push(Effect::Append { call: no, record, wait: Wait::Synced });
    }

    pub(crate) fn dead_letter_written(&mut self, no: CallNo, _: Result<(), JournalError>, cx: &mut Context<'_, A>) {
        // If the dead letter could not be written, RESULT can't either.
        let Some(call) = self.calls.get(&no).filter(|call| matches!(call.state, State::DeadLettering)) else { return };
        let attempts = call.attempt;
        self.fail(no, Failure::Poisoned { attempts }, End::Failed, cx);
    }

    /// What becomes of a call whose server this host closes at its shutdown. One that was not started, may run twice, or is
    /// a task is left to the next host; the outcome of any other is unknown. Returns whether the call has ended.
    fn ended_by_shutdown(&mut self, no: CallNo, cx: &mut Context<'_, A>) -> bool {
        if !self.shutdown || self.is_planted(PlantedBug::ShutdownAnswers) {
            return false;
        }
        let Some(call) = self.get(no) else { return true };
        // A server that this host closes has not failed.
        call.health = Health::Unclear;
        if call.begun == Some(Replay::Never) && !call.accepted {
            let (request, attempt) = (call.request.clone(), call.attempt);
            let start = Arc::new(self.start_of(&request, attempt, cx.now.wall, false));
            self.fail(no, Failure::OutcomeUnknown(start), End::Unknown, cx);
        } else {
            self.pass_on(no, cx);
        }
        true
    }

    /// The server did not answer in time.
    pub(crate) fn time_out(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        if self.is_planted(PlantedBug::TimeoutIgnored) {
            return;
        }
        let reason = Some("the call exceeded its time limit".to_owned());
        cx.out.push(Effect::CancelAtServer { call: no, reason });
        self.fail(no, Failure::Timeout, End::Failed, cx);
    }

    /// The code that carries out the effects of a call panicked: whether the server got the request is not known.
    pub(crate) fn crashed(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        let Some(call) = self.get(no) else { return };
        // The acceptance of a task may not have been sent.
        if call.accepted && matches!(call.request.origin, Origin::Mailbox { .. }) {
            cx.out.push(Effect::Accepted { call: no });
        }
        match call.state {
            State::Finishing { .. } | State::DeadLettering => {}
            // The entry is on its way to the journal. A redelivered request will be answered with the accepted task, so this
            // one has to be, too.
            State::Accepting => {
                call.cancelled.get_or_insert(Cancelled { cause: Cause::Crashed, reason: None });
            }
            _ => {
                call.always_journaled |= call.request.has_effect;
                self.give_up_wait(no, Answer::Failure(Failure::Crashed), End::Unknown, cx);
            }
        }
    }

    pub(crate) fn note_health(&mut self, server: usize, entry: Entry, health: Health, cx: &mut Context<'_, A>) {
        let change = self.breakers.get_mut(server).and_then(|breaker| breaker.end(entry, health, cx.now.ms));
        if let Some(change) = change {
            cx.out.push(Effect::Breaker { server, change });
        }
    }
}
