//! The durable log under the engine.
//!
//! [`LogStore`] keeps messages in append-only segment files with a checksum on every record, and an index of the
//! location of each pending message. It uses storage through [`Disk`], so that the simulation can run the same code on
//! a disk that loses, tears and corrupts. See ARCHITECTURE.md for why this is not a storage library.

mod contents;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod index;
mod log;
mod read;
mod reclaim;
mod record;
mod replay;

pub use log::{LogStore, Store, StoreError, StoreOptions};
pub use replay::{Recovery, Replay};
#[cfg(feature = "testing")]
pub use toolbus_wal::sim_disk;
pub use toolbus_wal::{Disk, DiskFile, FolderDisk, Identity, OpenError};
