//! Audits requests: the decision before a request runs, and its end. A request whose decision can't be audited is not
//! run.

use super::answers::code_of;
use super::authorise::Authorised;
use super::slot::{Deferred, Slot};
use crate::catalog::names::own_name;
use crate::failure;
use crate::host::Host;
use std::sync::Arc;
use toolbus_audit::{AuditLog, CallEnd, Caller as AuditCaller, Record};
use toolbus_call::Grant;
use toolbus_mcp::RpcError;
use toolbus_policy::Effect;
use toolbus_protocol::ErrorCode;

/// Whether a decision is audited now.
enum Deferral {
    None,
    Wait,
    /// The wait is over; the first decision has the rule.
    Over(Arc<Authorised>),
}

impl Host {
    /// The decision about a request if it needs no audit record; `None` if it does.
    pub(super) fn authorised_at_once(&self, slot: &Slot, again: bool) -> Option<Grant> {
        let is_unnamed = slot.parsed.subject.name.is_none();
        let is_deferred = matches!(slot.state().deferred, Deferred::Until(_));
        if (is_deferred || (!again && !is_unnamed)) && self.options.audit.is_some() {
            return None;
        }
        self.authorise(slot, again).ok().map(|authorised| authorised.grant())
    }

    /// Decides about a request, and audits the decision. Of requests without a name, such as lists, and of repeated
    /// decisions only refusals are audited.
    pub(super) async fn authorise_and_audit(&self, slot: &Slot, again: bool) -> Result<Grant, RpcError> {
        let decided = self.authorise(slot, again);
        if decided.is_ok() && !again && self.needs_synced_start(slot) {
            self.options.journal.expect_sync();
        }
        let is_unnamed = slot.parsed.subject.name.is_none();
        let (is_routine, audited) = match self.deferral(slot, &decided, again) {
            Deferral::Wait => return decided.map(|authorised| authorised.grant()),
            Deferral::Over(first) => (false, decided.clone().map(|_| first)),
            Deferral::None => (again || is_unnamed, decided.clone()),
        };
        match &self.options.audit {
            Some(audit) if decided.is_err() || !is_routine => audit_decision(audit, slot, &audited).await?,
            _ => {}
        }
        decided.map(|authorised| authorised.grant())
    }

    /// Defers the audit of a call of a tool that the catalog does not have, until the connection's own list is known.
    fn deferral(&self, slot: &Slot, decided: &Result<Arc<Authorised>, RpcError>, again: bool) -> Deferral {
        let mut state = slot.state();
        match (std::mem::take(&mut state.deferred), decided) {
            (Deferred::Until(first), Err(_)) => {
                state.deferred = Deferred::Refused;
                Deferral::Over(first)
            }
            (Deferred::Until(first), Ok(_)) if state.listed.is_some() => Deferral::Over(first),
            (Deferred::Until(first), Ok(_)) => {
                state.deferred = Deferred::Until(first);
                Deferral::Wait
            }
            (_, Ok(first)) if !again && first.effect == Effect::Allow && self.is_unlisted(slot) => {
                state.deferred = Deferred::Until(Arc::clone(first));
                Deferral::Wait
            }
            _ => Deferral::None,
        }
    }

    fn is_unlisted(&self, slot: &Slot) -> bool {
        let (config, tool) = (&slot.server.config, slot.parsed.named_tool());
        let own = tool.and_then(|visible| own_name(config.prefix.as_deref(), visible));
        !config.dynamic_tools && own.is_some_and(|own| !self.catalog.lists_tool(slot.server.index, own))
    }

    /// Audits the end of a call, once.
    pub(super) async fn audit_end(&self, slot: &Slot) {
        let record = self.end_of(slot);
        self.audit_ended(record).await;
    }

    /// The record of the end of a call that is not audited yet.
    pub(super) fn end_of(&self, slot: &Slot) -> Option<Record> {
        let (outcome, result_bytes) = slot.state().outcome.take()?;
        let audit = self.options.audit.as_ref().filter(|_| slot.parsed.subject.name.is_some())?;
        let is_worth_a_line = match std::mem::take(&mut slot.state().deferred) {
            Deferred::No => true,
            Deferred::Refused => false,
            // It ended before it was decided, so it did not run.
            Deferred::Until(_) => audit.is_refusal_worth_a_line(&audit_caller(slot), &outcome),
        };
        if !is_worth_a_line {
            return None;
        }
        let started_at = slot.state().started_at;
        let queued = started_at.map_or(slot.received_at.elapsed(), |started_at| started_at - slot.received_at);
        let end = CallEnd {
            outcome,
            attempt: self.outbox.client().attempt_of(slot.id()).unwrap_or(1),
            queued_ms: queued.as_millis() as u64,
            ran_ms: started_at.map_or(0, |started_at| started_at.elapsed().as_millis() as u64),
            request_bytes: slot.parsed.rpc.params.as_ref().map_or(0, |params| params.get().len() as u64),
            result_bytes: result_bytes as u64,
        };
        Some(Record::Call { caller: audit_caller(slot), subject: slot.parsed.subject.clone(), end })
    }

    pub(super) async fn audit_ended(&self, record: Option<Record>) {
        let (Some(audit), Some(record)) = (&self.options.audit, record) else { return };
        if let Err(error) = audit.post(record).await {
            tracing::error!(%error, "could not audit the end of a call");
        }
    }
}

async fn audit_decision(
    audit: &AuditLog,
    slot: &Slot,
    decided: &Result<Arc<Authorised>, RpcError>,
) -> Result<(), RpcError> {
    let (effect, rule, code) = match decided.as_deref() {
        Ok(Authorised { effect: Effect::Ask, why, .. }) => ("ask", why.clone(), None),
        Ok(Authorised { why, .. }) => ("allow", why.clone(), None),
        Err(error) => {
            let code = code_of(error);
            let by_rule = [ErrorCode::NotAllowed, ErrorCode::BadArguments].map(ErrorCode::code);
            let effect = if by_rule.contains(&code.as_str()) { "deny" } else { "refuse" };
            (effect, error.message.clone(), Some(code))
        }
    };
    let (caller, effect, rule) = (audit_caller(slot), effect.to_owned(), Some(rule));
    // A flood of refused requests must not displace other records.
    if code.as_deref().is_some_and(|code| !audit.is_refusal_worth_a_line(&caller, code)) {
        return Ok(());
    }
    let record = Record::Decision { caller, subject: slot.parsed.subject.clone(), effect, rule, code };
    audit.write(record).await.map_err(|error| failure::not_audited(&error))
}

pub fn audit_caller(slot: &Slot) -> AuditCaller {
    AuditCaller { who: slot.mailbox().to_owned(), role: slot.role().map(ToOwned::to_owned) }
}
