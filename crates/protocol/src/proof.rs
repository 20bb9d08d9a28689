//! How a broker shows that it belongs to a data folder, before a client that found a token there sends it.
//!
//! The client puts a random challenge into the header [`CHALLENGE_HEADER`] of its upgrade request. The broker answers in
//! [`PROOF_HEADER`] with a MAC over the challenge and over the address that the client dialled, keyed with a secret of the
//! folder. The address is part of it, so that a process on another port or another loopback address can't pass the
//! challenge on to the real broker and use its answer.

use ring::hmac;
use std::fmt;
use std::net::SocketAddr;

/// A request header: what the broker is to prove itself by.
pub const CHALLENGE_HEADER: &str = "toolbus-challenge";
/// A response header: the proof.
pub const PROOF_HEADER: &str = "toolbus-proof";
/// Longer challenges are not answered.
pub const MAX_CHALLENGE_BYTES: usize = 128;

const CONTEXT: &[u8] = b"toolbus broker proof 1\0";

/// A secret of the data folder, known to its broker and to those who can read the folder.
#[derive(Clone)]
pub struct BrokerKey(hmac::Key);

impl BrokerKey {
    /// Bytes of a key.
    pub const LENGTH: usize = 32;

    /// A key of these bytes.
    pub fn new(bytes: &[u8; Self::LENGTH]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// From its hexadecimal form; `None` if that is not a key.
    pub fn from_hex(text: &str) -> Option<Self> {
        Some(Self::new(&bytes_of(text)?.try_into().ok()?))
    }

    /// The answer to a challenge from a client that reached the broker at that address.
    pub fn prove(&self, challenge: &[u8], dialled: SocketAddr) -> String {
        hex(hmac::sign(&self.0, &message(challenge, dialled)).as_ref())
    }

    /// Whether the answer comes from a broker with this key that was reached at that address.
    pub fn verify(&self, challenge: &[u8], dialled: SocketAddr, proof: &str) -> bool {
        bytes_of(proof).is_some_and(|proof| hmac::verify(&self.0, &message(challenge, dialled), &proof).is_ok())
    }
}

impl fmt::Debug for BrokerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BrokerKey(…)")
    }
}

/// A listener for both address families sees an IPv4 client under a mapped address.
fn message(challenge: &[u8], dialled: SocketAddr) -> Vec<u8> {
    let address = SocketAddr::new(dialled.ip().to_canonical(), dialled.port());
    [CONTEXT, address.to_string().as_bytes(), b"\0", challenge].concat()
}

/// The hexadecimal form of bytes.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.as_bytes().chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_good_for_its_key_challenge_and_address_only() {
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
