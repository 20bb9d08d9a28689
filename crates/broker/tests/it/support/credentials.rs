//! An authenticator for agents with their own credentials. The token of an agent is derived from its name.

use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use toolbus_broker::{AuthRefusal, Authenticator, Credential, Identity, Rights, Standing};
use toolbus_identity::{EndReason, OWN_NAME, mailbox_of, principal_of};
use toolbus_protocol::{AgentRef, ErrorCode};

pub const WORKER: Rights = Rights::WORKER;
pub const HOST: Rights = Rights::HOST;
pub const OPERATOR: Rights = Rights::OPERATOR;

#[derive(Clone, Default)]
pub struct Credentials {
    agents: Arc<Mutex<HashMap<String, Agent>>>,
}

#[derive(Clone)]
struct Agent {
    role: &'static str,
    rights: Rights,
    standing: Standing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Version 1.
    Json,
    Compact,
}

impl Credentials {
    pub fn add(self, name: &str, role: &'static str, rights: Rights) -> Self {
        self.add_until(name, role, rights, Standing::forever())
    }

    pub fn add_until(self, name: &str, role: &'static str, rights: Rights, standing: Standing) -> Self {
        self.lock().insert(name.to_owned(), Agent { role, rights, standing });
        self
    }

    pub fn revoke(&self, name: &str) {
        let gone = self.lock().remove(name).expect("a known agent");
        gone.standing.end(EndReason::Revoked);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Agent>> {
        self.agents.lock().expect("no panic while holding the lock")
    }
}

pub fn token(name: &str) -> String {
    format!("secret of {name}")
}

/// A `hello` with the token of one agent and the claimed name and role.
pub fn hello_as(token_of: &str, claimed: &str, role: Option<&str>, framing: Framing) -> Value {
    let mut agent = json!({"session_id": claimed});
    if let Some(role) = role {
        agent["role"] = role.into();
    }
    match framing {
        Framing::Json => json!({"kind": "hello", "agent": agent, "token": token(token_of)}),
        Framing::Compact => {
            json!({"kind": "hello", "agent": agent, "token": token(token_of), "version": 2, "framing": "compact"})
        }
    }
}

impl Authenticator for Credentials {
    fn authenticate(&self, credential: &Credential<'_>) -> Result<Identity, AuthRefusal> {
        let agents = self.lock();
        let name = credential.token.strip_prefix("secret of ").ok_or_else(AuthRefusal::unknown)?;
        let Agent { role, rights, standing } = agents.get(name).cloned().ok_or_else(AuthRefusal::unknown)?;
        let AgentRef { session_id, role: claimed_role } = credential.claimed;
        if rights.unrestricted {
            return Ok(Identity::local(credential.claimed.clone(), rights));
        }
        let mailbox = mailbox_of(name, session_id)
            .ok_or_else(|| AuthRefusal::new(ErrorCode::NotYourName, "not the credential's name"))?;
        if claimed_role.as_deref().is_some_and(|claimed| claimed != role) {
            return Err(AuthRefusal::new(ErrorCode::NotYourRole, "not the credential's role"));
        }
        assert_ne!(principal_of(&mailbox), OWN_NAME);
        Ok(Identity { agent: AgentRef::new(mailbox).with_role(role), rights, standing, incarnation: 0 })
    }

    fn is_host(&self, name: &str) -> bool {
        self.lock().get(name).is_some_and(|agent| agent.rights.host)
    }
}
