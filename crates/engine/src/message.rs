//! A message as the engine sees it: opaque bytes with the few facts that decisions need.

use crate::Fingerprint;
use bytes::Bytes;
use bytestring::ByteString;
use std::sync::Arc;

/// Milliseconds on the shell's clock. It resembles wall time, so that deadlines survive a restart, but never goes back
/// while the process runs.
pub type Millis = u64;

/// The place of a message in the order of all accepted messages. Never reused while a process runs.
pub type Seq = u64;

/// A connection, as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// Who sent a message, as stamped by the broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sender {
    pub name: Arc<str>,
    pub role: Option<Arc<str>>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    pub seq: Seq,
    pub mailbox: Arc<str>,
    pub from: Arc<Sender>,
    pub id: ByteString,
    pub correlation_id: Option<ByteString>,
    /// The sealed envelope, exactly as it came.
    pub sealed: Bytes,
    pub fingerprint: Fingerprint,
    /// Hash of what makes the message itself; a repeated id must repeat it.
    pub content: u64,
    pub accepted_at: Millis,
    pub expires_at: Option<Millis>,
}

impl Message {
    /// What the message counts for against limits and windows.
    pub fn size(&self) -> u64 {
        size_of_sealed(self.sealed.len())
    }
}

/// A message of no bytes still costs an index entry and a record header.
pub(crate) fn size_of_sealed(sealed: usize) -> u64 {
    sealed as u64 + 64
}
