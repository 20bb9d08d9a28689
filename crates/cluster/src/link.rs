//! A partition that another broker owns, over a link between the two brokers.
//!
//! The front, at which clients are connected, has a [`RemotePartition`], which implements the same trait as a local one and
//! turns calls into frames. The owner has a [`PartitionServer`], which carries them out on its own mailboxes and sends the
//! answers back. Both are without I/O: a [`Transport`] takes frames to send, and received ones are passed to `receive`.
//! A link belongs to two brokers of one cluster, which authenticate each other before; the identity of a peer is taken from
//! the front.

mod codec;
mod frames;
mod remote;
mod serving;

#[cfg(feature = "testing")]
pub use frames::reencode;
pub use remote::RemotePartition;
pub use serving::PartitionServer;

use bytes::Bytes;

/// Sends frames to the other broker, in order.
pub trait Transport: Send + Sync {
    /// Queues a frame. Must not block: it is called while the engine is locked.
    fn send(&self, frame: Bytes);

    /// Backpressure: whether more frames wait than should.
    fn congested(&self) -> bool;
}

/// A frame could not be decoded. The link has to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame of the link between two brokers can't be decoded")]
pub struct BadFrame;
