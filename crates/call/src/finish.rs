//! The end of a call: RESULT is journaled, then the caller gets the reply.

use crate::call::State;
use crate::circuit_breaker::Health;
use crate::effect::{Answer, Effect, Failure, Record, Rejected};
use crate::event::CallNo;
use crate::machine::{CallMachine, Context};
use crate::planted::PlantedBug;
use bytestring::ByteString;
use toolbus_journal::{End, JournalError, Known, Location, Replay, Wait};

impl<A: Clone> CallMachine<A> {
    pub(crate) fn fail(&mut self, no: CallNo, failure: Failure, end: End, cx: &mut Context<'_, A>) {
        self.finish(no, Answer::Failure(failure), end, cx);
    }

    /// Ends a call whose current wait the host has to stop.
    pub(crate) fn give_up_wait(&mut self, no: CallNo, answer: Answer<A>, end: End, cx: &mut Context<'_, A>) {
        self.stop_wait(no, cx);
        self.finish(no, answer, end, cx);
    }

    pub(crate) fn stop_wait(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        match self.calls.get(&no).map(|call| &call.state) {
            Some(State::Parked) => cx.out.push(Effect::Unpark { call: no, expired: false }),
            Some(State::Reserving | State::Connecting | State::Sending | State::Running | State::Cancelling) => {
                cx.out.push(Effect::Abort { call: no });
            }
            _ => {}
        }
    }

    /// Journals the answer if it has to be, then replies.
    pub(crate) fn finish(&mut self, no: CallNo, answer: Answer<A>, end: End, cx: &mut Context<'_, A>) {
        self.stop_waiting_for_join(no, cx);
        let sync_results = self.options.sync_results;
        let (unwritten_cancel, unwritten_task) =
            (self.is_planted(PlantedBug::CancelNotWritten), self.is_planted(PlantedBug::TaskAnswerLost));
        let Some(call) = self.get(no) else { return };
        // A call that was refused before it started may be decided again. A cancelled one must never run.
        let is_needed = call.is_begun() || call.always_journaled || (end == End::Cancelled && !unwritten_cancel);
        let is_journaled = call.request.has_effect && is_needed && !(call.accepted && unwritten_task);
        // Losing an unsynced RESULT in a power cut leaves a START, so the call is reported as unknown and not run again.
        // Without a START, or if the outcome will be queried, RESULT must be durable first.
        let wait = match call.begun {
            Some(Replay::Safe) if !call.always_journaled => Wait::Written,
            Some(Replay::Never) if !call.always_journaled && !sync_results => Wait::Written,
            _ => Wait::Synced,
        };
        self.set_state(no, State::Finishing { answer: answer.clone(), end });
        if !is_journaled {
            return self.reply(no, false, cx);
        }
        let record = Record::Result { answer: answer.clone(), end };
        if self.is_planted(PlantedBug::ResultAfterReply) {
            cx.out.push(Effect::Reply { call: no, answer });
        }
        cx.out.push(Effect::Append { call: no, record, wait });
    }

    pub(crate) fn result_written(&mut self, no: CallNo, outcome: Result<(), JournalError>, cx: &mut Context<'_, A>) {
        let Some(call) = self.get(no) else { return };
        let (key, content) = (call.request.key.clone(), call.request.content);
        let State::Finishing { answer, end } = &mut call.state else { return };
        match outcome {
            Ok(()) => {}
            // The first answer is final.
            Err(JournalError::Answered) => {
                if let Ok(Known::Answered { reply_id, reply, .. }) = cx.journal.look_up(&key, &content) {
                    return self.resend(no, reply_id, reply, cx);
                }
            }
            // An answer that is not journaled must not be sent: after a restart the outcome would be unknown.
            Err(error) => {
                *answer = Answer::Failure(Failure::ResultNotJournaled(Box::new(Rejected(error))));
                *end = End::Unknown;
            }
        }
        self.reply(no, true, cx);
    }

    fn reply(&mut self, no: CallNo, is_journaled: bool, cx: &mut Context<'_, A>) {
        let is_sent_early = is_journaled && self.is_planted(PlantedBug::ResultAfterReply);
        let Some(call) = self.calls.get(&no) else { return };
        let State::Finishing { answer, .. } = &call.state else { return };
        let (key, has_effect) = (call.request.key.clone(), call.request.has_effect);
        // An accepted task has no caller: its answer stays in the journal.
        if !call.accepted {
            if !is_sent_early {
                cx.out.push(Effect::Reply { call: no, answer: answer.clone() });
            }
            if has_effect {
                *self.unsettled.entry(key.clone()).or_default() += 1;
            }
        }
        if has_effect && !is_journaled {
            self.answered.insert(key);
        }
        self.end(no, false, cx);
    }

    /// Sends the answer that the journal has.
    pub(crate) fn resend(&mut self, no: CallNo, reply_id: ByteString, location: Location, cx: &mut Context<'_, A>) {
        let Some(call) = self.calls.get(&no) else { return };
        if !call.accepted {
            *self.unsettled.entry(call.request.key.clone()).or_default() += 1;
            cx.out.push(Effect::Resend { call: no, reply_id, location });
        }
        self.end(no, false, cx);
    }

    /// Leaves a call unanswered: the next host takes it from the mailbox or from the journal.
    pub(crate) fn leave(&mut self, no: CallNo, cx: &mut Context<'_, A>) {
        self.stop_wait(no, cx);
        self.stop_waiting_for_join(no, cx);
        self.end(no, true, cx);
    }

    /// Forgets a call; others that waited for it or its permits go on.
    pub(crate) fn end(&mut self, no: CallNo, left: bool, cx: &mut Context<'_, A>) {
        self.stop_accepting(no);
        let Some(call) = self.calls.remove(&no) else { return };
        self.timers.remove(no, call.timer);
        let key = &call.request.key;
        let agent = key.agent_name();
        self.by_key.remove(key);
        remove_from(&mut self.by_id, &key.id, no);
        remove_from(&mut self.by_content, &(agent.clone(), call.request.content), no);
        if let Some(count) = self.by_agent.get_mut(&agent) {
            *count -= 1;
            if *count == 0 {
                self.by_agent.remove(&agent);
            }
        }
        if let Some(entry) = call.entry {
            let health = if self.shutdown { Health::Unclear } else { call.health };
            self.note_health(call.request.server, entry, health, cx);
        }
        self.unfollow_caller(no, &key.caller, cx);
        cx.out.push(Effect::Ended { call: no, left });
        if !self.is_planted(PlantedBug::PermitsLeak) {
            for granted in self.permits.release(no) {
                self.wake(granted);
            }
        }
        if let Some((session, _)) = &call.request.session
            && self.orders.remove(session, no)
        {
            self.session_moved(session, cx);
        }
        for joiner in self.joiners.remove(&no).into_iter().flatten() {
            self.wake(joiner);
        }
    }
}

fn remove_from<K: std::hash::Hash + Eq>(map: &mut hashbrown::HashMap<K, Vec<CallNo>>, key: &K, no: CallNo) {
    let Some(calls) = map.get_mut(key) else { return };
    calls.retain(|other| *other != no);
    if calls.is_empty() {
        map.remove(key);
    }
}
