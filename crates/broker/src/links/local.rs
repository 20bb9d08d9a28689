//! The partitions that a broker serves to others.

use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use toolbus_cluster::Partition;
use toolbus_engine::Mailboxes;

/// The partitions of a broker, which may change their owner at any time.
pub trait LocalPartitions: Send + Sync {
    /// The partition, if this broker owns it in that epoch and serves it, and [`LocalPartitions::end_links`] was not called
    /// since it does.
    fn local(&self, partition: Partition, epoch: u64) -> Option<LocalPartition>;

    /// Cancels [`LocalPartition::ended`] of a partition.
    fn end_links(&self, partition: Partition);
}

/// A partition of this broker.
#[derive(Clone)]
pub struct LocalPartition {
    /// Its mailboxes.
    pub mailboxes: Arc<dyn Mailboxes>,
    /// Cancelled when the broker stops serving the partition. A link gets the token together with the mailboxes, so a link
    /// that is accepted while the partition is closed ends as well: there is no race between looking up the mailboxes and
    /// registering the link.
    pub ended: CancellationToken,
}
