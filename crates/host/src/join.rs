//! A client whose worker ended before it had its answer calls again, under another id. Where the earlier call is still here,
//! or its answer still lies in a mailbox that nobody reads, the new call is answered with that one's answer and does not run.
//! What somebody has got is never given out again.

use crate::caller::{Caller, Joiner, Stage};
use crate::callers::Callers;
use crate::calls::{Job, Stop};
use crate::failure;
use crate::journaled::{now, written_time};
use crate::session::Session;
use crate::translate::is_input_required;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use toolbus_journal::{CallKey, Candidate, CandidateState, End, Joined, Known, Place, Replay, Sharer, Start};
use toolbus_mcp::{HostReply, Outcome, meta, raw};
use toolbus_upstream::Join;

/// How often, and how far apart, a reply is looked for that was sent just now.
const REPLY_LOOKS: usize = 10;
const NEXT_LOOK: Duration = Duration::from_millis(200);

/// An earlier call of the same agent that asks for the same.
enum Earlier {
    /// It is here, begun or not.
    Here(Box<Caller>),
    /// Only the journal knows of it.
    Ended(Candidate),
}

/// What a call is to do about an earlier one. It is taken apart at once, so its size does not matter.
#[allow(clippy::large_enum_variant)]
enum Joining {
    /// Have the answer of that call.
    Answer(CallKey, Option<Start>, Outcome),
    /// Look again: that one came to nothing, and there may be another before it.
    Again,
    Run,
}

impl Job {
    /// The answer of an earlier call, if this one is to be answered with it. Otherwise it runs.
    pub(super) async fn join_earlier(&mut self) -> Result<Option<Outcome>, Stop> {
        // Each round is about an earlier call than the one before.
        loop {
            let Some(earlier) = self.earlier() else { return Ok(None) };
            let joining = match &earlier {
                Earlier::Here(other) => self.join_running(other).await?,
                Earlier::Ended(candidate) => self.join_ended(candidate).await?,
            };
            let (to, start, outcome) = match joining {
                Joining::Answer(to, start, outcome) => (to, start, outcome),
                Joining::Again => continue,
                Joining::Run => return Ok(None),
            };
            tracing::info!(id = %self.caller.id(), earlier = &*to.id, "a call is answered with an earlier one's answer");
            let marked = marked(outcome, &to, start.as_ref());
            self.write_joined(to).await?;
            return Ok(Some(marked));
        }
    }

    fn earlier(&self) -> Option<Earlier> {
        let record = self.record.as_ref().filter(|record| !record.is_kept)?;
        let content = self.caller.progress.about()?.content?;
        let settings = &self.server.config.calls;
        if self.join_setting() == Join::Never || self.replay() == Replay::Safe {
            return None;
        }
        if let Some(here) = self.host.running.latest_like(&self.caller, &content) {
            return Some(Earlier::Here(Box::new(here)));
        }
        let window = u64::try_from(settings.join_window.as_millis()).unwrap_or(u64::MAX);
        let journal = record.journal();
        let candidate = journal.candidate(self.caller.agent(), &content, now().saturating_sub(window))?;
        (candidate.key != record.key).then_some(Earlier::Ended(candidate))
    }

    fn join_setting(&self) -> Join {
        let settings = &self.server.config.calls;
        self.own_tool().map_or(settings.join, |own| settings.join_of(own))
    }

    /// Whether nobody is there any more who waits for what that mailbox gets. Where nobody can tell, somebody may be.
    async fn is_abandoned(&self, mailbox: &str) -> bool {
        let is_other = mailbox != self.caller.mailbox();
        match self.join_setting() {
            Join::Never => false,
            Join::Always => is_other,
            Join::Gone => is_other && self.callers().connected(mailbox).await == Some(false),
        }
    }

    async fn join_ended(&mut self, candidate: &Candidate) -> Result<Joining, Stop> {
        let Candidate { key, start, state, .. } = candidate;
        // What was collected is known at once, so that nothing else is held up.
        if !self.nobody_has(candidate).await {
            return Ok(Joining::Run);
        }
        if self.join_setting() == Join::Gone {
            let session = self.leave_row();
            let waited = self.wait_for_return().await;
            self.rejoin_row(session);
            waited?;
            if !self.nobody_has(candidate).await {
                return Ok(Joining::Run);
            }
        }
        let outcome = match (state, start) {
            (CandidateState::Interrupted, Some(start)) => Some(failure::outcome_unknown(start).into()),
            (CandidateState::Answered { end, reply, .. }, _) if *end != End::Cancelled => self.stored(reply),
            _ => None,
        };
        let start = start.as_deref().cloned();
        Ok(outcome.map_or(Joining::Run, |outcome| Joining::Answer(key.clone(), start, outcome)))
    }

