//! Joins a repeated call to its earlier run. A client whose worker ended before the answer arrived calls again under
//! another id. If the earlier call is in progress, or its answer is uncollected, the new call gets that answer and
//! doesn't run. An answer that was collected is never given to another call.
//!
//! Content alone can't tell a repeated call from one that is meant twice. Therefore all callers that share the run must
//! be disconnected, and stay so for a while.

use crate::call::{About, Call, Earlier, State};
use crate::cancel::Cause;
use crate::effect::{Answer, Effect, Failure, Record};
use crate::event::{AskNo, CallNo, Inspected};
use crate::machine::{CallMachine, Context};
use crate::planted::PlantedBug;
use crate::request::{JoinMode, Origin};
use bytestring::ByteString;
use toolbus_journal::{CallIndex, CallKey, Candidate, CandidateState, End, Replay, Wait};

impl<A: Clone> CallMachine<A> {
    /// Looks for an earlier equal call; the call goes on without one.
    pub(crate) fn seek_join(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        self.stop_waiting_for_join(no, cx);
        match self.find_earlier(no, cx) {
            Some(earlier) => self.ask_about(no, earlier, cx),
            None => self.wait_for_caller(no, cx),
        }
    }

    /// Whether a call of another mailbox of the agent is equal and may have run, in progress or ended after that time. Its
    /// caller may repeat it at another host of a pool.
    pub fn knows_equal(&self, caller: &str, content: &[u8; 32], journal: &CallIndex, ended_after: u64) -> bool {
        let agent = toolbus_journal::agent(caller);
        let is_of_another = |no: &CallNo| self.calls.get(no).is_some_and(|call| *call.request.key.caller != *caller);
        let here = self.by_content.get(&(ByteString::from(agent), *content));
        let is_cancelled =
            |state: &CandidateState| matches!(state, CandidateState::Answered { end: End::Cancelled, .. });
        let ended = || journal.candidate(agent, content, ended_after);
        here.is_some_and(|calls| calls.iter().any(is_of_another))
            || ended().is_some_and(|ended| *ended.key.caller != *caller && !is_cancelled(&ended.state))
    }

    fn may_join(&self, no: CallNo) -> bool {
        self.calls.get(&no).is_some_and(|call| {
            let request = &call.request;
            let is_new = !call.always_journaled && matches!(request.origin, Origin::Mailbox { .. });
            let is_plain = request.has_effect && request.task.is_none() && !request.continues;
            is_new && is_plain && call.replay == Replay::Never && request.join != JoinMode::Never
        })
    }

    fn find_earlier(&self, no: CallNo, cx: &Context<'_, A>) -> Option<About> {
        if !self.may_join(no) {
            return None;
        }
        let request = &self.calls.get(&no)?.request;
        if let Some(earlier) = self.latest_equal(no) {
            return Some(About::Running(earlier));
        }
        let ended_after = cx.now.wall.saturating_sub(request.join_window);
        let candidate = cx.journal.candidate(request.key.agent(), &request.content, ended_after)?;
        // A later call may have started while this one waited.
        if let (CandidateState::Running, Some(start)) = (&candidate.state, &candidate.start)
            && let Some(running) = self.by_key.get(&start.key)
        {
            return (*running != no).then_some(About::Running(*running));
        }
        (candidate.key != request.key).then(|| About::Ended(Box::new(candidate)))
    }

    /// The latest earlier call in progress of the same agent with the same content.
    fn latest_equal(&self, no: CallNo) -> Option<CallNo> {
        if self.is_planted(PlantedBug::RunningNotJoined) {
            return None;
        }
        let own = &self.calls.get(&no)?.request;
        let equal = self.by_content.get(&(own.key.agent_name(), own.content))?;
        // One that was given up before it started has no effect: an earlier one may have.
        let is_given_up = |call: &Call<A>| call.cancelled.is_some() && !call.is_begun();
        let may_have_run = |other: &CallNo| self.calls.get(other).is_some_and(|call| !is_given_up(call));
        equal.iter().rev().find(|other| **other < no && may_have_run(other)).copied()
    }

