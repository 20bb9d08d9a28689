//! Partitions of the mailboxes on a replicated log, each owned by one broker at a time.
//!
//! - [`ReplicatedLog`] is all that a partition needs of its log: append at an expected position, read, and purge. NATS
//!   JetStream implements it, and the simulation models it with lost answers, elections and rivals.
//! - [`StreamDisk`] is a [`toolbus_wal::Disk`] whose truth is such a log, so that the store and the engine of a partition are
//!   the ones of a single broker. A local copy of its files, the mirror, serves reads.
//! - [`Follower`] applies the log to a mirror. A standby runs one continuously; a takeover finishes it.
//! - [`Lease`] decides when a broker claims, renews and gives up a partition. It is a hint that keeps brokers from competing:
//!   the log alone decides who owns a partition, because it rejects every append of a deposed owner.
//! - [`Router`] makes one set of mailboxes out of all partitions.
//! - [`Slot`] is the place of a partition at a broker, whose mailboxes change with its owner.
//! - [`RemotePartition`] and [`PartitionServer`] are the two ends of a link to the broker that owns a partition.
//!
//! A takeover appends an epoch entry at the end of the log. The previous owner's next append expects another position, is
//! rejected, and closes the partition at that broker. Exactly one append is outstanding at a time: the epoch entry could take
//! the very position that a deposed owner predicted for the first of several appends, and the log would accept the others.

#[cfg(feature = "testing")]
pub mod contract;
mod entry;
mod follower;
mod lease;
mod link;
mod partition;
mod placement;
mod planted;
mod replicated_log;
mod router;
#[cfg(feature = "testing")]
pub mod sim_log;
mod slot;
mod stream_disk;
mod takeover;
mod writer;

pub use entry::{Entry, EntryError};
pub use follower::{FollowError, Follower};
pub use lease::{Lease, LeaseEffect, LeaseEvent, LeaseOptions, LeaseRecord};
#[cfg(feature = "testing")]
pub use link::reencode;
pub use link::{BadFrame, PartitionServer, RemotePartition, Transport};
pub use partition::{Partition, Partitions};
pub use placement::preferred;
pub use planted::PlantedBug;
pub use replicated_log::{Append, AppendError, Bounds, LogError, ReplicatedLog};
pub use router::{Router, stays_with_sender};
pub use slot::{Slot, SlotClock};
pub use stream_disk::StreamDisk;
pub use takeover::{TakeoverError, take_over};
pub use writer::Closed;
