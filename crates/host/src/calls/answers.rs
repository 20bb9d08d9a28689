//! Answers to calls: typed until they are encoded for their caller, and for the audit log.

use super::slot::Slot;
use crate::failure;
use crate::outbox::{Answer as ReplyBody, Form};
use crate::translate::is_input_required;
use bytes::Bytes;
use bytestring::ByteString;
use serde_json::json;
use toolbus_call::{Answer, Failure};
use toolbus_journal::{CallKey, End};
use toolbus_mcp::{HostReply, Members, Outcome, RpcError, meta, raw};
use toolbus_protocol::{ErrorCode, Timestamp};

/// An answer that did not come from the machine.
#[derive(Debug, Clone)]
pub enum Given {
    /// Of the server, or of the host on its behalf.
    Outcome(Outcome),
    /// An error of the host.
    Error(Box<RpcError>),
}

impl From<RpcError> for Given {
    fn from(error: RpcError) -> Self {
        Self::Error(Box::new(error))
    }
}

impl From<Outcome> for Given {
    fn from(outcome: Outcome) -> Self {
        Self::Outcome(outcome)
    }
}

impl Given {
    pub fn into_outcome(self) -> Outcome {
        match self {
            Self::Outcome(outcome) => outcome,
            Self::Error(error) => (*error).into(),
        }
    }

    /// How a call with this answer ended.
    pub fn end(&self) -> End {
        match self {
            Self::Outcome(Outcome::Result(_)) => End::Done,
            Self::Outcome(Outcome::Error(_)) | Self::Error(_) => End::Failed,
        }
    }
}

/// The answer of an earlier call, read from the journal for another one. `None`: an `input_required` result, a task handle
/// or a cancellation, which are of no use to another caller.
pub fn shared_answer(body: Bytes) -> Result<Option<Given>, String> {
    let reply = ByteString::try_from(body).ok().and_then(|text| HostReply::parse(text).ok());
    match reply {
        Some(HostReply::Rpc(Outcome::Result(result))) if is_input_required(&result) => Ok(None),
        Some(HostReply::Rpc(outcome)) => Ok(Some(outcome.into())),
        Some(HostReply::Task(_) | HostReply::Cancelled | HostReply::HandedBack) => Ok(None),
        None => Err("unknown format".to_owned()),
    }
}

impl Slot {
    /// The answer as its caller gets it.
    pub fn encode(&self, answer: &Answer<Given>, end: End) -> ReplyBody {
        let reply = match answer {
            Answer::Given(given) => Some(given.clone().into_outcome()),
            Answer::Joined { to, started_at, answer } => Some(marked(answer.clone().into_outcome(), to, *started_at)),
            Answer::Failure(failure) => Some(self.error_of(failure).into()),
            Answer::Cancelled | Answer::HandedBack => None,
        };
        let handed_back = matches!(answer, Answer::HandedBack);
        let body = match (self.form, reply) {
            (Form::Mcp, Some(outcome)) => crate::outbox::reply_body(&HostReply::Rpc(outcome)),
            (Form::Mcp, None) if handed_back => crate::outbox::reply_body(&HostReply::HandedBack),
            (Form::Mcp, None) => crate::outbox::reply_body(&HostReply::Cancelled),
            (Form::Original, outcome) => crate::original::reply_body(outcome.as_ref()),
        };
        ReplyBody { body, end, form: self.form }
    }

    /// `ok`, `tool_error`, `joined`, `cancelled` or an error code, for the audit log.
    pub fn word_for(&self, answer: &Answer<Given>) -> (String, usize) {
        match answer {
            Answer::Given(Given::Outcome(outcome)) => (word_for(outcome), text_of(outcome).len()),
            Answer::Given(Given::Error(error)) => (code_of(error), 0),
            Answer::Joined { answer, .. } => {
                let outcome = answer.clone().into_outcome();
                ("joined".to_owned(), text_of(&outcome).len())
            }
            Answer::HandedBack => ("handed_back".to_owned(), 0),
            Answer::Cancelled | Answer::Failure(Failure::Expired | Failure::CallerGone | Failure::Cancelled(_)) => {
                ("cancelled".to_owned(), 0)
            }
            Answer::Failure(failure) => (code_of(&self.error_of(failure)), 0),
        }
    }