    fn ask_about(&mut self, no: CallNo, about: About, cx: &mut Context<'_, A>) {
        let Some(call) = self.calls.get(&no) else { return };
        let (own, mode) = (call.request.key.caller.clone(), call.request.join);
        let (keys, replies) = match &about {
            About::Running(other) => {
                let by_request = |cause: &Cause| matches!(cause, Cause::Caller | Cause::Admin | Cause::Revoked);
                let cancelled = self.calls.get(other).and_then(|other| other.cancelled.as_ref());
                // The caller gave the earlier call up by itself, so this one is meant to run.
                if cancelled.is_some_and(|cancelled| by_request(&cancelled.cause)) {
                    return self.wait_for_caller(no, cx);
                }
                (self.chain_of(*other), Vec::new())
            }
            About::Ended(candidate) => self.sharers_of(candidate),
        };
        // A call that is repeated by the same worker is meant twice.
        if keys.iter().any(|key| key.caller == own) {
            return self.wait_for_caller(no, cx);
        }
        let unsettled = keys.iter().find(|key| self.unsettled.contains_key(*key));
        if let Some(of) = unsettled.cloned() {
            // A broker that remembers few settled messages would say that a reply on its way was collected.
            self.leave_order(no, cx);
            self.set_state(no, State::AwaitingReceipt { of });
            return self.wait_until(no, cx.now.ms + self.options.wait_limit);
        }
        if mode == JoinMode::Always {
            return self.join(no, about, cx);
        }
        let peers = keys.into_iter().map(|key| key.caller).collect();
        let ask = self.new_ask();
        cx.out.push(Effect::Inspect { call: no, ask, peers, replies });
        self.set_state(no, State::AskingToJoin { ask, about });
        self.wait_until(no, cx.now.ms + self.options.wait_limit);
    }

    /// The call, the call that it waits for, and so on.
    fn chain_of(&self, no: CallNo) -> Vec<CallKey> {
        let next = |no: &CallNo| match self.calls.get(no).map(|call| &call.state) {
            Some(State::Joined { to }) => Some(*to),
            _ => None,
        };
        let chain = std::iter::successors(Some(no), next);
        chain.filter_map(|no| self.calls.get(&no)).map(|call| call.request.key.clone()).collect()
    }

    /// All calls that share the run of an ended call, and their replies as mailbox and id.
    fn sharers_of(&self, candidate: &Candidate) -> (Vec<CallKey>, Vec<(ByteString, ByteString)>) {
        let own = match &candidate.state {
            CandidateState::Answered { reply_id, .. } => Some(reply_id),
            CandidateState::Interrupted | CandidateState::Running => None,
        };
        let others = candidate.sharers.iter().map(|sharer| (&sharer.key, sharer.reply_id.as_ref()));
        let all: Vec<_> = std::iter::once((&candidate.key, own)).chain(others).collect();
        let replies = all.iter().filter_map(|(key, reply_id)| Some((*key, (*reply_id)?)));
        // A reply that the broker refused has not reached its caller.
        let replies = replies.filter(|(key, _)| !self.refused_replies.contains(key));
        let replies = replies.map(|(key, reply_id)| (key.caller.clone(), reply_id.clone())).collect();
        (all.into_iter().map(|(key, _)| key.clone()).collect(), replies)
    }

    pub(crate) fn join_inspected(&mut self, no: CallNo, ask: AskNo, view: &Inspected, cx: &mut Context<'_, A>) {
        let Some(call) = self.get(no) else { return };
        let State::AskingToJoin { ask: asked, about } = &call.state else { return };
        if *asked != ask {
            return;
        }
        let about = about.clone();
        let has_waited = call.waited_for_absence;
        let gone = !view.connected.contains(&true) || self.is_planted(PlantedBug::JoinConnected);
        let uncollected = !view.uncollected.contains(&false) || self.is_planted(PlantedBug::JoinCollected);
        if !gone || !uncollected {
            return self.wait_for_caller(no, cx);
        }
        if !has_waited {
            // Later requests of the session must not wait for another session's call.
            self.leave_order(no, cx);
            self.set_state(no, State::AwaitingAbsence);
            return self.wait_until(no, cx.now.ms + self.options.caller_absence);
        }
        // It may have ended, or have been joined by others, while the broker was asked.
        if self.find_earlier(no, cx).as_ref() != Some(&about) {
            return self.seek_join(no, cx);
        }
        self.join(no, about, cx);
    }

    fn join(&mut self, no: CallNo, about: About, cx: &mut Context<'_, A>) {
        match about {
            About::Running(to) => self.await_end_of(no, to, cx),
            About::Ended(candidate) => self.take_answer(no, *candidate, cx),
        }
    }

