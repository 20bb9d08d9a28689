//! JWTs of an identity provider. The signature proves the issuer; issuer, audience and validity period decide whether
//! the token is meant for this bus; the claims identify its holder.

mod claims;
mod keys;
mod ring_verifier;
mod source;

use crate::binding::bind;
use crate::patterns::Pattern;
use crate::{AuthRefusal, Authenticator, Credential, Identity, Qualifier, Standing};
use claims::{Claims, Holder};
use hyper::Uri;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use source::KeySource;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use toolbus_protocol::ErrorCode;

/// Longer tokens are refused without parsing.
const MAX_TOKEN_BYTES: usize = 16 << 10;
/// Allowed clock skew of the issuer for `nbf`. Expiry gets no leeway.
const LEEWAY: Duration = Duration::from_secs(5);

/// The table `[auth.jwt]`.
#[derive(Debug, Clone, PartialEq)]
pub struct JwtConfig {
    /// Required value of `iss`.
    pub issuer: String,
    /// Accepted values of `aud`; one of them must be among the token's audiences.
    pub audiences: Vec<String>,
    /// Source of the issuer's public keys.
    pub keys: KeysFrom,
    /// Claim with the name, or a JSON pointer to it.
    pub name_claim: String,
    /// Put before the name.
    pub qualifier: Qualifier,
    /// Claim with the role, or a JSON pointer to it.
    pub role_claim: String,
    /// Maps values of the role claim to roles; the first match wins. If empty, the claim itself is the role.
    pub roles: Vec<(String, String)>,
    /// The holder may act as a host if this claim is `true`.
    pub host_claim: Option<String>,
    /// Patterns of names that may act as hosts, regardless of the claim.
    pub hosts: Vec<Pattern>,
}

/// Source of the issuer's public keys.
#[derive(Debug, Clone, PartialEq)]
pub enum KeysFrom {
    /// PEM files with one key each, read once.
    Pem(Vec<PathBuf>),
    /// A JWKS file, read again when it changes.
    JwksFile(PathBuf),
    /// A JWKS document fetched over HTTP.
    JwksUrl {
        /// Its address.
        url: Uri,
        /// How often it is fetched again.
        refresh: Duration,
    },
}

/// Why the issuer's keys can't be loaded.
#[derive(Debug, thiserror::Error)]
pub enum JwtError {
    /// A file can't be read.
    #[error("can't read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file has no usable key.
    #[error("{} can't be used: {reason}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Authenticates holders of JWTs.
pub struct JwtAuthenticator {
    config: JwtConfig,
    keys: KeySource,
}

impl JwtAuthenticator {
    /// Loads the keys. Must be called within a tokio runtime if they come from a JWKS file or URL, to refresh them.
    pub fn new(config: JwtConfig) -> Result<Self, JwtError> {
        ring_verifier::install();
        let keys = KeySource::open(&config.keys)?;
        Ok(Self { config, keys })
    }

    /// Waits, up to `limit`, for the first fetch of a JWKS URL. Before it, tokens can't be checked.
    pub async fn ready(&self, limit: Duration) {
        tokio::time::timeout(limit, self.keys.fetched()).await.ok();
    }

    pub(crate) fn qualifier(&self) -> &Qualifier {
        &self.config.qualifier
    }

    fn verified(&self, token: &str) -> Result<Claims, AuthRefusal> {
        let header = decode_header(token).map_err(|_| AuthRefusal::unknown())?;
        // `crit` lists extensions that must be understood; none are supported.
        if !ring_verifier::is_supported(header.alg) || header.crit.is_some() {
            return Err(AuthRefusal::unknown());
        }
        let mut validation = Validation::new(header.alg);
        validation.leeway = LEEWAY.as_secs();
        validation.validate_nbf = true;
        validation.set_issuer(&[&self.config.issuer]);
        validation.set_audience(&self.config.audiences);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        let keys = self.keys.current();
        let mut candidates = keys.candidates(header.alg, header.kid.as_deref()).peekable();
        if candidates.peek().is_none() && self.keys.request_refresh() {
            let reason = "the token's signing key is not known yet; the issuer's keys are being fetched";
            return Err(AuthRefusal::new(ErrorCode::CannotCheck, reason));
        }
        for candidate in candidates {
            match decode::<Claims>(token, &candidate.key, &validation) {
                Ok(token) => return Ok(token.claims),
                Err(error) if matches!(error.kind(), ErrorKind::InvalidSignature) => {}
                Err(error) => return Err(refusal(error.kind())),
            }
        }
        Err(AuthRefusal::unknown())
    }
}

impl JwtConfig {
    fn is_host(&self, agent: &str) -> bool {
        let name = self.qualifier.strip(agent);
        name.is_some_and(|name| self.hosts.iter().any(|pattern| pattern.matches(name)))
    }
}

impl Authenticator for JwtAuthenticator {
    fn authenticate(&self, credential: &Credential<'_>) -> Result<Identity, AuthRefusal> {
        if credential.token.len() > MAX_TOKEN_BYTES {
            return Err(AuthRefusal::unknown());
        }
        let holder = Holder::of(&self.verified(credential.token)?, &self.config)?;
        if holder.expires <= SystemTime::now() {
            return Err(refusal(&ErrorKind::ExpiredSignature));
        }
        let agent = bind(&holder.name, holder.role.as_ref(), credential.claimed)?;
        Ok(Identity { agent, rights: holder.rights, standing: Standing::until(holder.expires), incarnation: 0 })
    }

    /// Considers name patterns only: a host claim is unknown until the token is presented.
    fn is_host(&self, name: &str) -> bool {
        self.config.is_host(name)
    }
}

/// Detailed reasons are given only for tokens with a valid signature.
fn refusal(kind: &ErrorKind) -> AuthRefusal {
    let bad = |reason: &str| AuthRefusal::new(ErrorCode::BadCredentials, reason);
    match kind {
        ErrorKind::ExpiredSignature => AuthRefusal::new(ErrorCode::CredentialExpired, "the token has expired"),
        ErrorKind::ImmatureSignature => bad("the token is not valid yet"),
        ErrorKind::InvalidAudience => bad("the token is for another audience"),
        ErrorKind::InvalidIssuer => bad("the token is from another issuer"),
        ErrorKind::MissingRequiredClaim(claim) => bad(&format!("the token has no claim {claim:?}")),
        _ => AuthRefusal::unknown(),
    }
}
