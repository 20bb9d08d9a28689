//! Several authenticators: the kind of credential presented decides which one is used, and only that one.

use crate::certificate::CertificateAuthenticator;
use crate::jwt::JwtAuthenticator;
use crate::{AgentsFollower, AuthRefusal, Authenticator, Credential, Identity, Qualifier, Registry, token};
use toolbus_protocol::ErrorCode;

/// Our own tokens are checked by the registry, tokens with two dots as JWTs, and clients without a token by their
/// certificate.
pub struct Chain {
    /// Checks our own tokens.
    pub registry: Registry,
    /// Checks JWTs, if configured.
    pub jwt: Option<JwtAuthenticator>,
    /// Checks client certificates, if configured.
    pub certificates: Option<CertificateAuthenticator>,
}

impl Chain {
    /// The qualifiers of the configured issuers.
    fn qualifiers(&self) -> impl Iterator<Item = &Qualifier> {
        let jwt = self.jwt.as_ref().map(JwtAuthenticator::qualifier);
        jwt.into_iter().chain(self.certificates.as_ref().map(CertificateAuthenticator::qualifier))
    }

    /// An issuer must not get access to the mailboxes of another one.
    fn check_own_name(&self, own: &Qualifier, identity: Identity) -> Result<Identity, AuthRefusal> {
        let agent = identity.principal();
        if self.qualifiers().any(|other| own.trespasses(agent, other)) {
            let reason = format!("the name {agent:?} is reserved for an agent of another issuer");
            return Err(AuthRefusal::new(ErrorCode::NotYourName, reason));
        }
        self.check_not_registered(identity)
    }

    /// Names in the registry are reserved for our own tokens: an external issuer, which chooses names freely, must not
    /// get access to their mailboxes.
    fn check_not_registered(&self, identity: Identity) -> Result<Identity, AuthRefusal> {
        if self.registry.knows(identity.principal()) {
            let reason =
                format!("the name {:?} is reserved for an agent with a token of this broker", identity.principal());
            return Err(AuthRefusal::new(ErrorCode::NotYourName, reason));
        }
        Ok(identity)
    }
}

impl Authenticator for Chain {
    fn authenticate(&self, credential: &Credential<'_>) -> Result<Identity, AuthRefusal> {
        let presented = credential.token;
        let external: Option<(&dyn Authenticator, &Qualifier)> = if token::has_own_prefix(presented) {
            return self.registry.authenticate(credential);
        } else if presented.is_empty() && credential.certificate.is_some() {
            self.certificates.as_ref().map(|issuer| (issuer as _, issuer.qualifier()))
        } else if presented.bytes().filter(|byte| *byte == b'.').take(3).count() == 2 {
            self.jwt.as_ref().map(|issuer| (issuer as _, issuer.qualifier()))
        } else {
            None
        };
        let (issuer, qualifier) = external.ok_or_else(AuthRefusal::unknown)?;
        self.check_own_name(qualifier, issuer.authenticate(credential)?)
    }

    fn follow_agents(&self, follower: AgentsFollower) {
        self.registry.follow_agents(follower);
    }

    fn knows(&self, name: &str) -> bool {
        self.registry.knows(name)
    }

    fn is_unknown(&self, name: &str) -> bool {
        self.registry.is_unknown(name) && self.qualifiers().all(|issuer| issuer.strip(name).is_none())
    }

    fn role_of(&self, name: &str) -> Option<String> {
        self.registry.role_of(name)
    }

    fn is_host(&self, name: &str) -> bool {
        self.registry.is_host(name)
            || self.jwt.as_ref().is_some_and(|authenticator| authenticator.is_host(name))
            || self.certificates.as_ref().is_some_and(|authenticator| authenticator.is_host(name))
    }
}
