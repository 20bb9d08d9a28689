//! Admission: what the journal knows about a request decides whether it runs, or how it is answered instead.

use crate::call::{Call, State};
use crate::cancel::Cause;
use crate::effect::{Answer, Effect, Failure, Record};
use crate::event::CallNo;
use crate::machine::{CallMachine, Context};
use crate::orphans::FOLLOW_AFTER;
use crate::planted::PlantedBug;
use crate::request::{Grant, Origin, ReplaySetting, Request};
use bytestring::ByteString;
use std::sync::Arc;
use toolbus_base::Share;
use toolbus_journal::{Decision, End, JournalError, Known, Refused, Replay, Start, Wait, decide};

impl<A: Clone> CallMachine<A> {
    pub(crate) fn arrived(&mut self, request: Request, cx: &mut Context<'_, A>) {
        if let Some(call) = self.by_key.get(&request.key).copied() {
            cx.out.push(Effect::Redelivered { call });
            if self.calls.get(&call).is_some_and(|known| known.accepted) {
                cx.out.push(Effect::Accepted { call });
            }
            return;
        }
        // A read is answered again: its reply was lost, and it has no effect.
        let was_refused = request.has_effect && self.answered.contains(&request.key);
        if was_refused && !self.is_planted(PlantedBug::RefusedRuns) {
            let is_on_its_way = self.unsettled.contains_key(&request.key);
            return cx.out.push(if is_on_its_way { Effect::Ignored } else { Effect::Acknowledge });
        }
        let is_full = request.origin != Origin::Journal && self.is_full(&request);
        let no = self.register(request, cx);
        self.admit(no, is_full, cx);
        self.apply_early_cancel(no, cx);
    }

    fn is_full(&self, request: &Request) -> bool {
        let of_agent = self.by_agent.get(request.key.agent()).copied().unwrap_or_default();
        let free = self.options.max_calls.saturating_sub(self.calls.len());
        !request.share.unwrap_or(Share::DEFAULT).admits(of_agent as u64, free as u64)
    }

    fn register(&mut self, request: Request, cx: &mut Context<'_, A>) -> CallNo {
        let no = self.new_call();
        let agent = request.key.agent_name();
        self.by_key.insert(request.key.clone(), no);
        self.by_id.entry(request.key.id.clone()).or_default().push(no);
        *self.by_agent.entry(agent.clone()).or_default() += 1;
        if request.has_effect && request.task.is_none() {
            self.by_content.entry((agent, request.content)).or_default().push(no);
        }
        if let Some((session, _)) = &request.session {
            self.orders.push(session.clone(), no);
        }
        let follow_at = self.options.caller_grace.map(|_| cx.now.ms + FOLLOW_AFTER);
        let follow_at = follow_at.filter(|_| request.origin != Origin::Journal);
        self.calls.insert(no, Call { follow_at, ..Call::new(request, cx.now.ms) });
        self.set_state(no, State::Authorising);
        cx.out.push(Effect::Admitted { call: no });
        no
    }

    fn admit(&mut self, no: CallNo, is_full: bool, cx: &mut Context<'_, A>) {
        let Some(call) = self.calls.get(&no) else { return };
        let request = &call.request;
        if !request.has_effect {
            return self.admit_new(no, is_full, cx);
        }
        let is_resumed = request.origin == Origin::Journal;
        let is_known_task = || cx.journal.task(&request.key.id, Some(request.key.agent())).is_some();
        if request.task.is_some() && !is_resumed && is_known_task() {
            cx.out.push(Effect::ResendTask { call: no });
            return self.end(no, false, cx);
        }
        let known = cx.journal.look_up(&request.key, &request.content);
        let known = match known {
            // An earlier host of this process left it: its servers are closed.
            Ok(Known::Running(start)) => Ok(Known::Interrupted(start)),
            known => known,
        };
        let replay = self.replay_of(request.replay, &known);
        let decision = self.decide(request, known, replay);
        if let Some(call) = self.get(no) {
            call.replay = replay;
            if is_resumed {
                (call.accepted, call.always_journaled) = (true, true);
            }
        }
        match decision {
            Decision::Run { attempt: 1 } => self.admit_new(no, is_full, cx),
            decision => self.carry_out(no, decision, cx),
        }
    }

    /// The limit applies only to calls that the journal doesn't know: others may have run.
    fn admit_new(&mut self, no: CallNo, is_full: bool, cx: &mut Context<'_, A>) {
        match () {
            () if is_full => self.fail(no, Failure::TooManyCalls, End::Failed, cx),
            () if self.draining && !self.is_planted(PlantedBug::DrainStarts) => self.pass_on(no, cx),
            () => self.authorise(no, cx),
        }
    }

    fn replay_of(&self, setting: ReplaySetting, known: &Result<Known, Refused>) -> Replay {
        let was_safe = matches!(known, Ok(Known::Interrupted(start)) if start.safe);
        match setting {
            ReplaySetting::Safe => Replay::Safe,
            ReplaySetting::AsStarted if was_safe => Replay::Safe,
            ReplaySetting::Never | ReplaySetting::AsStarted => Replay::Never,
        }
    }

