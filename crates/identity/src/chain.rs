//! Several ways to be known: what is presented decides which one is asked, and only that one.

use crate::certificate::CertificateAuthenticator;
use crate::jwt::JwtAuthenticator;
use crate::{AuthRefusal, Authenticator, Credential, Identity, Registry, token};
use toolbus_protocol::ErrorCode;

/// Tokens of our own go to the registry, tokens with two dots to the identity provider's part; a client without a token
/// is known by its certificate.
pub struct Chain {
    pub registry: Registry,
    pub jwt: Option<JwtAuthenticator>,
    pub certificates: Option<CertificateAuthenticator>,
}

impl Chain {
    /// A name in the registry belongs to the credential that is made there: whoever chooses the names elsewhere must not
    /// read its mailbox.
    fn not_ours(&self, identity: Identity) -> Result<Identity, AuthRefusal> {
        if self.registry.knows(identity.principal()) {
            let reason = format!("the name {:?} belongs to an agent with a token of this broker", identity.principal());
            return Err(AuthRefusal::new(ErrorCode::NotYourName, reason));
        }
        Ok(identity)
    }
}

impl Authenticator for Chain {
    fn authenticate(&self, credential: &Credential<'_>) -> Result<Identity, AuthRefusal> {
        let shown = credential.token;
        let elsewhere: Option<&dyn Authenticator> = if token::is_ours(shown) {
            return self.registry.authenticate(credential);
        } else if shown.is_empty() && credential.certificate.is_some() {
            self.certificates.as_ref().map(|known| known as _)
        } else if shown.bytes().filter(|byte| *byte == b'.').take(3).count() == 2 {
            self.jwt.as_ref().map(|known| known as _)
        } else {
            None
        };
        let identity = elsewhere.ok_or_else(AuthRefusal::unknown)?.authenticate(credential)?;
        self.not_ours(identity)
    }

    fn knows(&self, name: &str) -> bool {
        self.registry.knows(name)
    }

    fn role_of(&self, name: &str) -> Option<String> {
        self.registry.role_of(name)
    }

    fn is_host(&self, name: &str) -> bool {
        self.registry.is_host(name)
            || self.jwt.as_ref().is_some_and(|known| known.is_host(name))
            || self.certificates.as_ref().is_some_and(|known| known.is_host(name))
    }
}