    /// Whether the answer still waits for everybody whose it is, and nobody of them is there.
    async fn nobody_has(&self, candidate: &Candidate) -> bool {
        let Candidate { key, state, sharers, .. } = candidate;
        let own = match state {
            CandidateState::Running => return false,
            CandidateState::Interrupted => None,
            CandidateState::Answered { reply_id, .. } => Some(reply_id),
        };
        let shared = sharers.iter().map(|Sharer { key, reply_id }| (key, reply_id.as_ref()));
        for (key, reply_id) in std::iter::once((key, own)).chain(shared) {
            if !self.is_abandoned(&key.caller).await {
                return false;
            }
            if let Some(reply_id) = reply_id
                && self.callers().waits(&key.caller, reply_id).await != Some(true)
            {
                return false;
            }
        }
        true
    }

    async fn join_running(&mut self, other: &Caller) -> Result<Joining, Stop> {
        if other.cancel.is_fired() || !self.is_abandoned(other.mailbox()).await {
            return Ok(Joining::Run);
        }
        let chain = chain_of(other);
        // Others of the session must not wait for a call that is not theirs.
        let session = self.leave_row();
        let ended = self.wait_for_end_of(&chain).await;
        self.rejoin_row(session);
        if ended? { Ok(self.answer_of(&chain).await) } else { Ok(Joining::Run) }
    }

    /// The answer of a call that was here and has ended, if nobody else has it.
    async fn answer_of(&self, chain: &[Caller]) -> Joining {
        let Some(record) = &self.record else { return Joining::Run };
        let mut answer = None;
        for member in chain {
            let key = CallKey { caller: member.mailbox().into(), id: member.id().as_str().into() };
            let known = record.journal().look_up(&key, &record.content);
            let Ok(Known::Answered { start: Some(start), end, reply_id, reply }) = known else {
                // It was refused or called off before it began, so nothing has happened yet.
                if answer.is_none() {
                    return Joining::Again;
                }
                continue;
            };
            let (_, first, ..) = answer.get_or_insert_with(|| (key.clone(), Arc::clone(&start), end, reply));
            // Whoever was before it in the row may have had another run.
            if first.key == start.key && !self.is_nobodys(&key, end, &reply_id).await {
                return Joining::Run;
            }
        }
        let Some((key, start, end, reply)) = answer else { return Joining::Again };
        let outcome = match end {
            End::Cancelled => Some(failure::called_off_elsewhere(&start).into()),
            _ => self.stored(&reply),
        };
        outcome.map_or(Joining::Run, |outcome| Joining::Answer(key, Some((*start).clone()), outcome))
    }

    /// Whether its caller has stayed away, and has not been there to collect the answer either.
    async fn is_nobodys(&self, key: &CallKey, end: End, reply_id: &str) -> bool {
        if self.join_setting() == Join::Always {
            return true;
        }
        if !self.is_abandoned(&key.caller).await {
            return false;
        }
        if end == End::Cancelled {
            return true;
        }
        for _ in 0..REPLY_LOOKS {
            match self.callers().waits(&key.caller, reply_id).await {
                Some(true) => return true,
                // It may still be on its way to the broker.
                Some(false) => tokio::time::sleep(NEXT_LOOK).await,
                None => return false,
            }
        }
        false
    }

    /// What a stored answer says to another caller; that it can't be read, if that is so.
    fn stored(&self, reply: &Place) -> Option<Outcome> {
        let record = self.record.as_ref()?;
        let said = record.journal().reply(reply).map(|body| said_in(&body));
        let why = match said {
            Ok(Said::Final(outcome)) => return Some(outcome),
            Ok(Said::NotFinal) => return None,
            Ok(Said::Unreadable) => "it has another form".to_owned(),
            Err(error) => error.to_string(),
        };
        Some(failure::unreadable_answer(&record.tool, &why).into())
    }

    /// Returns when the first of the chain has ended; false if its caller came back. Meanwhile the progress comes here too,
    /// and all last as long as anybody waits.
    async fn wait_for_end_of(&mut self, chain: &[Caller]) -> Result<bool, Stop> {
        let other = &chain[0];
        if self.join_setting() == Join::Gone {
            self.wait_for_return().await?;
            if other.cancel.is_fired() || !self.is_abandoned(other.mailbox()).await {
                return Ok(false);
            }
        }
        let progress_token = meta::get(self.rpc.params.as_deref(), meta::PROGRESS_TOKEN);
        let (mailbox, id) = (self.caller.mailbox().to_owned(), self.caller.id().clone());
        let joiner = Joiner { mailbox, id, progress_token };
        for member in chain {
            member.progress.add_joiner(joiner.clone());
            member.cancel.last_as_long_as(&self.caller.cancel);
        }
        self.caller.progress.set_stage(Stage::Joined);
        self.caller.progress.set_joined_to(Some(other.clone()));
        let ended = tokio::select! {
            biased;
            () = other.progress.ended.cancelled() => Ok(true),
            // It goes on without this one: its own caller may come back. Otherwise it ends as one whose caller is gone.
            () = self.caller.cancel.fired() => Err(Stop::Cancelled),
            () = self.host.shutdown.cancelled() => Err(Stop::HandedOver),
        };
        for member in chain {
            member.progress.remove_joiner(self.caller.id());
        }
        self.caller.progress.set_stage(Stage::Waiting);
        self.caller.progress.set_joined_to(None);
        ended
    }

