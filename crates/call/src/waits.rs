//! What a call waits for before it may start: a connected caller, approval, its place in the session, and permits.

use crate::call::State;
use crate::effect::{Effect, Failure};
use crate::event::{CallNo, Millis};
use crate::machine::{CallMachine, Context};
use crate::orphans::Presence;
use crate::permits::{Holder, RateExceeded, Resource};
use crate::request::{Grant, Limit, SessionHold, SessionKey};
use bytestring::ByteString;
use toolbus_base::Share;
use toolbus_journal::End;
use toolbus_policy::LimitKind;

/// Time left for the reply when a call is given up before its deadline.
const REPLY_MARGIN: Millis = 100;
/// The share of all tasks of a server's permits, and of the tasks of one agent, as divisors: tasks must not starve calls.
const SHARE_OF_TASKS: usize = 2;
const SHARE_OF_AGENT_TASKS: usize = 4;

impl<A: Clone> CallMachine<A> {
    /// A request that was queued for longer than the grace starts only if its caller is connected: it would be cancelled as
    /// an orphan otherwise. If the broker can't tell, it starts: running an orphan once does no harm.
    pub(crate) fn wait_for_caller(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        let Some(call) = self.calls.get(&no) else { return };
        let is_old = self.options.caller_grace.is_some_and(|grace| call.request.age >= grace);
        let caller = call.request.key.caller.clone();
        if !is_old || call.accepted || self.joiners.contains_key(&no) {
            return self.apply_limits(no, cx);
        }
        self.follow_caller(no, cx);
        match self.presence_of(&caller) {
            Presence::Connected | Presence::Unknown => self.apply_limits(no, cx),
            Presence::Awaited => {
                self.set_state(no, State::AwaitingCaller);
                self.wait_until(no, cx.now.ms + self.options.wait_limit);
            }
            // Until it is cancelled as an orphan.
            Presence::Disconnected => self.set_state(no, State::AwaitingCaller),
        }
    }

    /// Counts the call against its rate limits, and waits for approval if its rule requires it.
    fn apply_limits(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        let now = cx.now.ms;
        let Some(call) = self.get(no) else { return };
        call.limited_from = now;
        call.set_time_limit();
        let (is_counted, asks) = (call.accepted, call.grant.ask && !call.approved && !call.request.continues);
        // A task was counted before it was accepted, perhaps by an earlier process.
        if !is_counted && !self.count_rates(no, cx) {
            return;
        }
        if asks { self.park(no, cx) } else { self.take_task_share(no, cx) }
    }

    /// Counts the call against its rate limits; refuses it if one is exceeded.
    pub(crate) fn count_rates(&mut self, no: CallNo, cx: &mut Context<'_, A>) -> bool {
        let Some(call) = self.calls.get(&no) else { return false };
        let limits = call.grant.limits.clone();
        self.count_against(no, &limits, cx)
    }

    fn count_against(&mut self, no: CallNo, limits: &[Limit], cx: &mut Context<'_, A>) -> bool {
        let Err(RateExceeded { kind, rate, wait }) = self.rates.count(limits, cx.now.ms) else { return true };
        self.fail(no, Failure::RateLimited { kind, rate, wait }, End::Failed, cx);
        false
    }

