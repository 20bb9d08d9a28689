//! The admin API for approvals: lists the calls that wait, and takes decisions.

use super::PendingApproval;
use super::listed::{Listed, truncated_name};
use super::store::{DecideError, Verdict};
use crate::failure;
use crate::host::Host;
use std::sync::Arc;
use toolbus_audit::{Caller as AuditCaller, Record, Subject};
use toolbus_mcp::{ApprovalDecision, Members, Outcome, Raw, RpcError, codes, raw};
use toolbus_protocol::{AgentRef, ErrorCode, principal_of};

/// The role that may approve its own calls.
const OPERATOR: &str = "operator";
/// Unknown ids are truncated to this in the audit log.
const MAX_ID_BYTES: usize = 64;

impl Host {
    pub fn list_approvals(&self, from: &AgentRef) -> Outcome {
        match self.may_decide(from) {
            Ok(()) => {
                let all = self.options.approvals.list();
                one_member("approvals", &all.iter().map(|pending| Listed::from(&**pending)).collect::<Vec<_>>())
            }
            Err(error) => error.into(),
        }
    }

    /// Shows a call completely, because the approver has to see everything that is approved.
    pub fn show_approval(&self, from: &AgentRef, id: &str) -> Outcome {
        if let Err(error) = self.may_decide(from) {
            return error.into();
        }
        match self.options.approvals.find(id) {
            Some(pending) => one_member("approval", &*pending),
            None => {
                let unknown = DecideError::Unknown(id.to_owned());
                failure::bus(ErrorCode::UnknownName, unknown.to_string()).into()
            }
        }
    }

    pub async fn decide_approval(&self, from: &AgentRef, decision: ApprovalDecision) -> Outcome {
        let id = decision.id.clone();
        match self.try_decide(from, decision).await {
            // The call itself audits the decision before it takes effect.
            Ok(pending) => one_member("decided", &Listed::from(&*pending)),
            Err(error) => {
                self.audit_refusal(from, &id);
                error.into()
            }
        }
    }

    async fn try_decide(&self, from: &AgentRef, decision: ApprovalDecision) -> Result<Arc<PendingApproval>, RpcError> {
        self.may_decide(from)?;
        let ApprovalDecision { id, hash, approve } = decision;
        let at_ms = toolbus_base::now_ms();
        let by = from.session_id.to_string();
        let is_operator = is_operator(from);
        let is_own = |pending: &PendingApproval| {
            approve && !is_operator && principal_of(&pending.caller) == principal_of(&from.session_id)
        };
        let verdict = Verdict { hash, approve, by, by_role: from.role.as_ref().map(ToString::to_string), at_ms };
        let decided = self.options.approvals.decide(&id, verdict, is_own).await;
        decided.map_err(|error| match error {
            DecideError::OwnCall => failure::bus(ErrorCode::NotAllowed, error.to_string()),
            DecideError::Write(_) => RpcError::new(codes::INTERNAL_ERROR, error.to_string()),
            DecideError::Unknown(_) | DecideError::OtherHash(_) => {
                failure::bus(ErrorCode::UnknownName, error.to_string())
            }
        })
    }

    fn audit_refusal(&self, from: &AgentRef, id: &str) {
        let Some(audit) = &self.options.audit else { return };
        if self.options.approvals.may_audit_refusal() {
            audit.note(refusal(self.options.approvals.find(id).as_deref(), id, from));
        }
    }

    fn may_decide(&self, from: &AgentRef) -> Result<(), RpcError> {
        let role = from.role.as_deref();
        if self.options.policy.current().may_approve(role) {
            return Ok(());
        }
        let message = format!(
            "{} may not approve calls",
            role.map_or("an agent without a role".into(), |role| format!("role '{role}'"))
        );
        Err(failure::bus(ErrorCode::NotAllowed, message))
    }
}

/// Whether the sender is an operator. The broker stamps the role.
pub fn is_operator(from: &AgentRef) -> bool {
    from.role.as_deref() == Some(OPERATOR)
}

/// Assembled as text, so that the arguments keep their formatting.
fn one_member(name: &'static str, value: &(impl serde::Serialize + ?Sized)) -> Outcome {
    let mut members = Members::default();
    members.set(name, raw(value));
    Outcome::Result(members.into_raw())
}

/// The audit record of a decision that was refused.
fn refusal(pending: Option<&PendingApproval>, id: &str, from: &AgentRef) -> Record {
    let by = AuditCaller { who: from.session_id.to_string(), role: from.role.as_ref().map(ToString::to_string) };
    let (caller, subject) = match pending {
        Some(pending) => (AuditCaller { who: pending.caller.clone(), role: pending.role.clone() }, subject(pending)),
        None => (AuditCaller { who: String::new(), role: None }, Subject::default()),
    };
    let id = id[..id.floor_char_boundary(MAX_ID_BYTES)].to_owned();
    Record::Approval { id, state: "refused", by: Some(by), caller, subject }
}

fn subject(pending: &PendingApproval) -> Subject {
    Subject {
        server: pending.server.clone(),
        kind: pending.method.clone(),
        name: Some(truncated_name(&pending.name).to_owned()),
        args: Some(toolbus_audit::argument_hash(pending.arguments.as_ref().map(Raw::get))),
        ..Subject::default()
    }
}
