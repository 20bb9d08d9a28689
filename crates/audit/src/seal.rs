//! Keys of seals. A seal is a line with a MAC over its position in the chain, and thus over all lines before it. The key
//! is replaced by a one-way function of itself after each seal, so the key on the machine can't seal earlier lines anew.
//! The verification key, from which all others are derived, is kept elsewhere.

use crate::error::AuditError;
use crate::line::{ChainPosition, Line};
use crate::record::Record;
use ring::hkdf::{HKDF_SHA256, Prk};
use ring::hmac::{self, HMAC_SHA256};
use ring::rand::{SecureRandom, SystemRandom};
use toolbus_base::{from_hex, hex};
use zeroize::Zeroizing;

/// No log has more seals: one each second for 34 years. Limits the time that a forged index can cost.
const MAX_SEALS: u64 = 1 << 30;

/// The key that verifies the seals of one or several logs. Its holder can also forge seals.
#[derive(Clone)]
pub struct VerificationKey(Zeroizing<[u8; 32]>);

impl VerificationKey {
    /// Creates a random key.
    pub fn generate() -> Result<Self, AuditError> {
        let mut key = Zeroizing::new([0; 32]);
        SystemRandom::new().fill(&mut *key).map_err(|_| AuditError::NoRandomness)?;
        Ok(Self(key))
    }

    /// Parses the text that [`Self::to_text`] returned.
    pub fn parse(text: &str) -> Option<Self> {
        from_hex(text).map(|key| Self(Zeroizing::new(key)))
    }

    /// The key as text, to be shown once.
    pub fn to_text(&self) -> Zeroizing<String> {
        Zeroizing::new(hex(&*self.0))
    }

    /// The key of the first seal of that log.
    pub(crate) fn first_key(&self, log: &str) -> SealingKey {
        let key = expand(&self.0, &["toolbus audit log ", log]);
        SealingKey { log: log.to_owned(), index: 0, key }
    }
}

/// A random name for a log, so that one verification key serves several.
pub fn random_log_id() -> Result<String, AuditError> {
    let mut id = [0; 16];
    SystemRandom::new().fill(&mut id).map_err(|_| AuditError::NoRandomness)?;
    Ok(hex(&id))
}

/// The key of one seal.
#[derive(Clone, PartialEq, Eq)]
pub struct SealingKey {
    pub log: String,
    /// Index of the seal, from 0.
    pub index: u64,
    pub key: Zeroizing<[u8; 32]>,
}

impl SealingKey {
    /// The seal that follows a line.
    pub fn seal(&self, before: &ChainPosition, time: &str) -> Record {
        let mac = hmac::sign(&self.mac_key(), self.covered(before.seq + 1, time, &before.hash).as_bytes());
        Record::Seal { log: self.log.clone(), index: self.index, mac: hex(mac.as_ref()) }
    }

    /// Whether the line is the seal of this key.
    pub fn matches(&self, line: &Line) -> bool {
        let covered = self.covered(line.seq, &line.time, &line.prev);
        let is_valid = |mac: [u8; 32]| hmac::verify(&self.mac_key(), covered.as_bytes(), &mac).is_ok();
        line.log == self.log && line.index == self.index && from_hex(&line.mac).is_some_and(is_valid)
    }

    /// Becomes the key of the next seal. The previous key is erased.
    pub fn evolve(&mut self) {
        self.key = expand(&self.key, &["toolbus audit next key"]);
        self.index += 1;
    }

    /// Becomes the key of a later seal. Returns `false` if the index is earlier or beyond all limits.
    pub fn advance_to(&mut self, index: u64) -> bool {
        if index < self.index || index > MAX_SEALS {
            return false;
        }
        while self.index < index {
            self.evolve();
        }
        true
    }

    fn mac_key(&self) -> hmac::Key {
        hmac::Key::new(HMAC_SHA256, &*expand(&self.key, &["toolbus audit seal key"]))
    }

    fn covered(&self, seq: u64, time: &str, prev: &str) -> String {
        format!("{} {} {seq} {time} {prev}", self.log, self.index)
    }
}

fn expand(key: &[u8; 32], info: &[&str]) -> Zeroizing<[u8; 32]> {
    let info: Vec<&[u8]> = info.iter().map(|part| part.as_bytes()).collect();
    let mut derived = Zeroizing::new([0; 32]);
    let prk = Prk::new_less_safe(HKDF_SHA256, key);
    let filled = prk.expand(&info, HKDF_SHA256).and_then(|output| output.fill(&mut *derived));
    filled.expect("HKDF-SHA256 yields 32 bytes");
    derived
}
