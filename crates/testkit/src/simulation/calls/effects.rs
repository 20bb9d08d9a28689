//! Carries out the effects of a host's machine. Those of one call are carried out in order; those of different calls
//! overtake each other. Nothing is decided here: effects are checked, and passed on to journal, broker and servers.

use super::World;
use super::callers::question;
use super::host::Phase;
use super::wire::{Outcome, WireAnswer};
use crate::simulation::scenario::pick;
use std::collections::VecDeque;
use toolbus_call::{CallNo, Effect, Effects, Event, Now, Stage};
use toolbus_journal::Known;

impl World {
    pub fn handle(&mut self, host: usize, event: Event<Outcome>) -> Vec<Effect<Outcome>> {
        let now = Now { ms: self.now, wall: self.wall() };
        let mut effects = Effects::default();
        if let Some(process) = self.process(host) {
            process.machine.handle(now, event, process.journal.index(), &mut effects);
        }
        effects.0
    }

    /// Appends to the journal at once, and queues what may take time.
    pub fn distribute(&mut self, host: usize, mut effects: VecDeque<Effect<Outcome>>) {
        while let Some(effect) = effects.pop_front() {
            let call = match effect {
                Effect::Append { call, record, wait } => {
                    effects.extend(self.append(host, call, record, wait));
                    continue;
                }
                Effect::Inspect { call, ask, peers, replies } => {
                    self.inspect(host, call, ask, question(peers, replies));
                    continue;
                }
                Effect::Follow { caller } => {
                    self.follow(host, caller);
                    continue;
                }
                Effect::Unfollow { caller } => {
                    self.unfollow(host, caller);
                    continue;
                }
                Effect::Abort { call } => {
                    self.abort(host, call);
                    continue;
                }
                Effect::Forward { notification } => {
                    self.process(host).map(|process| process.notifications.insert(notification));
                    continue;
                }
                Effect::Breaker { server, .. } => {
                    self.note("breaker", &[("server", server as u64)]);
                    continue;
                }
                Effect::Admitted { .. } | Effect::Redelivered { .. } | Effect::Ignored => {
                    return self.oracle.violated("a call was named without an arrival");
                }
                Effect::Authorise { call, .. }
                | Effect::Park { call, .. }
                | Effect::Unpark { call, .. }
                | Effect::Reserve { call }
                | Effect::Connect { call }
                | Effect::Send { call }
                | Effect::CancelAtServer { call, .. }
                | Effect::Accepted { call }
                | Effect::ReadAnswer { call, .. }
                | Effect::Reply { call, .. }
                | Effect::Resend { call, .. }
                | Effect::ResendTask { call }
                | Effect::Ended { call, .. } => call,
            };
            self.note_effect(host, call, &effect);
            self.check_effect(host, call, &effect);
            let Some(process) = self.hosts[host].process.as_mut() else { return };
            match process.calls.get_mut(&call) {
                Some(call) => call.queue.push_back(effect),
                None => self.oracle.violated(format!("an effect concerns an unknown call: {effect:?}")),
            }
        }
        self.note_joined(host);
        self.stop_if_disk_failed(host);
    }

    fn note_effect(&mut self, host: usize, no: CallNo, effect: &Effect<Outcome>) {
        let name = match effect {
            Effect::Authorise { .. } => "authorise",
            Effect::Park { .. } => "park",
            Effect::Unpark { .. } => "unpark",
            Effect::Reserve { .. } => "reserve",
            Effect::Connect { .. } => "connect server",
            Effect::Send { .. } => "send",
            Effect::CancelAtServer { .. } => "cancel at server",
            Effect::Accepted { .. } => "accepted",
            Effect::ReadAnswer { .. } => "read answer",
            Effect::Reply { .. } => "replies",
            Effect::Resend { .. } => "resends",
            Effect::ResendTask { .. } => "resends task",
            Effect::Ended { left: true, .. } => "left",
            Effect::Ended { .. } => "ended",
            _ => "effect",
        };
        let number = self.call(host, no).map(|call| call.key.clone()).map_or(u64::MAX, |key| self.oracle.number(&key));
        self.note(name, &[("host", host as u64), ("call", number)]);
    }

