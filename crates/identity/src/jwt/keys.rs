//! The public keys of an issuer, from PEM files or a JWKS document. Each key is bound to one algorithm, regardless of
//! the token.

use super::JwtError;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use std::path::Path;
use toolbus_base::read_trusted;

/// Keys read from a JWKS document; more than issuers publish.
const MAX_KEYS: usize = 64;
/// Length of an uncompressed point on P-256.
const P256_POINT_BYTES: usize = 65;

#[derive(Clone)]
pub struct PublicKey {
    id: Option<String>,
    pub algorithm: Algorithm,
    pub key: DecodingKey,
}

#[derive(Clone, Default)]
pub struct KeySet(Vec<PublicKey>);

impl KeySet {
    /// Keys that may have signed a token with this header. Keys without an id are candidates for every token.
    pub fn candidates<'a>(&'a self, algorithm: Algorithm, id: Option<&'a str>) -> impl Iterator<Item = &'a PublicKey> {
        let matches = move |key: &&PublicKey| {
            key.algorithm == algorithm && (id.is_none() || key.id.is_none() || key.id.as_deref() == id)
        };
        self.0.iter().filter(matches)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ignores keys for other purposes and of unsupported types; a document without a supported key is an error.
    pub fn read_jwks(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Document {
            keys: Vec<serde_json::Value>,
        }
        let document: Document = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let keys = document.keys.into_iter().take(MAX_KEYS);
        let keys = keys.filter_map(|key| serde_json::from_value(key).ok()).filter_map(|key| of_jwk(&key));
        let set = Self(keys.collect());
        if set.is_empty() {
            return Err("it contains no key for EdDSA, ES256 or RS256".into());
        }
        Ok(set)
    }

    pub fn read_pem(path: &Path) -> Result<PublicKey, JwtError> {
        let bad = |reason: &str| JwtError::Key { path: path.to_owned(), reason: reason.to_owned() };
        let text = read_trusted(path).map_err(|source| JwtError::Read { path: path.to_owned(), source })?;
        // Private keys are refused: they are not needed and should not be on this machine.
        let is_public = text.windows(11).any(|words| words == b"PUBLIC KEY-");
        if !is_public {
            return Err(bad("it is not a public key in PEM format"));
        }
        let unknown = bad("it is not a key for EdDSA (Ed25519), ES256 (P-256) or RS256 (RSA)");
        let ed = DecodingKey::from_ed_pem(&text).map(|key| (Algorithm::EdDSA, key));
        let ec = || DecodingKey::from_ec_pem(&text).map(|key| (Algorithm::ES256, key));
        let rsa = || DecodingKey::from_rsa_pem(&text).map(|key| (Algorithm::RS256, key));
        let Ok((algorithm, key)) = ed.or_else(|_| ec()).or_else(|_| rsa()) else { return Err(unknown) };
        let is_p256 = || key.try_get_as_bytes().is_ok_and(|point| point.len() == P256_POINT_BYTES);
        if algorithm == Algorithm::ES256 && !is_p256() {
            return Err(unknown);
        }
        Ok(PublicKey { id: None, algorithm, key })
    }

    pub fn of(keys: Vec<PublicKey>) -> Self {
        Self(keys)
    }
}

fn of_jwk(jwk: &Jwk) -> Option<PublicKey> {
    if jwk.common.public_key_use.as_ref().is_some_and(|purpose| *purpose != PublicKeyUse::Signature) {
        return None;
    }
    let (algorithm, expected) = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => (Algorithm::RS256, KeyAlgorithm::RS256),
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, KeyAlgorithm::ES256)
        }
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            (Algorithm::EdDSA, KeyAlgorithm::EdDSA)
        }
        _ => return None,
    };
    // A key declared for another algorithm, for example PS256, must not be used.
    if jwk.common.key_algorithm.is_some_and(|declared| declared != expected) {
        return None;
    }
    let key = DecodingKey::from_jwk(jwk).ok()?;
    Some(PublicKey { id: jwk.common.key_id.clone(), algorithm, key })
}
