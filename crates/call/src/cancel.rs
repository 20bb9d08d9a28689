//! Cancellation, deadlines and time limits.

use crate::call::State;
use crate::drain::is_handed_back;
use crate::effect::{Answer, Effect, Failure};
use crate::event::CallNo;
use crate::machine::{CallMachine, Context};
use crate::planted::PlantedBug;
use bytestring::ByteString;
use toolbus_journal::End;

/// Why a call is cancelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// Its caller cancelled it.
    Caller,
    /// The caller stayed disconnected.
    CallerGone,
    /// An operator or the owner cancelled it through the admin API. The caller still waits, so it gets an error.
    Admin,
    /// The agent's credential was revoked.
    Revoked,
    /// The code that carries out its effects panicked.
    Crashed,
    /// The caller's deadline passed.
    Expired,
    /// The rule's time limit, with its name, passed.
    TimeLimit(String),
}

/// The first cancellation of a call; later ones have no effect.
#[derive(Debug, Clone)]
pub(crate) struct Cancelled {
    pub cause: Cause,
    pub reason: Option<String>,
}

impl Cancelled {
    fn answer<A>(&self, is_handed_back: bool) -> (Answer<A>, End) {
        let reason = || self.reason.clone().unwrap_or_else(|| "cancelled".to_owned());
        match &self.cause {
            // Its worker may have withdrawn it to run it at another host.
            Cause::Caller if is_handed_back => (Answer::HandedBack, End::Cancelled),
            Cause::Caller => (Answer::Cancelled, End::Cancelled),
            Cause::CallerGone => (Answer::Failure(Failure::CallerGone), End::Failed),
            Cause::Admin | Cause::Revoked => (Answer::Failure(Failure::Cancelled(reason())), End::Cancelled),
            Cause::Crashed => (Answer::Failure(Failure::Crashed), End::Unknown),
            Cause::Expired => (Answer::Failure(Failure::Expired), End::Failed),
            Cause::TimeLimit(which) => (Answer::Failure(Failure::TimeLimit(which.clone())), End::Failed),
        }
    }
}

impl<A: Clone> CallMachine<A> {
    pub(crate) fn cancel(&mut self, no: CallNo, cause: Cause, reason: Option<String>, cx: &mut Context<'_, A>) {
        let is_lost = self.is_planted(PlantedBug::CancelLost);
        let latest = cx.now.ms.saturating_add(self.options.cancel_grace);
        let Some(call) = self.get(no).filter(|call| call.cancelled.is_none()) else { return };
        match call.state {
            // The answer is on its way.
            State::Finishing { .. } | State::DeadLettering => return,
            State::Starting if is_lost => return,
            _ => call.cancelled = Some(Cancelled { cause, reason }),
        }
        match call.state {
            // Decided when the journal or the connection has reported.
            State::Starting | State::Accepting => {}
            State::Sending => call.wait_until = Some(call.wait_until.map_or(latest, |until| until.min(latest))),
            State::Running => self.cancel_at_server(no, cx),
            _ => {
                self.end_cancelled(no, cx);
            }
        }
    }

    /// Tells the server, and waits a little for its answer.
    pub(crate) fn cancel_at_server(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        let until = cx.now.ms + self.options.cancel_grace;
        let Some(Some(cancelled)) = self.calls.get(&no).map(|call| &call.cancelled) else { return };
        cx.out.push(Effect::CancelAtServer { call: no, reason: cancelled.reason.clone() });
        self.set_state(no, State::Cancelling);
        self.wait_until(no, until);
    }

    /// Answers a call that was cancelled; returns false if it was not.
    pub(crate) fn end_cancelled(&mut self, no: CallNo, cx: &mut Context<'_, A>) -> bool {
        let Some(call) = self.calls.get(&no) else { return false };
        let Some(cancelled) = &call.cancelled else { return false };
        let (answer, end) = cancelled.answer(call.begun.is_none() && is_handed_back(call));
        self.give_up_wait(no, answer, end, cx);
        true
    }

    /// Cancels a call whose time limit or deadline has passed. Returns whether the call has ended or is being cancelled.
    pub(crate) fn end_overdue(&mut self, no: CallNo, cx: &mut Context<'_, A>) -> bool {
        let now = cx.now.ms;
        let Some(call) = self.calls.get(&no) else { return true };
        let cause = match (&call.limit, call.deadline) {
            (Some((at, which)), _) if *at <= now => Cause::TimeLimit(which.clone()),
            (_, Some(at)) if at <= now => Cause::Expired,
            _ => return false,
        };
        if matches!(call.state, State::Starting | State::Accepting | State::Finishing { .. } | State::DeadLettering)
            && !call.may_send
        {
            return false;
        }
        let is_starting = matches!(call.state, State::Starting);
        self.cancel(no, cause, None, cx);
        if is_starting {
            // Its START is written, and it has not been sent.
            self.end_cancelled(no, cx);
        }
        true
    }

    pub(crate) fn revoked(&mut self, agent: &ByteString, cx: &mut Context<'_, A>) {
        let is_own = |call: &crate::call::Call<A>| call.request.key.agent() == &**agent;
        let own: Vec<CallNo> = self.calls.iter().filter(|(_, call)| is_own(call)).map(|(no, _)| *no).collect();
        for no in own {
            self.cancel(no, Cause::Revoked, Some("the agent's credential was revoked".to_owned()), cx);
        }
    }

    /// Authorises calls again that have not been sent, and waits for the verdicts.
    pub(crate) fn policy_changed(&mut self, cx: &mut Context<'_, A>) {
        let all: Vec<CallNo> = self.calls.keys().copied().collect();
        for no in all {
            let Some(call) = self.get(no) else { continue };
            match call.state {
                // Authorised again before START.
                State::Authorising | State::Accepting => {}
                // The verdict may be that of the old rules, or the journal has to report first.
                State::Rechecking | State::Starting => call.is_verdict_outdated = true,
                State::Ready => self.recheck(no, cx),
                // It is too late: the server may have the request, or the call is answered.
                State::Sending
                | State::Running
                | State::Cancelling
                | State::DeadLettering
                | State::Finishing { .. } => {}
                _ => cx.out.push(Effect::Authorise { call: no, again: true }),
            }
        }
    }
}
