//! What the owner of partitions reports.

use toolbus_cluster::{Partition, StreamDisk};

/// What has become of a partition.
pub enum OwnershipEvent {
    /// This broker owns it, and serves it from this disk.
    Owned {
        /// The partition.
        partition: Partition,
        /// The epoch of its ownership.
        epoch: u64,
        /// The disk of its store.
        disk: StreamDisk,
    },
    /// Another broker owns it, or is about to.
    Elsewhere {
        /// The partition.
        partition: Partition,
        /// The epoch of its ownership.
        epoch: u64,
        /// The name of its owner.
        owner: String,
        /// The address of its owner.
        address: String,
    },
    /// No broker owns it at the moment.
    Unowned(Partition),
    /// Push nothing and elide nothing until it is resumed.
    Suspended(Partition),
    /// Serve it again.
    Resumed(Partition),
    /// This broker no longer owns it. Its store must not be used any more.
    Lost(Partition),
}
