//! What the broker writes down: who came and went, who was refused, and what nobody may send.

use crate::handshake::Goodbye;
use toolbus_audit::{AuditLog, Caller, Record};
use toolbus_engine::{Outgoing, Refusal};
use toolbus_protocol::{AgentRef, ErrorCode};

/// The log from the side of one connection.
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

    /// A goodbye is why it was closed, if it was not the peer who left.
    pub fn closed(&self, goodbye: Option<&Goodbye>) {
        let code = goodbye.map(|goodbye| goodbye.code);
        let what = match code {
            Some(ErrorCode::CredentialRevoked) => Some("revoked"),
            Some(ErrorCode::CredentialExpired) => Some("expired"),
            _ => None,
        };
        if let Some(what) = what {
            self.log.note(Record::Credential { agent: self.caller.who.clone(), what: what.to_owned() });
        }
        self.connection("closed", code);
    }

    /// Of what a connection is sent, only what says that it may not do something.
    pub fn look_at(&self, outgoing: &Outgoing) {
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

    fn connection(&self, state: &'static str, code: Option<ErrorCode>) {
        let code = code.map(|code| code.code().to_owned());
        self.log.note(Record::Connection { caller: self.caller.clone(), state, code });
    }
}
