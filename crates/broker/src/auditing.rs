//! Audit records of the broker: connections opened, closed and refused, and messages that a sender may not send.

use crate::handshake::CloseReason;
use crate::name_owners::HeldBack;
use toolbus_audit::{AuditLog, Caller, Record};
use toolbus_engine::{Outgoing, Refusal};
use toolbus_protocol::{AgentRef, ErrorCode};

/// Writes the audit records of one connection.
pub struct Auditor {
    log: AuditLog,
    caller: Caller,
}

impl Auditor {
    pub fn new(log: Option<&AuditLog>, agent: &AgentRef) -> Option<Self> {
        let role = agent.role.as_ref().map(ToString::to_string);
        Some(Self { log: log?.clone(), caller: Caller { who: agent.session_id.to_string(), role } })
    }

    pub fn accepted(&self) {
        self.connection("accepted", None);
    }

    /// `reason` is `None` unless the broker closed the connection with an error.
    pub fn closed(&self, reason: Option<&CloseReason>) {
        let code = reason.map(|reason| reason.code);
        let credential = match code {
            Some(ErrorCode::CredentialRevoked) => Some("revoked"),
            Some(ErrorCode::CredentialExpired) => Some("expired"),
            _ => None,
        };
        if let Some(what) = credential {
            self.log.note(Record::Credential { agent: self.caller.who.clone(), what: what.to_owned() });
        }
        self.connection("closed", code);
    }

    /// Records a frame to the peer if it refuses an operation for lack of rights.
    pub fn record_refusal(&self, outgoing: &Outgoing) {
        let Outgoing::Refused { refusal, .. } = outgoing else { return };
        match refusal {
            Refusal::MayNotSend { mailbox } => self.refused(ErrorCode::MayNotSend, mailbox),
            Refusal::NotYourRequest { mailbox, .. } => self.refused(ErrorCode::NotYourRequest, mailbox),
            Refusal::NotAHost => self.refused(ErrorCode::NotAHost, ""),
            Refusal::OperatorOnly => self.refused(ErrorCode::OperatorOnly, ""),
            _ => {}
        }
    }

    pub fn refused(&self, code: ErrorCode, to: &str) {
        self.log.send_refused(&self.caller, to, code.code());
    }

    pub fn held_back(&self, held: &HeldBack) {
        let (host, reason) = (self.caller.who.clone(), held.reason.explain(&self.caller.who));
        self.log.note(Record::NameHeldBack { host, name: held.name.clone(), reason });
    }

    fn connection(&self, state: &'static str, code: Option<ErrorCode>) {
        let code = code.map(|code| code.code().to_owned());
        self.log.note(Record::Connection { caller: self.caller.clone(), state, code });
    }
}
