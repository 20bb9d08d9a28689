//! A message as the engine sees it: an opaque envelope and the metadata that the engine needs.

use crate::Fingerprint;
use bytes::Bytes;
use bytestring::ByteString;
use std::sync::Arc;

/// Milliseconds on the shell's clock. It follows wall time, so that deadlines survive a restart, but is monotonic
/// within a process.
pub type Millis = u64;

/// Sequence number of a message in the total order of accepted messages. Never reused within a process.
pub type Seq = u64;

/// Identifies a connection. Never reused within a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// The sender of a message, as stamped by the broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sender {
    /// Name of the sender's mailbox.
    pub name: Arc<str>,
    /// Role of the sender, if it has one.
    pub role: Option<Arc<str>>,
}

/// An accepted message.
#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    /// Sequence number.
    pub seq: Seq,
    /// Mailbox that the message is in.
    pub mailbox: Arc<str>,
    /// The sender.
    pub from: Arc<Sender>,
    /// Id chosen by the sender: the idempotency key within the mailbox.
    pub id: ByteString,
    /// Id of the message that this one answers or belongs to.
    pub correlation_id: Option<ByteString>,
    /// The sealed envelope, byte for byte as received.
    pub sealed: Bytes,
    /// Hash of mailbox and id.
    pub fingerprint: Fingerprint,
    /// Hash of content and sender: a duplicate of the id must have the same one.
    pub content: u64,
    /// When the broker accepted the message, or when the sender first sent it, if it was sent before.
    pub accepted_at: Millis,
    /// When the deadline passes, if there is one.
    pub expires_at: Option<Millis>,
}

impl Message {
    /// Returns the size that counts against limits and windows.
    pub fn size(&self) -> u64 {
        size_of_sealed(self.sealed.len())
    }
}

/// Adds a fixed overhead, because an empty message still costs an index entry and a record header.
pub(crate) fn size_of_sealed(sealed: usize) -> u64 {
    sealed as u64 + 64
}