    /// What holds when the machine decides, whatever happens until the effect is carried out.
    fn check_effect(&mut self, host: usize, no: CallNo, effect: &Effect<Outcome>) {
        let now = self.now;
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let Some(call) = process.calls.get_mut(&no) else { return };
        let id = &call.key.id;
        match effect {
            Effect::Park { .. } => call.has_left_order = true,
            Effect::CancelAtServer { reason: Some(reason), .. }
                if reason == "the caller is gone" && process.machine.view(no).is_some_and(|view| view.joiners > 0) =>
            {
                self.oracle.violated(format!("{id} was cancelled as an orphan although another call waits for it"));
            }
            Effect::Accepted { .. } => {
                let key = call.key.clone();
                if !self.has_task(host, &key) {
                    self.oracle.violated(format!("{} was accepted before its entry is durable", key.id));
                }
            }
            Effect::Reply { answer, .. } => {
                let (key, outcome) = (call.key.clone(), WireAnswer::new(&call.key, answer).outcome);
                let known = process.journal.index().look_up(&key, &call.request.content);
                let is_kept = match known {
                    Ok(Known::New) | Err(_) => true,
                    Ok(Known::Answered { .. }) => self.has_result(host, &key),
                    // It must not be sent, unless the journal fails.
                    Ok(_) => outcome.is_unknown() || process.journal.failure().is_some(),
                };
                if !is_kept {
                    self.oracle.violated(format!("{} is answered before its RESULT is written", key.id));
                }
            }
            Effect::Send { .. } => {
                if call.cancelled {
                    self.oracle.violated(format!("{id} was sent after it was cancelled"));
                }
                let is_late = !call.work.task && call.request.deadline.is_some_and(|deadline| deadline <= now);
                // A joined call extends the deadline.
                if is_late && !self.oracle.has_equal(&call.key) {
                    self.oracle.violated(format!("{id} was sent after its deadline"));
                }
                if self.policy.is_revoked(&call.key) {
                    self.oracle.violated(format!("{id} was sent after its agent was revoked"));
                }
                self.check_order(host, no);
            }
            _ => {}
        }
    }

    /// Requests of a session are sent in the order of their arrival, but for those that waited for something else.
    fn check_order(&mut self, host: usize, no: CallNo) {
        let Some(process) = self.hosts[host].process.as_ref() else { return };
        let Some((session, _)) = process.calls.get(&no).and_then(|call| call.request.session.as_ref()) else { return };
        let Some(waiting) = process.sessions.get(session) else { return };
        let is_in_order = |no: &CallNo| {
            process.machine.view(*no).is_some() && process.calls.get(no).is_some_and(|call| !call.has_left_order)
        };
        if !waiting.contains(&no) || !is_in_order(&no) {
            return;
        }
        let first = waiting.iter().copied().find(is_in_order);
        if let Some(first) = first.filter(|first| *first != no) {
            let (id, first) = (&process.calls[&no].key.id, &process.calls[&first].key.id);
            self.oracle.violated(format!("{id} was sent before {first} of the same session"));
        }
    }

