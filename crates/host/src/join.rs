//! Joins a repeated call to its earlier run. A client whose worker ended before the answer arrived calls again under
//! another id. If the earlier call is still running, or its answer is uncollected, the new call gets that answer and
//! doesn't run. An answer that was collected is never given to another call.

use crate::caller::{Caller, Joiner, Stage};
use crate::callers::Callers;
use crate::calls::{Job, Stop};
use crate::failure;
use crate::journaled::{format_time, now};
use crate::session::Session;
use crate::translate::is_input_required;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use toolbus_journal::{CallKey, Candidate, CandidateState, End, Joined, Known, Location, Replay, Sharer, Start};
use toolbus_mcp::{HostReply, Outcome, meta, raw};
use toolbus_upstream::Join;

/// How often, and at which interval, to look for a reply that was just sent.
const REPLY_CHECKS: usize = 10;
const REPLY_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// An earlier call of the same agent with equal content.
enum Earlier {
    /// At this host, started or not.
    Running(Box<Caller>),
    /// Known only to the journal.
    Ended(Candidate),
}

/// What to do about an earlier call. Consumed at once, so its size doesn't matter.
#[allow(clippy::large_enum_variant)]
enum Joining {
    /// Use that call's answer.
    Answer(CallKey, Option<Start>, Outcome),
    /// That call never ran; look for one before it.
    Again,
    Run,
}

impl Job {
    /// Returns the answer of an earlier call if this call joins it; `None` if this call must run.
    pub(super) async fn join_earlier(&mut self) -> Result<Option<Outcome>, Stop> {
        // Terminates: each round considers an earlier call than the last one.
        loop {
            let Some(earlier) = self.earlier() else { return Ok(None) };
            let joining = match &earlier {
                Earlier::Running(other) => self.join_running(other).await?,
                Earlier::Ended(candidate) => self.join_ended(candidate).await?,
            };
            let (to, start, outcome) = match joining {
                Joining::Answer(to, start, outcome) => (to, start, outcome),
                Joining::Again => continue,
                Joining::Run => return Ok(None),
            };
            tracing::info!(id = %self.caller.id(), earlier = &*to.id, "joined a call to an earlier one");
            let marked = marked(outcome, &to, start.as_ref());
            self.write_joined(to).await?;
            return Ok(Some(marked));
        }
    }

