//! Who may connect, and as whom. The seam for credentials of one's own per agent.

use std::fmt;
use subtle::ConstantTimeEq;
use toolbus_protocol::{AgentRef, Hello};

/// What a peer presents.
pub struct Credential<'a> {
    pub hello: &'a Hello,
}

/// Decides who a peer is. Everything that depends on identity uses what this returns, not what the peer said.
pub trait Authenticator: Send + Sync {
    fn authenticate(&self, credential: &Credential<'_>) -> Option<AgentRef>;
}

/// One secret for all, as in the original: whoever has it may take any name.
pub struct SharedToken(String);

impl SharedToken {
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }
}

impl Authenticator for SharedToken {
    fn authenticate(&self, credential: &Credential<'_>) -> Option<AgentRef> {
        // Takes as long for a token that is wrong in its first byte as for one that is wrong in its last.
        let equal: bool = credential.hello.token.as_bytes().ct_eq(self.0.as_bytes()).into();
        (equal && !self.0.is_empty()).then(|| credential.hello.agent.clone())
    }
}

impl fmt::Debug for SharedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedToken(…)")
    }
}
