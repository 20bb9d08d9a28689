//! Verifies JWT signatures with ring, which TLS needs anyway. Only three algorithms are supported; a token that names
//! another one is refused before any key is used.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::signature::{Error as SignatureError, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
    VerificationAlgorithm,
};

static RING: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: |algorithm, key| {
        // Algorithm confusion: a token must not make a key verify under an algorithm that it is not meant for.
        let family = key.family();
        match algorithm {
            Algorithm::RS256 | Algorithm::ES256 | Algorithm::EdDSA if algorithm.family() == family => {
                Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.clone() }))
            }
            _ => Err(ErrorKind::InvalidAlgorithm.into()),
        }
    },
    key_utils: KeyUtils::new_unimplemented(),
};

/// Must be called before a token is decoded. Idempotent.
pub fn install() {
    // A provider that is already installed was chosen by the embedding application and stays.
    RING.install_default().ok();
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), SignatureError> {
        let fixed: &dyn VerificationAlgorithm = match self.algorithm {
            Algorithm::RS256 => &RSA_PKCS1_2048_8192_SHA256,
            Algorithm::ES256 => &ECDSA_P256_SHA256_FIXED,
            _ => &ED25519,
        };
        let verified = match self.key.kind() {
            DecodingKeyKind::SecretOrDer(key) => UnparsedPublicKey::new(fixed, key).verify(message, signature),
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
        };
        verified.map_err(|_| SignatureError::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

pub fn is_supported(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::RS256 | Algorithm::ES256 | Algorithm::EdDSA)
}
