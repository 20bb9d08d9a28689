//! Audits requests: the decision before a request runs, and its end. A request whose decision can't be audited is not
//! run.

use super::{Authorised, Job, Stop};
use crate::caller::Caller;
use crate::failure;
use toolbus_audit::{CallEnd, Caller as AuditCaller, Record, Subject, argument_hash};
use toolbus_mcp::{Members, NameKey, Outcome, Rpc, RpcError, meta, required_name};
use toolbus_policy::Effect;

const TRACE_PARENT: &str = "traceparent";

impl Job {
    /// Of requests without a name, such as lists, only refusals are audited.
    pub(super) async fn audit_decision(&self, decided: &Result<Authorised, RpcError>) -> Result<(), Stop> {
        let Some(audit) = &self.host.options.audit else { return Ok(()) };
        let subject = self.subject.clone();
        if subject.name.is_none() && decided.is_ok() {
            return Ok(());
        }
        let (effect, rule, code) = match decided {
            Ok(Authorised { effect: Effect::Ask, why, .. }) => ("ask", why.clone(), None),
            Ok(Authorised { why, .. }) => ("allow", why.clone(), None),
            Err(error) => {
                let code = bus_code(error);
                let effect = if matches!(code.as_str(), "TB0403" | "TB0419") { "deny" } else { "refuse" };
                (effect, error.message.clone(), Some(code))
            }
        };
        let (caller, effect, rule) = (self.audit_caller(), effect.to_owned(), Some(rule));
        // A flood of refused requests must not displace other records.
        if code.as_deref().is_some_and(|code| !audit.is_refusal_worth_a_line(&caller, code)) {
            return Ok(());
        }
        let record = Record::Decision { caller, subject, effect, rule, code };
        audit.write(record).await.map_err(|error| failure::not_audited(&error).into())
    }

    pub(super) async fn audit_end(&self, outcome: &Result<Outcome, Stop>) {
        let Some(audit) = &self.host.options.audit else { return };
        let subject = self.subject.clone();
        // The call or host that takes over the request audits its end.
        if subject.name.is_none() || matches!(outcome, Err(Stop::HandedOver)) {
            return;
        }
        let (word, result_bytes) = match outcome {
            Ok(outcome) if self.is_joined => ("joined".to_owned(), text_of(outcome).len()),
            Ok(outcome) | Err(Stop::With(outcome)) => (word_for(outcome), text_of(outcome).len()),
            Err(Stop::Unknown(_)) => (toolbus_protocol::ErrorCode::OutcomeUnknown.code().to_owned(), 0),
            Err(Stop::Cancelled | Stop::HandedOver) => {
                (self.past_limit().map_or("cancelled".to_owned(), |outcome| word_for(&outcome)), 0)
            }
        };
        let queued = self.started_at.map_or(self.received_at.elapsed(), |started_at| started_at - self.received_at);
        let end = CallEnd {
            outcome: word,
            attempt: self.host.outbox.client().attempt_of(self.caller.id()).unwrap_or(1),
            queued_ms: queued.as_millis() as u64,
            ran_ms: self.started_at.map_or(0, |started_at| started_at.elapsed().as_millis() as u64),
            request_bytes: self.rpc.params.as_ref().map_or(0, |params| params.get().len() as u64),
            result_bytes: result_bytes as u64,
        };
        if let Err(error) = audit.post(Record::Call { caller: self.audit_caller(), subject, end }).await {
            tracing::error!(%error, "could not audit the end of a call");
        }
    }

    fn audit_caller(&self) -> AuditCaller {
        AuditCaller { who: self.caller.mailbox().to_owned(), role: self.caller.role().map(ToOwned::to_owned) }
    }

    pub fn audit_subject(&self) -> Subject {
        subject_of(&self.caller, &self.rpc)
    }
}

/// The subject of a request, as its caller names it.
pub fn subject_of(caller: &Caller, rpc: &Rpc) -> Subject {
    let params = rpc.params.as_deref();
    let key = required_name(&rpc.method, params).ok().flatten();
    let (kind, name) = match key {
        Some(NameKey::Tool(name)) => ("tool", Some(name)),
        Some(NameKey::Prompt(name)) => ("prompt", Some(name)),
        Some(NameKey::Uri(uri)) => ("resource", Some(uri)),
        Some(NameKey::Task(task)) => ("task", Some(task)),
        None => (rpc.method.as_str(), None),
    };
    let members = Members::of(params).unwrap_or_default();
    let takes_arguments = matches!(kind, "tool" | "prompt");
    // From the bus message, or from the request in it.
    let of_message = caller.request.trace.as_deref().and_then(trace_id);
    Subject {
        server: rpc.server.clone(),
        kind: kind.to_owned(),
        name,
        args: takes_arguments.then(|| argument_hash(members.get("arguments"))),
        request: caller.id().to_string(),
        trace: of_message.or_else(|| trace_id(meta::get(params, TRACE_PARENT)?.get())),
    }
}

/// The trace id of a `traceparent`, `00-<trace>-<span>-<flags>`.
fn trace_id(trace_parent: &str) -> Option<String> {
    let trace = trace_parent.trim_matches('"').split('-').nth(1)?;
    (trace.len() == 32 && trace.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| trace.to_owned())
}

fn text_of(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Result(text) | Outcome::Error(text) => text.get(),
    }
}

/// `ok`, `tool_error`, or an error code.
fn word_for(outcome: &Outcome) -> String {
    let members = Members::parse(text_of(outcome)).unwrap_or_default();
    match outcome {
        Outcome::Result(_) if members.get("isError").is_some_and(|flag| flag.get() == "true") => {
            "tool_error".to_owned()
        }
        Outcome::Result(_) => "ok".to_owned(),
        Outcome::Error(_) => {
            let data = Members::of(members.get("data")).ok();
            let ours = data.and_then(|data| data.text("code"));
            ours.or_else(|| members.get("code").map(|code| code.get().to_owned())).unwrap_or_default()
        }
    }
}

fn bus_code(error: &RpcError) -> String {
    word_for(&error.clone().into())
}
