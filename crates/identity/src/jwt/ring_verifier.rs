//! Signatures are checked by ring, which is here for TLS already. Only three algorithms exist; whatever else a token
//! names is refused, before a key is looked at.

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
        // Kept together: a token can't have a key used with an algorithm that it was not made for.
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

/// Has to be called before a token is decoded; once is enough.
pub fn install() {
    // Another one that is there already was chosen by whoever embeds us.
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

/// The three there are.
pub fn is_known(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::RS256 | Algorithm::ES256 | Algorithm::EdDSA)
}
