//! The interface between authentication and the code that serves connections.

use crate::{AgentsFollower, Identity};
use toolbus_protocol::{AgentRef, ErrorCode};

/// The credential that a peer presents, and the identity that it claims.
#[derive(Clone, Copy)]
pub struct Credential<'a> {
    /// The token from `hello` or the `Authorization` header; empty if there is none.
    pub token: &'a str,
    /// The client certificate (DER), if TLS has verified one.
    pub certificate: Option<&'a [u8]>,
    /// The claimed name and role. [`crate::OWN_NAME`], alone or before a `#`, stands for the name of the credential.
    pub claimed: &'a AgentRef,
}

/// Why a credential is refused. The reason never contains any part of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthRefusal {
    /// The stable error code.
    pub code: ErrorCode,
    /// The explanation sent to the peer.
    pub reason: String,
}

impl AuthRefusal {
    /// A refusal with this code and explanation.
    pub fn new(code: ErrorCode, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into() }
    }

    /// The refusal of every unknown credential. Always the same text, so that it does not reveal which part was right.
    pub fn unknown() -> Self {
        Self::new(ErrorCode::BadCredentials, "invalid token")
    }
}

/// Authenticates peers. All decisions that depend on identity use the returned [`Identity`], never the claimed one.
pub trait Authenticator: Send + Sync {
    /// Checks a credential and returns the identity that it proves.
    fn authenticate(&self, credential: &Credential<'_>) -> Result<Identity, AuthRefusal>;

    /// Reports registered agents and their changes from now on. Only the first follower is called, and none if the
    /// authenticator has no registry.
    fn follow_agents(&self, _follower: AgentsFollower) {}

    /// Whether an agent of that name is registered here, revoked ones included. Its rights are then decided here alone.
    fn knows(&self, _name: &str) -> bool {
        false
    }

    /// Whether certainly no agent has that name. False if agents are not registered, or may come from an issuer.
    fn is_unknown(&self, _name: &str) -> bool {
        false
    }

    /// The role of the agent of that name, if it is known without a connection.
    fn role_of(&self, _name: &str) -> Option<String> {
        None
    }

    /// Whether the agent of that name may act as a host, connected or not.
    fn is_host(&self, _name: &str) -> bool {
        false
    }
}
