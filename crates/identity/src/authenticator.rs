//! The seam between whoever knows credentials and whoever serves connections.

use crate::Identity;
use toolbus_protocol::{AgentRef, ErrorCode};

/// What a peer presents, and whom it says it is.
#[derive(Clone, Copy)]
pub struct Credential<'a> {
    /// Of `hello`, or of the `Authorization` header; empty if there is none.
    pub token: &'a str,
    /// The client's certificate (DER), where TLS has verified one.
    pub certificate: Option<&'a [u8]>,
    /// [`crate::OWN_NAME`], alone or before a `#`, stands for the name of the credential.
    pub claimed: &'a AgentRef,
}

/// Why nobody is let in. The reason quotes nothing of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthRefusal {
    pub code: ErrorCode,
    pub reason: String,
}

impl AuthRefusal {
    pub fn new(code: ErrorCode, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into() }
    }

    /// The same words for every credential that is not known here, so that nobody learns which part was right.
    pub fn unknown() -> Self {
        Self::new(ErrorCode::BadCredentials, "invalid token")
    }
}

/// Decides who a peer is. Everything that depends on identity uses what this returns, not what the peer said.
pub trait Authenticator: Send + Sync {
    fn authenticate(&self, credential: &Credential<'_>) -> Result<Identity, AuthRefusal>;

    /// Whether the name is an agent's here, revoked ones included: what it may is decided here alone.
    fn knows(&self, _name: &str) -> bool {
        false
    }

    /// The role of the agent of that name, where that is known without it being there.
    fn role_of(&self, _name: &str) -> Option<String> {
        None
    }

    /// Whether the agent of that name may act as a host, connected or not.
    fn is_host(&self, _name: &str) -> bool {
        false
    }
}