    fn decide(&self, request: &Request, known: Result<Known, Refused>, replay: Replay) -> Decision {
        // If another journal had the mailbox before, or this one lost entries, the call may have been started.
        let (delivery, unsure) = match request.origin {
            Origin::Mailbox { delivery, unsure } => (delivery, unsure && !self.is_planted(PlantedBug::UnsureRuns)),
            Origin::Journal | Origin::Operator => (1, false),
        };
        let is_damaged = self.options.journal_damaged;
        // Of a task, START may be lost and its acceptance left.
        let has_no_start = match request.origin {
            Origin::Journal => is_damaged && matches!(known, Ok(Known::Waiting(_))),
            _ => (unsure || (delivery > 1 && is_damaged)) && matches!(known, Ok(Known::New)),
        };
        if has_no_start && replay == Replay::Never {
            return Decision::Unknown(Arc::new(self.start_of(request, delivery.saturating_sub(1).max(1), 0, false)));
        }
        let is_planted = self.is_planted(PlantedBug::InterruptedRuns);
        let replay = if is_planted { Replay::Safe } else { replay };
        decide(known, replay, self.options.max_attempts)
    }

    /// A START as it would be written for the request.
    pub(crate) fn start_of(&self, request: &Request, attempt: u32, at: u64, safe: bool) -> Start {
        let server = self.options.servers.get(request.server).map_or("", |server| &server.name);
        let (key, tool, content) = (request.key.clone(), request.tool.clone(), request.content);
        Start { key, server: server.into(), tool, content, attempt, at, safe }
    }

    fn carry_out(&mut self, no: CallNo, decision: Decision, cx: &mut Context<'_, A>) {
        // The journal knows the call, so its answer is final.
        let is_known = !matches!(decision, Decision::OtherContent { .. });
        if let Some(call) = self.get(no) {
            call.always_journaled |= is_known;
        }
        match decision {
            Decision::Run { attempt } => {
                if let Some(call) = self.get(no) {
                    let ended = format!("attempt {}: the host ended before the call was answered", attempt - 1);
                    call.history.push(ended);
                    (call.attempt, call.begun) = (attempt, Some(call.replay));
                }
                self.authorise(no, cx);
            }
            Decision::Reply { reply_id, reply, .. } => self.resend(no, reply_id, reply, cx),
            Decision::Unknown(start) => self.fail(no, Failure::OutcomeUnknown(start), End::Unknown, cx),
            // Treated as interrupted before.
            Decision::AlreadyRunning => {}
            Decision::Poisoned(start) => self.poison_again(no, &start, cx),
            Decision::OtherContent { tool } => self.fail(no, Failure::IdConflict { tool }, End::Failed, cx),
        }
    }

    /// A call that used up its attempts before this process began. An earlier process may have ended after it wrote the
    /// dead letter and before it answered.
    fn poison_again(&mut self, no: CallNo, start: &Start, cx: &mut Context<'_, A>) {
        let Some(call) = self.get(no) else { return };
        let (key, attempts) = (call.request.key.clone(), start.attempt);
        call.attempt = attempts;
        call.begun = Some(Replay::Safe);
        let is_dead_letter = cx.journal.dead_letter_by_id(&key.id).is_some_and(|letter| letter.key == key);
        if is_dead_letter {
            return self.fail(no, Failure::Poisoned { attempts }, End::Failed, cx);
        }
        let ended = |attempt| format!("attempt {attempt}: the server or the host ended before the call was answered");
        call.history = (1..=attempts).map(ended).collect();
        self.dead_letter(no, cx);
    }

    fn apply_early_cancel(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        let Some(call) = self.calls.get(&no) else { return };
        let key = &call.request.key;
        if self.early_cancels.contains(key) {
            self.cancel(no, Cause::Caller, None, cx);
        }
    }

    fn authorise(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        self.set_state(no, State::Authorising);
        cx.out.push(Effect::Authorise { call: no, again: false });
    }

    pub(crate) fn authorised(&mut self, no: CallNo, verdict: Result<Grant, A>, cx: &mut Context<'_, A>) {
        let Some(call) = self.get(no) else { return };
        if matches!(call.state, State::Finishing { .. } | State::DeadLettering) {
            return;
        }
        let needs_approval = |grant: &Grant| grant.ask && !call.approved && !call.request.continues;
        match (&call.state, verdict) {
            // Authorised again before it is sent, or it is too late to refuse: the server may have the request.
            (State::Starting | State::Ready | State::Sending | State::Running | State::Cancelling, _) => {}
            (_, Err(refusal)) => self.give_up_wait(no, Answer::Given(refusal), End::Failed, cx),
            (State::Authorising, Ok(grant)) => {
                call.grant = grant;
                self.accept(no, cx);
            }
            (State::Rechecking, Ok(_)) if call.is_verdict_outdated => self.recheck(no, cx),
            (State::Rechecking, Ok(grant)) if needs_approval(&grant) => {
                self.fail(no, Failure::NeedsApproval, End::Failed, cx);
            }
            (State::Rechecking, Ok(grant)) => {
                // The server's annotations may have become known since the request arrived.
                if !call.is_begun() {
                    call.replay = if grant.replay == ReplaySetting::Safe { Replay::Safe } else { Replay::Never };
                }
                if self.renew_grant(no, grant, cx) {
                    self.start(no, cx);
                }
            }
            // Authorised again while it waits.
            (_, Ok(grant)) => drop(self.renew_grant(no, grant, cx)),
        }
    }