    /// Waits for the earlier call, whose deadline is extended to that of this call.
    fn await_end_of(&mut self, no: CallNo, to: CallNo, cx: &mut Context<'_, A>) {
        self.leave_order(no, cx);
        let Some(call) = self.get(no) else { return };
        call.was_joined = true;
        let deadline = call.deadline;
        self.set_state(no, State::Joined { to });
        self.joiners.entry(to).or_default().push(no);
        // One that waits for its own caller need not any more.
        if self.awaits_caller(to) {
            self.wake(to);
        }
        let mut next = Some(to);
        while let Some(member) = next {
            let Some(call) = self.get(member) else { break };
            call.deadline = call.deadline.zip(deadline).map(|(own, later)| own.max(later));
            next = match call.state {
                State::Joined { to } => Some(to),
                _ => None,
            };
        }
    }

    pub(crate) fn stop_waiting_for_join(&mut self, no: CallNo, cx: &Context<'_, A>) {
        let Some(State::Joined { to }) = self.calls.get(&no).map(|call| &call.state) else { return };
        let to = *to;
        if let Some(joiners) = self.joiners.get_mut(&to) {
            joiners.retain(|joiner| *joiner != no);
            if joiners.is_empty() {
                self.joiners.remove(&to);
                self.start_grace(to, cx);
            }
        }
    }

    fn take_answer(&mut self, no: CallNo, candidate: Candidate, cx: &mut Context<'_, A>) {
        let was_joined = self.calls.get(&no).is_some_and(|call| call.was_joined);
        let Candidate { key, start, state, .. } = candidate;
        match (state, start) {
            (CandidateState::Interrupted | CandidateState::Running, Some(start)) => {
                self.join_with(no, key, Answer::Failure(Failure::OutcomeUnknown(start)), End::Unknown, cx);
            }
            (CandidateState::Answered { end: End::Cancelled, .. }, Some(start)) if was_joined => {
                self.join_with(no, key, Answer::Failure(Failure::JoinedCancelled(start)), End::Unknown, cx);
            }
            (CandidateState::Answered { end, reply, .. }, start) if end != End::Cancelled => {
                let of = key.clone();
                self.set_state(no, State::ReadingAnswer { earlier: Box::new(Earlier { key, start, end }) });
                cx.out.push(Effect::ReadAnswer { call: no, of, location: reply });
            }
            _ => self.wait_for_caller(no, cx),
        }
    }

    pub(crate) fn answer_read(&mut self, no: CallNo, answer: Result<Option<A>, String>, cx: &mut Context<'_, A>) {
        let Some(call) = self.get(no) else { return };
        let State::ReadingAnswer { earlier } = &call.state else { return };
        let Earlier { key: to, start, end } = (**earlier).clone();
        match answer {
            Ok(Some(answer)) => {
                let started_at = start.map(|start| start.at);
                self.join_with(no, to.clone(), Answer::Joined { to, started_at, answer }, end, cx);
            }
            Ok(None) => self.wait_for_caller(no, cx),
            Err(why) => self.join_with(no, to, Answer::Failure(Failure::Unreadable(why)), End::Unknown, cx),
        }
    }

    /// Makes the join durable together with the answer.
    fn join_with(&mut self, no: CallNo, to: CallKey, answer: Answer<A>, end: End, cx: &mut Context<'_, A>) {
        if let Some(call) = self.get(no) {
            call.always_journaled = true;
        }
        cx.out.push(Effect::Append { call: no, record: Record::Joined { to }, wait: Wait::Synced });
        self.finish(no, answer, end, cx);
    }

    pub(crate) fn reply_settled(&mut self, key: CallKey, refused: bool, cx: &mut Context<'_, A>) {
        match refused {
            // If its request is delivered again, the caller still waits for an answer.
            true => {
                self.refused_replies.insert(key.clone());
                self.answered.remove(&key);
            }
            false => self.refused_replies.remove(&key),
        }
        let Some(count) = self.unsettled.get_mut(&key) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.unsettled.remove(&key);
        let waits = |state: &State<A>| matches!(state, State::AwaitingReceipt { of } if *of == key);
        let waiting: Vec<CallNo> =
            self.calls.iter().filter(|(_, call)| waits(&call.state)).map(|(no, _)| *no).collect();
        waiting.into_iter().for_each(|no| self.seek_join(no, cx));
    }
}
