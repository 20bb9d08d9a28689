//! A client whose worker ended before it had its answer calls again, under another id. Where the earlier call is still here,
//! or its answer still lies in a mailbox that nobody reads, the new call is answered with that one's answer and does not run.
//! What somebody has got is never given out again.

use crate::caller::{Caller, Joiner, Stage};
use crate::callers::Callers;
use crate::calls::{Job, Stop};
use crate::failure;
use crate::journaled::{now, written_time};
use crate::translate::is_input_required;
use serde_json::json;
use toolbus_journal::{CallKey, Candidate, CandidateState, End, Joined, Known, Replay, Sharer, Start};
use toolbus_mcp::{HostReply, Outcome, meta, raw};
use toolbus_upstream::Join;

/// An earlier call of the same agent that asks for the same.
enum Earlier {
    /// It is here, begun or not.
    Here(Box<Caller>),
    /// Only the journal knows of it.
    Ended(Candidate),
}

impl Job {
    /// The answer of an earlier call, if this one is to be answered with it. Otherwise it runs.
    pub(super) async fn join_earlier(&mut self) -> Result<Option<Outcome>, Stop> {
        let Some(earlier) = self.earlier() else { return Ok(None) };
        let outcome = match &earlier {
            Earlier::Here(other) => self.join_running(other).await?,
            Earlier::Ended(candidate) => self.join_ended(candidate).await,
        };
        let Some((to, start, outcome)) = outcome else { return Ok(None) };
        tracing::info!(id = %self.caller.id(), earlier = &*to.id, "a call is answered with an earlier one's answer");
        let marked = marked(outcome, &to, start.as_ref());
        self.write_joined(to).await?;
        Ok(Some(marked))
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

    async fn join_ended(&self, candidate: &Candidate) -> Option<(CallKey, Option<Start>, Outcome)> {
        let Candidate { key, start, state, sharers } = candidate;
        if !self.is_abandoned(&key.caller).await {
            return None;
        }
        for Sharer { key, reply_id } in sharers {
            // Whoever shares the answer may be there, or have it already.
            let waits = match reply_id {
                Some(reply_id) => self.callers().waits(&key.caller, reply_id).await == Some(true),
                None => true,
            };
            if !waits || !self.is_abandoned(&key.caller).await {
                return None;
            }
        }
        let started = start.as_deref().cloned();
        let outcome = match state {
            CandidateState::Running => return None,
            CandidateState::Interrupted => failure::outcome_unknown(start.as_deref()?).into(),
            CandidateState::Answered { end: End::Cancelled, .. } => return None,
            CandidateState::Answered { reply_id, reply, .. } => {
                if self.callers().waits(&key.caller, reply_id).await != Some(true) {
                    return None;
                }
                let body = self.record.as_ref()?.journal().reply(reply).ok()?;
                outcome_in(&body)?
            }
        };
        Some((key.clone(), started, outcome))
    }

    async fn join_running(&mut self, other: &Caller) -> Result<Option<(CallKey, Option<Start>, Outcome)>, Stop> {
        if other.cancel.is_fired() || !self.is_abandoned(other.mailbox()).await {
            return Ok(None);
        }
        // Whoever is joined to a joined call waits for the one that runs.
        let other = &other.progress.joined_to().unwrap_or_else(|| other.clone());
        self.wait_for_end_of(other).await?;
        let Some(record) = &self.record else { return Ok(None) };
        let key = CallKey { caller: other.mailbox().into(), id: other.id().as_str().into() };
        let known = record.journal().look_up(&key, &record.content);
        let (start, outcome) = match known {
            Ok(Known::Answered { start: Some(start), end: End::Cancelled, .. }) => {
                (start.clone(), Some(failure::called_off_elsewhere(&start).into()))
            }
            Ok(Known::Answered { start: Some(start), reply, .. }) => {
                let body = record.journal().reply(&reply).ok();
                (start, body.and_then(|body| outcome_in(&body)))
            }
            // It was refused or called off before it began, so nothing has happened yet.
            _ => return Ok(None),
        };
        Ok(outcome.map(|outcome| (key, Some((*start).clone()), outcome)))
    }

    /// Returns when the other call has ended. Meanwhile its progress comes here too, and it lasts as long as either waits.
    async fn wait_for_end_of(&mut self, other: &Caller) -> Result<(), Stop> {
        let progress_token = meta::get(self.rpc.params.as_deref(), meta::PROGRESS_TOKEN);
        let (mailbox, id) = (self.caller.mailbox().to_owned(), self.caller.id().clone());
        other.progress.add_joiner(Joiner { mailbox, id, progress_token });
        other.cancel.last_as_long_as(&self.caller.cancel);
        self.caller.progress.set_stage(Stage::Joined);
        self.caller.progress.set_joined_to(Some(other.clone()));
        // Others of the session must not wait for a call that is not theirs.
        let session = self.session.take().map(|(session, _turn)| session);
        let ended = tokio::select! {
            biased;
            () = other.progress.ended.cancelled() => Ok(()),
            () = self.caller.cancel.fired() => Err(Stop::Cancelled),
        };
        other.progress.remove_joiner(self.caller.id());
        if ended.is_err() {
            self.leave(other).await;
        }
        self.session = session.map(|session| {
            let turn = session.turns.take();
            (session, turn)
        });
        self.caller.progress.set_stage(Stage::Waiting);
        self.caller.progress.set_joined_to(None);
        ended
    }

    /// The other call ends as well if nobody is left who waits for it.
    async fn leave(&self, other: &Caller) {
        if other.progress.joiners().is_empty() && self.callers().connected(other.mailbox()).await == Some(false) {
            other.cancel.fire(Some("the callers are gone".to_owned()));
        }
    }

    /// Known for good before the answer goes out.
    async fn write_joined(&mut self, to: CallKey) -> Result<(), Stop> {
        self.is_joined = true;
        let Some(record) = &mut self.record else { return Ok(()) };
        record.is_kept = true;
        let joined = Joined { key: record.key.clone(), to, content: record.content, at: now() };
        let journal = std::sync::Arc::clone(record.journal());
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

/// What a stored reply says. What asks its client for more is good for nobody else.
fn outcome_in(body: &[u8]) -> Option<Outcome> {
    match HostReply::parse(std::str::from_utf8(body).ok()?).ok()? {
        HostReply::Rpc(Outcome::Result(result)) if is_input_required(&result) => None,
        HostReply::Rpc(outcome) => Some(outcome),
        HostReply::Task(_) | HostReply::Cancelled => None,
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
        assert!(outcome_in(br#"{"rpc":{"result":{"content":[]}}}"#).is_some());
        assert!(outcome_in(br#"{"rpc":{"error":{"code":1,"message":""}}}"#).is_some());
        assert!(outcome_in(br#"{"rpc":{"result":{"resultType":"input_required"}}}"#).is_none());
        assert!(outcome_in(br#"{"rpc":{"cancelled":true}}"#).is_none());
        assert!(outcome_in(br#"{"result":{"success":true}}"#).is_none(), "the original's");
    }
}
