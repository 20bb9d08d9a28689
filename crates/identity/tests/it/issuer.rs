//! A minimal identity provider: it has keys, publishes them, and signs arbitrary tokens.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

pub const ISSUER: &str = "https://id.example";
pub const AUDIENCE: &str = "toolbus";
const RSA_KEY: &str = include_str!("data/rsa_key_of_the_tests.pem");

pub enum Key {
    Ed { key: Ed25519KeyPair, pem: String },
    Ec { key: EcdsaKeyPair, pem: String },
    Rsa { key: RsaKeyPair },
}

impl Key {
    pub fn ed() -> Self {
        let pair = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
        let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&pair.serialize_der()).expect("a valid key");
        Self::Ed { key, pem: pair.public_key_pem() }
    }

    pub fn ec() -> Self {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let pkcs8 = pair.serialize_der();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &pkcs8, &SystemRandom::new());
        Self::Ec { key: key.expect("a valid key"), pem: pair.public_key_pem() }
    }

    pub fn rsa() -> Self {
        let der = PrivateKeyDer::from_pem_slice(RSA_KEY.as_bytes()).expect("a key");
        Self::Rsa { key: RsaKeyPair::from_pkcs8(der.secret_der()).expect("a valid key") }
    }

    pub fn algorithm(&self) -> &'static str {
        match self {
            Self::Ed { .. } => "EdDSA",
            Self::Ec { .. } => "ES256",
            Self::Rsa { .. } => "RS256",
        }
    }

    /// Writes the public key as a PEM file, as an operator would.
    pub fn public_pem(&self, folder: &Path) -> PathBuf {
        let path = folder.join(format!("{}.pem", self.algorithm()));
        let text = match self {
            Self::Ed { pem, .. } | Self::Ec { pem, .. } => pem.clone(),
            Self::Rsa { key } => {
                let der = base64::engine::general_purpose::STANDARD.encode(key.public().as_ref());
                format!("-----BEGIN RSA PUBLIC KEY-----\n{der}\n-----END RSA PUBLIC KEY-----\n")
            }
        };
        std::fs::write(&path, text).expect("written");
        path
    }

    pub fn jwk(&self, id: &str) -> Value {
        match self {
            Self::Ed { key, .. } => {
                json!({"kty": "OKP", "crv": "Ed25519", "x": encode(key.public_key()), "kid": id, "alg": "EdDSA", "use": "sig"})
            }
            Self::Ec { key, .. } => {
                let (x, y) = key.public_key().as_ref()[1..].split_at(32);
                json!({"kty": "EC", "crv": "P-256", "x": encode(x), "y": encode(y), "kid": id})
            }
            Self::Rsa { key } => {
                let parts = ring::rsa::PublicKeyComponents::<Vec<u8>>::from(key.public());
                json!({"kty": "RSA", "n": encode(parts.n), "e": encode(parts.e), "kid": id, "alg": "RS256"})
            }
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Ed { key, .. } => key.sign(message).as_ref().to_vec(),
            Self::Ec { key, .. } => key.sign(&SystemRandom::new(), message).expect("signed").as_ref().to_vec(),
            Self::Rsa { key } => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).expect("signed");
                signature
            }
        }
    }

    /// A token with these claims.
    pub fn token(&self, id: &str, claims: &Value) -> String {
        self.token_with(&json!({"alg": self.algorithm(), "typ": "JWT", "kid": id}), claims)
    }

    /// A signed token with this header, valid or not.
    pub fn token_with(&self, header: &Value, claims: &Value) -> String {
        let message = message(header, claims);
        format!("{message}.{}", encode(self.sign(message.as_bytes())))
    }
}

/// The signed part of a token.
pub fn message(header: &Value, claims: &Value) -> String {
    format!("{}.{}", encode(header.to_string()), encode(claims.to_string()))
}

pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Seconds since 1970, from now.
pub fn in_seconds(seconds: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    i64::try_from(now).expect("a small number") + seconds
}

/// The claims of a valid token; tests change single ones.
pub fn claims() -> Value {
    json!({"iss": ISSUER, "aud": AUDIENCE, "exp": in_seconds(600), "sub": "alice", "role": "reader"})
}

pub fn with(key: &str, value: impl Into<Value>) -> Value {
    let mut claims = claims();
    claims[key] = value.into();
    claims
}

pub fn without(key: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().expect("an object").remove(key);
    claims
}
