//! One shared secret, as in the original: every holder may take any name and role.

use crate::{AuthRefusal, Authenticator, Credential, Identity, OWN_NAME, Rights, mailbox_of, principal_of};
use std::fmt;
use subtle::ConstantTimeEq;

/// The name of peers that claim [`OWN_NAME`]: the shared token has no name of its own.
const ANONYMOUS: &str = "anonymous";

/// Authenticates every peer that presents the shared secret, with all rights.
pub struct SharedToken(String);

impl SharedToken {
    /// Uses `token` as the secret; an empty one authenticates no peer.
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }
}

impl Authenticator for SharedToken {
    fn authenticate(&self, credential: &Credential<'_>) -> Result<Identity, AuthRefusal> {
        // Constant-time comparison: the duration must not reveal how many leading bytes are right.
        let equal: bool = credential.token.as_bytes().ct_eq(self.0.as_bytes()).into();
        if !equal || self.0.is_empty() {
            return Err(AuthRefusal::unknown());
        }
        let mut agent = credential.claimed.clone();
        if principal_of(&agent.session_id) == OWN_NAME
            && let Some(mailbox) = mailbox_of(ANONYMOUS, &agent.session_id)
        {
            agent.session_id = mailbox;
        }
        Ok(Identity::local(agent, Rights::UNRESTRICTED))
    }

    fn is_host(&self, _name: &str) -> bool {
        true
    }
}

impl fmt::Debug for SharedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedToken(…)")
    }
}