    fn earlier(&self) -> Option<Earlier> {
        let record = self.record.as_ref().filter(|record| !record.always_journaled)?;
        let content = self.caller.progress.description()?.content?;
        let settings = &self.server.config.calls;
        if self.join_setting() == Join::Never || self.replay() == Replay::Safe {
            return None;
        }
        if let Some(here) = self.host.running.latest_equal(&self.caller, &content) {
            return Some(Earlier::Running(Box::new(here)));
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

    /// Whether the owner of that mailbox is disconnected. If the broker can't tell, it counts as connected.
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
        // Checked before the wait, because it usually decides at once.
        if !self.is_uncollected(candidate).await {
            return Ok(Joining::Run);
        }
        if self.join_setting() == Join::Gone {
            let session = self.leave_session_order();
            let waited = self.wait_for_reconnect().await;
            self.rejoin_session_order(session);
            waited?;
            if !self.is_uncollected(candidate).await {
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

    /// Whether every call that shares the answer has a disconnected caller and an uncollected reply.
    async fn is_uncollected(&self, candidate: &Candidate) -> bool {
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
        // Later requests of the session must not wait for another session's call.
        let session = self.leave_session_order();
        let ended = self.wait_for_end_of(&chain).await;
        self.rejoin_session_order(session);
        if ended? { Ok(self.answer_of(&chain).await) } else { Ok(Joining::Run) }
    }

    /// The answer of a call that just ended at this host, if none of its callers has it.
    async fn answer_of(&self, chain: &[Caller]) -> Joining {
        let Some(record) = &self.record else { return Joining::Run };
        let mut answer = None;
        for member in chain {
            let key = CallKey { caller: member.mailbox().into(), id: member.id().as_str().into() };
            let known = record.journal().look_up(&key, &record.content);
            let Ok(Known::Answered { start: Some(start), end, reply_id, reply }) = known else {
                // It was refused or cancelled before it started, so it had no effect.
                if answer.is_none() {
                    return Joining::Again;
                }
                continue;
            };
            let (_, first, ..) = answer.get_or_insert_with(|| (key.clone(), Arc::clone(&start), end, reply));
            // Later members of the chain may have been answered by another run.
            if first.key == start.key && !self.is_reply_uncollected(&key, end, &reply_id).await {
                return Joining::Run;
            }
        }
        let Some((key, start, end, reply)) = answer else { return Joining::Again };
        let outcome = match end {
            End::Cancelled => Some(failure::cancelled_elsewhere(&start).into()),
            _ => self.stored(&reply),
        };
        outcome.map_or(Joining::Run, |outcome| Joining::Answer(key, Some((*start).clone()), outcome))
    }

    /// Whether the caller is still disconnected and its reply uncollected.
    async fn is_reply_uncollected(&self, key: &CallKey, end: End, reply_id: &str) -> bool {
        if self.join_setting() == Join::Always {
            return true;
        }
        if !self.is_abandoned(&key.caller).await {
            return false;
        }
        if end == End::Cancelled {
            return true;
        }
        for _ in 0..REPLY_CHECKS {
            match self.callers().waits(&key.caller, reply_id).await {
                Some(true) => return true,
                // The reply may still be on its way to the broker.
                Some(false) => tokio::time::sleep(REPLY_CHECK_INTERVAL).await,
                None => return false,
            }
        }
        false
    }

    /// A stored answer as an outcome for another caller; an error if it can't be read; `None` if it can't be shared.
    fn stored(&self, reply: &Location) -> Option<Outcome> {
        let record = self.record.as_ref()?;
        let parsed = record.journal().reply(reply).map(|body| parse_stored_reply(&body));
        let why = match parsed {
            Ok(StoredReply::Final(outcome)) => return Some(outcome),
            Ok(StoredReply::NotFinal) => return None,
            Ok(StoredReply::Unreadable) => "unknown format".to_owned(),
            Err(error) => error.to_string(),
        };
        Some(failure::unreadable_answer(&record.tool, &why).into())
    }

    /// Waits until the first call of the chain ends; returns false if its caller reconnected. Meanwhile this call
    /// receives its progress, and the deadlines of the chain are extended to that of this call.
    async fn wait_for_end_of(&mut self, chain: &[Caller]) -> Result<bool, Stop> {
        let other = &chain[0];
        if self.join_setting() == Join::Gone {
            self.wait_for_reconnect().await?;
            if other.cancel.is_fired() || !self.is_abandoned(other.mailbox()).await {
                return Ok(false);
            }
        }
        let progress_token = meta::get(self.rpc.params.as_deref(), meta::PROGRESS_TOKEN);
        let (mailbox, id) = (self.caller.mailbox().to_owned(), self.caller.id().clone());
        let joiner = Joiner { mailbox, id, progress_token };
        for member in chain {
            member.progress.add_joiner(joiner.clone());
            member.cancel.extend_to(&self.caller.cancel);
        }
        self.caller.progress.set_stage(Stage::Joined);
        self.caller.progress.set_joined_to(Some(other.clone()));
        let ended = tokio::select! {
            biased;
            () = other.progress.ended.cancelled() => Ok(true),
            // The earlier call continues: its own caller may reconnect, or else it is cancelled as an orphan.
            () = self.caller.cancel.fired() => Err(Stop::Cancelled),
            () = self.host.draining.cancelled() => Err(Stop::HandedOver),
        };
        for member in chain {
            member.progress.remove_joiner(self.caller.id());
        }
        self.caller.progress.set_stage(Stage::Waiting);
        self.caller.progress.set_joined_to(None);
        ended
    }

    /// Gives a caller that only lost its connection the time to reconnect.
    async fn wait_for_reconnect(&self) -> Result<(), Stop> {
        tokio::select! {
            () = tokio::time::sleep(self.host.options.limits.caller_absence) => Ok(()),
            () = self.caller.cancel.fired() => Err(Stop::Cancelled),
            () = self.host.draining.cancelled() => Err(Stop::HandedOver),
        }
    }

    fn leave_session_order(&mut self) -> Option<Arc<Session>> {
        self.session.take().map(|(session, _ticket)| session)
    }

    /// With a new ticket, behind all requests that arrived meanwhile.
    fn rejoin_session_order(&mut self, session: Option<Arc<Session>>) {
        self.session = session.map(|session| {
            let ticket = session.order.take_ticket();
            (session, ticket)
        });
    }

    /// Makes the join durable before the answer is sent.
    async fn write_joined(&mut self, to: CallKey) -> Result<(), Stop> {
        self.is_joined = true;
        let Some(record) = &mut self.record else { return Ok(()) };
        record.always_journaled = true;
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

/// The call, the call it is joined to, and so on.
fn chain_of(other: &Caller) -> Vec<Caller> {
    std::iter::successors(Some(other.clone()), |member| member.progress.joined_to()).collect()
}

enum StoredReply {
    Final(Outcome),
    /// An `input_required` result, a task handle or a cancellation; of no use to another caller.
    NotFinal,
    Unreadable,
}

fn parse_stored_reply(body: &[u8]) -> StoredReply {
    let reply = std::str::from_utf8(body).ok().and_then(|text| HostReply::parse(text).ok());
    match reply {
        Some(HostReply::Rpc(Outcome::Result(result))) if is_input_required(&result) => StoredReply::NotFinal,
        Some(HostReply::Rpc(outcome)) => StoredReply::Final(outcome),
        Some(HostReply::Task(_) | HostReply::Cancelled) => StoredReply::NotFinal,
        None => StoredReply::Unreadable,
    }
}

/// The same answer, with the id and start time of the earlier call in its metadata.
fn marked(outcome: Outcome, to: &CallKey, start: Option<&Start>) -> Outcome {
    let earlier = raw(&json!({"call": &*to.id, "startedAt": start.map(|start| format_time(start.at))}));
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
    fn a_joined_answer_names_the_earlier_call_and_is_otherwise_unchanged() {
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
    fn only_final_answers_are_shared() {
        let is_final = |body: &str| matches!(parse_stored_reply(body.as_bytes()), StoredReply::Final(_));
        assert!(is_final(r#"{"rpc":{"result":{"content":[]}}}"#));
        assert!(is_final(r#"{"rpc":{"error":{"code":1,"message":""}}}"#));
        let is_not = |body: &str| matches!(parse_stored_reply(body.as_bytes()), StoredReply::NotFinal);
        assert!(is_not(r#"{"rpc":{"result":{"resultType":"input_required"}}}"#));
        assert!(is_not(r#"{"rpc":{"cancelled":true}}"#));
        let is_unreadable = |body: &[u8]| matches!(parse_stored_reply(body), StoredReply::Unreadable);
        assert!(is_unreadable(br#"{"result":{"success":true}}"#), "a reply in the original's format");
        assert!(is_unreadable(&[0xff, 0]));
    }
}