    /// A call that waits for another one leaves the order of its session.
    fn note_joined(&mut self, host: usize) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        for no in process.sessions.values().flatten() {
            let is_joined =
                process.machine.view(*no).is_some_and(|view| view.stage == Stage::Joined || view.was_joined);
            if let Some(call) = process.calls.get_mut(no).filter(|_| is_joined) {
                call.has_left_order = true;
            }
        }
    }

    /// A call no longer waits to be sent.
    pub fn leave_order(&mut self, host: usize, no: CallNo) {
        if let Some(process) = self.process(host) {
            process.sessions.retain(|_, calls| {
                calls.retain(|call| *call != no);
                !calls.is_empty()
            });
        }
    }

    /// Stops what the process does for a call. A server that has the request may still run it.
    pub fn abort(&mut self, host: usize, no: CallNo) {
        let Some(call) = self.call(host, no) else { return };
        call.queue
            .retain(|effect| !matches!(effect, Effect::Reserve { .. } | Effect::Connect { .. } | Effect::Send { .. }));
        if let Some(run) = call.run.take() {
            self.detach(run);
        }
    }

    /// Carries out one waiting effect of a host.
    pub fn host_step(&mut self, host: usize) {
        let Some(process) = self.process(host) else { return };
        if let Some(notification) = process.notifications.pop_first() {
            return self.feed(host, Event::NotificationSent { notification });
        }
        if self.report_caller(host) {
            return;
        }
        let Some(process) = self.process(host) else { return };
        let busy = process.calls.iter().filter(|(_, call)| !call.queue.is_empty());
        let busy: Vec<CallNo> = busy.map(|(no, _)| *no).collect();
        if busy.is_empty() {
            return;
        }
        let no = *pick(&mut self.rng, &busy);
        if let Some(effect) = self.call(host, no).and_then(|call| call.queue.pop_front()) {
            self.carry_out(host, no, effect);
        }
    }

    fn carry_out(&mut self, host: usize, no: CallNo, effect: Effect<Outcome>) {
        let Some(call) = self.call(host, no) else { return };
        let (key, work) = (call.key.clone(), call.work);
        match effect {
            Effect::Authorise { .. } => {
                let verdict = self.decide(&key, work);
                self.feed(host, Event::Authorised { call: no, verdict });
            }
            Effect::Park { .. } => call.is_parked = true,
            Effect::Unpark { .. } => call.is_parked = false,
            Effect::Reserve { .. } => self.feed(host, Event::Reserved { call: no }),
            Effect::Connect { .. } => self.connect_server(host, no),
            Effect::Send { .. } => self.send_to_server(host, no),
            Effect::CancelAtServer { .. } => {
                let run = call.run;
                if let Some(run) = run.and_then(|run| self.runs.get_mut(&run)) {
                    run.cancelled = true;
                }
            }
            Effect::Accepted { .. } | Effect::ResendTask { .. } => self.reply_accepted(host, no),
            Effect::ReadAnswer { location, .. } => {
                let answer = self.read_answer(host, &location).map(|answer| Some(answer.outcome));
                let answer = answer.map(|outcome| outcome.filter(|outcome| outcome.is_final()));
                self.feed(host, Event::AnswerRead { call: no, answer });
            }
            Effect::Reply { answer, .. } => self.reply(host, no, &WireAnswer::new(&key, &answer)),
            Effect::Resend { reply_id, location, .. } => self.resend(host, no, reply_id, &location),
            Effect::Ended { .. } => {
                let run = call.run.take();
                self.leave_order(host, no);
                self.process(host).map(|process| process.calls.remove(&no));
                run.into_iter().for_each(|run| self.detach(run));
            }
            other => self.oracle.violated(format!("not an effect of a call: {other:?}")),
        }
    }

    /// An approver decides about a random call that waits for approval.
    pub fn approve(&mut self, host: usize) {
        let Some(process) = self.process(host) else { return };
        let parked: Vec<CallNo> = process.calls.iter().filter(|(_, call)| call.is_parked).map(|(no, _)| *no).collect();
        if parked.is_empty() {
            return;
        }
        let call = *pick(&mut self.rng, &parked);
        let verdict = if self.rng.chance(70) { Ok(()) } else { Err(Outcome::Disapproved) };
        self.note("approval", &[("granted", u64::from(verdict.is_ok()))]);
        if let Some(call) = self.call(host, call) {
            call.is_parked = false;
        }
        self.feed(host, Event::Approved { call, verdict });
    }

    /// A call that the machine has in progress.
    pub fn random_call(&mut self, host: usize) -> Option<CallNo> {
        let calls: Vec<CallNo> = self.process(host)?.machine.views().map(|view| view.call).collect();
        (!calls.is_empty()).then(|| *pick(&mut self.rng, &calls))
    }

    pub fn is_draining(&self, host: usize) -> bool {
        self.hosts[host].process.as_ref().is_some_and(|process| process.phase != Phase::Running)
    }
}