    /// A failure that the machine decided, in words.
    pub fn error_of(&self, failure: &Failure) -> RpcError {
        let (method, server, tool) = (&self.parsed.rpc.method, self.server.name(), &self.parsed.tool);
        match failure {
            Failure::OutcomeUnknown(start) => failure::outcome_unknown(start),
            Failure::JoinedCancelled(start) => failure::cancelled_elsewhere(start),
            Failure::Unreadable(why) => failure::unreadable_answer(tool, why),
            Failure::Poisoned { attempts } => failure::poison(tool, *attempts),
            Failure::Crashed => failure::panicked(server, method),
            Failure::BrokenInvariant(rule) => failure::broken_invariant(server, method, rule),
            Failure::Expired => {
                failure::bus(ErrorCode::Expired, format!("the caller's deadline passed before {method} was answered"))
            }
            Failure::TimeLimit(limit) => failure::bus(
                ErrorCode::CallTimeout,
                format!("server {server:?} did not answer {method} in time: {limit}"),
            ),
            Failure::Timeout => {
                failure::bus(ErrorCode::CallTimeout, format!("server {server:?} did not answer {method} in time"))
            }
            Failure::CallerGone => {
                failure::bus(ErrorCode::CallerGone, format!("the caller of {method} was disconnected for too long"))
            }
            Failure::Cancelled(why) => {
                failure::bus(ErrorCode::Cancelled, format!("{method} of server {server:?} was {why}"))
            }
            Failure::NotApproved => {
                let id = crate::approvals::id_of(self);
                let name = self.parsed.subject.name.as_deref().unwrap_or(method);
                let message = format!("the call of {name:?} was not approved in time (approval {id})");
                failure::bus(ErrorCode::ApprovalDenied, message)
            }
            Failure::NeedsApproval => {
                let message = "the policy has changed and now requires approval for the call; call again";
                failure::bus(ErrorCode::NotAllowed, message)
            }
            Failure::TooManyCalls => {
                failure::bus(ErrorCode::TooManyCalls, "call limit reached (of this host, or of this agent there)")
            }
            Failure::TooManyTasks { max, of_agent } => {
                let of = if *of_agent { format!("agent '{}'", self.agent()) } else { "all agents".to_owned() };
                failure::bus(ErrorCode::TooManyTasks, format!("task limit reached ({max} tasks of {of} at this host)"))
            }
            Failure::RateLimited { kind, rate, wait } => failure::rate_limited(kind, *rate, *wait),
            Failure::Tripped(wait) => failure::tripped(server, *wait),
            Failure::IdConflict { tool } => {
                let id = self.id();
                let message = format!("the id {id} was already used for a call of {tool:?} with other arguments");
                failure::bus(ErrorCode::IdConflict, message)
            }
            Failure::NotJournaled(error) => failure::not_journaled(&error.0),
            Failure::ResultNotJournaled(error) => {
                let message = format!("the result of {tool:?} could not be journaled: {}", error.0);
                failure::bus(ErrorCode::OutcomeUnknown, message)
            }
        }
    }
}

impl Slot {
    /// Replaces an answer that exceeds the rule's size limit by an error.
    pub fn within_size(&self, answer: Given) -> Given {
        let authorised = self.state().authorised.clone();
        let Some((max, kind)) = authorised.as_ref().and_then(|authorised| authorised.max_result.as_ref()) else {
            return answer;
        };
        let Given::Outcome(outcome) = &answer else { return answer };
        let size = text_of(outcome).len();
        if size as u64 <= *max {
            return answer;
        }
        let message = format!("the result has {size} bytes, but {kind} allows {max}");
        failure::bus(ErrorCode::ResultTooLarge, message).into()
    }
}

/// The same answer, with the id and start time of the earlier call in its metadata.
fn marked(outcome: Outcome, to: &CallKey, started_at: Option<u64>) -> Outcome {
    let earlier = raw(&json!({"call": &*to.id, "startedAt": started_at.map(|at| Timestamp::from_ms(at).to_string())}));
    meta::mark_joined(outcome, earlier)
}

fn text_of(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Result(text) | Outcome::Error(text) => text.get(),
    }
}

fn word_for(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Result(result) if is_tool_error(result) => "tool_error".to_owned(),
        Outcome::Result(_) => "ok".to_owned(),
        Outcome::Error(error) => {
            let members = error.members().unwrap_or_default();
            let data = Members::of(members.get("data")).ok();
            let ours = data.and_then(|data| data.text("code"));
            ours.or_else(|| members.get("code").map(|code| code.get().to_owned())).unwrap_or_default()
        }
    }
}

/// Whether the tool reports an error.
pub fn is_tool_error(result: &toolbus_mcp::Raw) -> bool {
    result.members().is_ok_and(|result| result.is_true("isError"))
}

/// The stable code of an error of the host, or else its JSON-RPC code.
pub fn code_of(error: &RpcError) -> String {
    let ours = error.data.as_ref().and_then(|data| data["code"].as_str());
    ours.map_or_else(|| error.code.to_string(), ToOwned::to_owned)
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
        let body = |reply: HostReply| reply.to_json().into_bytes();
        let result = raw(&json!({"content": []}));
        assert!(matches!(shared_answer(body(HostReply::Rpc(Outcome::Result(result)))), Ok(Some(_))));
        let asks = raw(&json!({"resultType": "input_required", "inputRequests": {}}));
        assert!(matches!(shared_answer(body(HostReply::Rpc(Outcome::Result(asks)))), Ok(None)));
        assert!(matches!(shared_answer(body(HostReply::Cancelled)), Ok(None)));
        assert!(shared_answer(Bytes::from_static(b"no JSON")).is_err());
    }
}
