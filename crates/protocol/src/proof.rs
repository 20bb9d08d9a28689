//! Proof that a broker belongs to a data folder, before a client that found a token there sends the token.
//!
//! The client sends a random challenge in the header [`CHALLENGE_HEADER`] of its upgrade request. The broker answers in
//! [`PROOF_HEADER`] with a MAC over the challenge and the address that the client dialled, keyed with a secret of the
//! folder. The address prevents a relay attack: a process on another port or another loopback address can't forward the
//! challenge to the real broker and use its answer.

use ring::hmac;
use std::fmt;
use std::net::SocketAddr;
use toolbus_base::{from_hex, hex};

/// Request header with the challenge.
pub const CHALLENGE_HEADER: &str = "toolbus-challenge";
/// Response header with the proof.
pub const PROOF_HEADER: &str = "toolbus-proof";
/// Maximum length of a challenge; longer ones are not answered.
pub const MAX_CHALLENGE_BYTES: usize = 128;

const CONTEXT: &[u8] = b"toolbus broker proof 1\0";

/// The secret key of a data folder, known to its broker and to all processes that can read the folder.
#[derive(Clone)]
pub struct BrokerKey(hmac::Key);

impl BrokerKey {
    /// Length of a key in bytes.
    pub const LENGTH: usize = 32;

    /// Creates a key from its bytes.
    pub fn new(bytes: &[u8; Self::LENGTH]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// Parses a hexadecimal key. Returns `None` if the text is not hexadecimal or has the wrong length.
    pub fn from_hex(text: &str) -> Option<Self> {
        from_hex(text).map(|bytes| Self::new(&bytes))
    }

    /// Computes the proof for a challenge from a client that dialled the broker at that address.
    pub fn prove(&self, challenge: &[u8], dialled: SocketAddr) -> String {
        hex(hmac::sign(&self.0, &mac_input(challenge, dialled)).as_ref())
    }

    /// Whether the proof comes from a broker with this key that was dialled at that address.
    pub fn verify(&self, challenge: &[u8], dialled: SocketAddr, proof: &str) -> bool {
        from_hex::<{ Self::LENGTH }>(proof)
            .is_some_and(|proof| hmac::verify(&self.0, &mac_input(challenge, dialled), &proof).is_ok())
    }
}

impl fmt::Debug for BrokerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BrokerKey(…)")
    }
}

/// Uses the canonical address, because a dual-stack listener sees an IPv4 client under an IPv4-mapped IPv6 address.
fn mac_input(challenge: &[u8], dialled: SocketAddr) -> Vec<u8> {
    let address = SocketAddr::new(dialled.ip().to_canonical(), dialled.port());
    [CONTEXT, address.to_string().as_bytes(), b"\0", challenge].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_valid_only_for_its_key_challenge_and_address() {
        let (key, other) = (BrokerKey::new(&[1; 32]), BrokerKey::new(&[2; 32]));
        let at = |address: &str| address.parse::<SocketAddr>().expect("an address");
        let proof = key.prove(b"challenge", at("127.0.0.1:7420"));
        assert!(key.verify(b"challenge", at("127.0.0.1:7420"), &proof));
        assert!(key.verify(b"challenge", at("[::ffff:127.0.0.1]:7420"), &proof));
        assert!(!other.verify(b"challenge", at("127.0.0.1:7420"), &proof));
        assert!(!key.verify(b"another", at("127.0.0.1:7420"), &proof));
        for elsewhere in ["127.0.0.1:7421", "127.0.0.2:7420", "[::1]:7420"] {
            assert!(!key.verify(b"challenge", at(elsewhere), &proof), "{elsewhere}");
        }
        for wrong in ["", "zz", "0", &proof[1..], &format!("{proof}00")] {
            assert!(!key.verify(b"challenge", at("127.0.0.1:7420"), wrong), "{wrong}");
        }
        assert_eq!(format!("{key:?}"), "BrokerKey(…)");
    }
}
