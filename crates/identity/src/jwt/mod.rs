//! Tokens of an identity provider. A signature proves who issued a token; issuer, audience and time decide whether it is
//! meant for us; its claims say who its holder is.

mod claims;
mod keys;
mod ring_verifier;
mod source;

use crate::binding::bind;
use crate::patterns::Pattern;
use crate::{AuthRefusal, Authenticator, Credential, Identity, Standing};
use claims::{Claims, Holder};
use hyper::Uri;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use source::KeySource;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use toolbus_protocol::ErrorCode;

/// Longer ones are refused unread.
const MAX_TOKEN_BYTES: usize = 16 << 10;
/// How far the issuer's clock may be ahead of ours. A token's end is taken as it stands.
const LEEWAY: Duration = Duration::from_secs(5);

/// `[auth.jwt]`.
#[derive(Debug, Clone, PartialEq)]
pub struct JwtConfig {
    pub issuer: String,
    /// One of these has to be among the token's audiences.
    pub audiences: Vec<String>,
    pub keys: KeysFrom,
    pub name_claim: String,
    pub role_claim: String,
    /// From values of the role's claim to our roles, the first that fits counts. Empty: the claim is the role.
    pub roles: Vec<(String, String)>,
    /// Where this claim is `true`, the holder may act as a host.
    pub host_claim: Option<String>,
    /// Names that may act as hosts, whatever their token says.
    pub hosts: Vec<Pattern>,
}

/// Where the issuer's public keys are.
#[derive(Debug, Clone, PartialEq)]
pub enum KeysFrom {
    /// One key in each.
    Pem(Vec<PathBuf>),
    JwksFile(PathBuf),
    JwksUrl {
        url: Uri,
        /// How often they are fetched again.
        refresh: Duration,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum JwtError {
    #[error("can't read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} can't be used: {reason}", path.display())]
    Key { path: PathBuf, reason: String },
}

pub struct JwtAuthenticator {
    config: JwtConfig,
    keys: KeySource,
}

impl JwtAuthenticator {
    /// Has to be called within a tokio runtime where keys come from a JWKS file or URL: they are followed.
    pub fn new(config: JwtConfig) -> Result<Self, JwtError> {
        ring_verifier::install();
        let keys = KeySource::open(&config.keys)?;
        Ok(Self { config, keys })
    }

    /// Waits for the first keys of a JWKS URL, but not for long. Without them tokens can't be checked yet.
    pub async fn ready(&self, limit: Duration) {
        tokio::time::timeout(limit, self.keys.fetched()).await.ok();
    }

    fn verified(&self, token: &str) -> Result<Claims, AuthRefusal> {
        let header = decode_header(token).map_err(|_| AuthRefusal::unknown())?;
        // `crit` names what has to be understood, and we understand nothing beyond the standard.
        if !ring_verifier::is_known(header.alg) || header.crit.is_some() {
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
        if candidates.peek().is_none() && self.keys.ask_for_newer() {
            let reason = "the token's key is not known yet; the issuer's keys are being fetched";
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
    fn is_host(&self, name: &str) -> bool {
        self.hosts.iter().any(|pattern| pattern.matches(name))
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
        Ok(Identity { agent, rights: holder.rights, standing: Standing::until(holder.expires) })
    }

    /// Whoever is a host by a claim of its token is not known before it comes.
    fn is_host(&self, name: &str) -> bool {
        self.config.is_host(name)
    }
}

/// What is said only about tokens whose signature is good may be helpful.
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