    /// Applies the rules in force to a call that waits. Counts it against rate limits that are new, if it was counted before;
    /// returns false if one refuses it. A call that has its permits keeps them: its successors in the session may have taken
    /// theirs after it, and it could wait for them forever.
    pub(crate) fn renew_grant(&mut self, no: CallNo, grant: Grant, cx: &mut Context<'_, A>) -> bool {
        let Some(call) = self.get(no) else { return false };
        let before = std::mem::replace(&mut call.grant, grant);
        let is_limited = matches!(
            call.state,
            State::Parked
                | State::TaskShare
                | State::Reserving
                | State::Ordered
                | State::Queued
                | State::Connecting
                | State::Rechecking
        );
        if is_limited {
            call.set_time_limit();
        }
        if (!is_limited && !call.accepted) || call.attempt_begun || call.grant.limits == before.limits {
            return true;
        }
        let had_rate = |kind: &LimitKind| before.limits.iter().any(|limit| limit.kind == *kind && limit.rate.is_some());
        let new: Vec<Limit> = call.grant.limits.iter().filter(|limit| !had_rate(&limit.kind)).cloned().collect();
        let is_queued = matches!(call.state, State::Queued);
        if !self.count_against(no, &new, cx) {
            return false;
        }
        if is_queued {
            for granted in self.permits.release_if(no, |resource| !resource.is_share_of_tasks()) {
                self.wake(granted);
            }
            self.queue(no, cx);
        }
        true
    }

    fn park(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        // Later requests of the session must not wait for the approval.
        self.leave_order(no, cx);
        let (now, longest) = (cx.now.ms, cx.now.ms.saturating_add(self.options.approval_time));
        let Some(call) = self.get(no) else { return };
        let ends = call.deadline.into_iter().chain(call.limit.as_ref().map(|(at, _)| *at)).min();
        // Shortly before the caller's deadline, so that the caller still gets the reason.
        let until = ends.map_or(longest, |end| longest.min(end.saturating_sub(REPLY_MARGIN)).max(now));
        self.set_state(no, State::Parked);
        self.wait_until(no, until);
        cx.out.push(Effect::Park { call: no, until });
    }

    pub(crate) fn approved(&mut self, no: CallNo, verdict: Result<(), A>, cx: &mut Context<'_, A>) {
        let Some(call) = self.get(no).filter(|call| matches!(call.state, State::Parked)) else { return };
        match verdict {
            Ok(()) => {
                call.approved = true;
                self.take_task_share(no, cx);
            }
            Err(refusal) => self.finish(no, crate::effect::Answer::Given(refusal), End::Failed, cx),
        }
    }

    fn holder(&self, no: CallNo) -> Holder {
        let request = self.calls.get(&no).map(|call| &call.request);
        Holder {
            agent: request.map_or_else(ByteString::default, |request| request.key.agent().into()),
            share: request.and_then(|request| request.share).unwrap_or(Share::RUNNING),
        }
    }

    /// Tasks wait longer than calls, so they get only a share of the server.
    fn take_task_share(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        let Some(call) = self.calls.get(&no) else { return };
        if !call.accepted {
            return if call.request.reserves { self.reserve(no, cx) } else { self.wait_for_order(no, cx) };
        }
        let (server, agent) = (call.request.server, call.request.key.agent_name());
        let max = self.options.servers.get(server).map_or(1, |server| server.max_concurrency);
        let share = |divisor: usize| (max / divisor).max(1);
        let wanted = vec![
            (Resource::AgentTasks(server, agent), share(SHARE_OF_AGENT_TASKS)),
            (Resource::Tasks(server), share(SHARE_OF_TASKS)),
        ];
        self.set_state(no, State::TaskShare);
        let holder = self.holder(no);
        if self.permits.acquire(no, holder, wanted) {
            self.reserve(no, cx);
        }
    }

    /// Before the call holds any permit that the current owners of the session slots need.
    pub(crate) fn reserve(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        self.set_state(no, State::Reserving);
        cx.out.push(Effect::Reserve { call: no });
    }

    pub(crate) fn reserved(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        if self.calls.get(&no).is_some_and(|call| matches!(call.state, State::Reserving)) {
            self.wait_for_order(no, cx);
        }
    }

    pub(crate) fn wait_for_order(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        let Some(session) = self.session_of(no) else { return self.queue(no, cx) };
        if !self.orders.contains(&session, no) {
            // It left the order while it waited for something else, and goes behind all that arrived meanwhile.
            self.orders.push(session.clone(), no);
        }
        if self.orders.may_take_permits(&session, no) {
            self.queue(no, cx);
        } else {
            self.set_state(no, State::Ordered);
        }
    }