    /// Accepts a task: its entry is durable before the caller is answered.
    fn accept(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        let Some(call) = self.calls.get(&no).filter(|call| call.request.task.is_some() && !call.accepted) else {
            return self.seek_join(no, cx);
        };
        let (agent, share) = (call.request.key.agent_name(), call.request.share.unwrap_or(Share::DEFAULT));
        if let Err(failure) = self.check_task_limits(&agent, share, cx) {
            return self.fail(no, failure, End::Failed, cx);
        }
        if !self.count_rates(no, cx) {
            return;
        }
        *self.accepting.entry(agent).or_default() += 1;
        if let Some(call) = self.get(no) {
            call.is_accepting = true;
        }
        self.set_state(no, State::Accepting);
        cx.out.push(Effect::Append { call: no, record: Record::Task, wait: Wait::Synced });
        if self.is_planted(PlantedBug::TaskNotSynced) {
            cx.out.push(Effect::Accepted { call: no });
        }
    }

    fn check_task_limits(&self, agent: &ByteString, share: Share, cx: &Context<'_, A>) -> Result<(), Failure> {
        let count = |agent| cx.journal.count_tasks(agent, cx.now.wall);
        let (own, all) =
            (self.accepting.get(agent).copied().unwrap_or_default(), self.accepting.values().sum::<usize>());
        let (own, all) = (count(Some(&**agent)) + own, count(None) + all);
        let (max_own, max) = (self.options.max_tasks_per_agent, self.options.max_tasks);
        let free = max.saturating_sub(all);
        match () {
            () if own >= max_own => Err(Failure::TooManyTasks { max: max_own, of_agent: true }),
            () if free == 0 => Err(Failure::TooManyTasks { max, of_agent: false }),
            () if !share.admits(own as u64, free as u64) => Err(Failure::TooManyTasks { max: own, of_agent: true }),
            () => Ok(()),
        }
    }

    /// The task's entry is durable, or its sync failed: then it may be in the journal all the same, and the next process
    /// would run it.
    pub(crate) fn task_written(&mut self, no: CallNo, outcome: Result<(), JournalError>, cx: &mut Context<'_, A>) {
        self.stop_accepting(no);
        let now = cx.now.ms;
        let Some(call) = self.get(no).filter(|call| matches!(call.state, State::Accepting)) else { return };
        if outcome.is_err() {
            let start = Arc::new(self.start_of(&self.calls[&no].request, 1, cx.now.wall, false));
            return self.fail(no, Failure::OutcomeUnknown(start), End::Unknown, cx);
        }
        let ttl = call.request.task.map_or(0, |task| task.ttl);
        (call.accepted, call.always_journaled) = (true, true);
        call.deadline = Some(now.saturating_add(ttl));
        (call.follow_at, call.orphaned_at) = (None, None);
        let caller = call.request.key.caller.clone();
        self.unfollow_caller(no, &caller, cx);
        if !self.is_planted(PlantedBug::TaskNotSynced) {
            cx.out.push(Effect::Accepted { call: no });
        }
        if !self.end_cancelled(no, cx) {
            if self.draining { self.leave(no, cx) } else { self.wait_for_caller(no, cx) }
        }
    }

    /// The journal did not take the task's entry.
    pub(crate) fn task_rejected(&mut self, no: CallNo, error: JournalError, cx: &mut Context<'_, A>) {
        self.stop_accepting(no);
        let failure = match error {
            JournalError::TooManyTasks { most: max } => Failure::TooManyTasks { max, of_agent: false },
            error => not_journaled(error),
        };
        self.fail(no, failure, End::Failed, cx);
    }

    pub(crate) fn stop_accepting(&mut self, no: CallNo) {
        let Some(call) = self.calls.get_mut(&no).filter(|call| call.is_accepting) else { return };
        call.is_accepting = false;
        let agent = call.request.key.agent_name();
        if let Some(count) = self.accepting.get_mut(&agent) {
            *count -= 1;
            if *count == 0 {
                self.accepting.remove(&agent);
            }
        }
    }
}

pub(crate) fn not_journaled(error: JournalError) -> Failure {
    Failure::NotJournaled(Box::new(crate::effect::Rejected(error)))
}