    /// The time in which a caller comes back that only lost its link.
    async fn wait_for_return(&self) -> Result<(), Stop> {
        tokio::select! {
            () = tokio::time::sleep(self.host.options.limits.caller_absence) => Ok(()),
            () = self.caller.cancel.fired() => Err(Stop::Cancelled),
            () = self.host.shutdown.cancelled() => Err(Stop::HandedOver),
        }
    }

    fn leave_row(&mut self) -> Option<Arc<Session>> {
        self.session.take().map(|(session, _turn)| session)
    }

    /// At its end.
    fn rejoin_row(&mut self, session: Option<Arc<Session>>) {
        self.session = session.map(|session| {
            let turn = session.turns.take();
            (session, turn)
        });
    }

    /// Known for good before the answer goes out.
    async fn write_joined(&mut self, to: CallKey) -> Result<(), Stop> {
        self.is_joined = true;
        let Some(record) = &mut self.record else { return Ok(()) };
        record.is_kept = true;
        let joined = Joined { key: record.key.clone(), to, content: record.content, at: now() };
        let journal = Arc::clone(record.journal());
        journal.join(joined).await.map_err(|error| {
            self.host.journal_failed(&error);
            failure::not_journaled(&error).into()
        })
    }

    fn callers(&self) -> &dyn Callers {
        match &self.host.options.callers {
            Some(callers) => &**callers,
            None => self.host.outbox.client(),
        }
    }
}

/// The call and those that it waits for in turn.
fn chain_of(other: &Caller) -> Vec<Caller> {
    std::iter::successors(Some(other.clone()), |member| member.progress.joined_to()).collect()
}

enum Said {
    Final(Outcome),
    /// What asks its client for more is good for nobody else, and neither is a word about a call that was called off.
    NotFinal,
    Unreadable,
}

/// What a stored reply says.
fn said_in(body: &[u8]) -> Said {
    let reply = std::str::from_utf8(body).ok().and_then(|text| HostReply::parse(text).ok());
    match reply {
        Some(HostReply::Rpc(Outcome::Result(result))) if is_input_required(&result) => Said::NotFinal,
        Some(HostReply::Rpc(outcome)) => Said::Final(outcome),
        Some(HostReply::Task(_) | HostReply::Cancelled) => Said::NotFinal,
        None => Said::Unreadable,
    }
}

/// The same answer, with a word about whose it was.
fn marked(outcome: Outcome, to: &CallKey, start: Option<&Start>) -> Outcome {
    let earlier = raw(&json!({"call": &*to.id, "startedAt": start.map(|start| written_time(start.at))}));
    meta::mark_joined(outcome, earlier)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn joined(outcome: Outcome) -> Value {
        let to = CallKey { caller: "w#1".into(), id: "c1".into() };
        let (Outcome::Result(text) | Outcome::Error(text)) = marked(outcome, &to, None);
        serde_json::from_str(text.get()).expect("JSON")
    }

    #[test]
    fn a_joined_answer_says_whose_it_was_and_is_otherwise_the_same() {
        let result = joined(Outcome::Result(raw(&json!({"content": [1.0], "_meta": {"a": 1}}))));
        assert_eq!(
            result,
            json!({"content": [1.0], "_meta": {"a": 1, meta::JOINED: {"call": "c1", "startedAt": null}}})
        );
        let error = joined(Outcome::Error(raw(&json!({"code": -1, "message": "no"}))));
        assert_eq!(error["data"][meta::JOINED]["call"], "c1");
        let odd = joined(Outcome::Error(raw(&json!({"code": -1, "message": "no", "data": 1.0}))));
        assert_eq!(odd, json!({"code": -1, "message": "no", "data": 1.0}));
    }

    #[test]
    fn only_final_answers_are_given_to_others() {
        let is_final = |body: &str| matches!(said_in(body.as_bytes()), Said::Final(_));
        assert!(is_final(r#"{"rpc":{"result":{"content":[]}}}"#));
        assert!(is_final(r#"{"rpc":{"error":{"code":1,"message":""}}}"#));
        let is_not = |body: &str| matches!(said_in(body.as_bytes()), Said::NotFinal);
        assert!(is_not(r#"{"rpc":{"result":{"resultType":"input_required"}}}"#));
        assert!(is_not(r#"{"rpc":{"cancelled":true}}"#));
        let is_unreadable = |body: &[u8]| matches!(said_in(body), Said::Unreadable);
        assert!(is_unreadable(br#"{"result":{"success":true}}"#), "the original's");
        assert!(is_unreadable(&[0xff, 0]));
    }
}