    fn queue(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        let Some(call) = self.calls.get(&no) else { return };
        let request = &call.request;
        let limits = call.grant.limits.iter();
        let limits = limits.filter_map(|limit| Some((limit.kind.clone(), limit.concurrency?.get() as usize)));
        let mut wanted: Vec<_> = limits.map(|(kind, max)| (Resource::Limit(kind), max)).collect();
        if request.needs_permit {
            let max = self.options.servers.get(request.server).map_or(1, |server| server.max_concurrency);
            wanted.push((Resource::Server(request.server), max.max(1)));
        }
        wanted.extend(request.exclusive.iter().map(|name| (Resource::Exclusive(request.server, name.clone()), 1)));
        self.set_state(no, State::Queued);
        let holder = self.holder(no);
        if wanted.is_empty() || self.permits.acquire(no, holder, wanted) {
            self.granted(no, cx);
        }
    }

    /// The call has all its permits.
    pub(crate) fn granted(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        // Nothing of the session makes sense before `initialize` is answered.
        let holds_all = matches!(
            self.calls.get(&no).and_then(|call| call.request.session.as_ref()),
            Some((_, SessionHold::UntilAnswered))
        );
        if let Some(session) = self.session_of(no).filter(|_| !holds_all) {
            self.orders.set_granted(&session, no);
            self.session_moved(&session, cx);
        }
        let Some(call) = self.get(no) else { return };
        let (server, is_guarded) = (call.request.server, call.request.guarded);
        if let Some(breaker) = self.breakers.get_mut(server).filter(|_| is_guarded) {
            match breaker.enter(cx.now.ms) {
                Ok(entry) => {
                    if let Some(call) = self.get(no) {
                        call.entry = Some(entry);
                    }
                }
                Err(wait) => return self.fail(no, Failure::Tripped(wait), End::Failed, cx),
            }
        }
        self.connect(no, cx);
    }

    pub(crate) fn session_of(&self, no: CallNo) -> Option<SessionKey> {
        self.calls.get(&no)?.request.session.as_ref().map(|(session, _)| session.clone())
    }

    pub(crate) fn leave_order(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        if let Some(session) = self.session_of(no)
            && self.orders.remove(&session, no)
        {
            self.session_moved(&session, cx);
        }
    }

    /// Members of a session moved: others may take permits, be sent or be forwarded now.
    pub(crate) fn session_moved(&mut self, session: &SessionKey, cx: &mut Context<'_, A>) {
        if let Some(notification) = self.orders.next_notification(session) {
            cx.out.push(Effect::Forward { notification });
        }
        for call in self.orders.next_calls(session) {
            self.wake(call);
        }
    }

    /// The time of the current state is over.
    pub(crate) fn wait_is_over(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        let Some(call) = self.calls.get_mut(&no) else { return };
        match &call.state {
            State::AwaitingAbsence => {
                call.waited_for_absence = true;
                self.seek_join(no, cx);
            }
            // The broker did not report.
            State::AwaitingCaller => self.apply_limits(no, cx),
            State::Parked => {
                cx.out.push(Effect::Unpark { call: no, expired: true });
                self.fail(no, Failure::NotApproved, End::Failed, cx);
            }
            // It did not run, and must not: the earlier call may have had its effect.
            State::AskingToJoin { .. } | State::AwaitingReceipt { .. } => {
                self.fail(no, Failure::Timeout, End::Failed, cx)
            }
            State::Sending if call.cancelled.is_some() => {
                self.end_cancelled(no, cx);
            }
            State::Connecting | State::Sending => {
                self.give_up_wait(no, crate::effect::Answer::Failure(Failure::Timeout), End::Failed, cx)
            }
            State::Running => self.time_out(no, cx),
            State::Cancelling => {
                self.end_cancelled(no, cx);
            }
            _ => {}
        }
    }
}
