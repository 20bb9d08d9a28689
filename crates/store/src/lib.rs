//! The durable log under the engine.
//!
//! [`LogStore`] keeps messages in append-only segment files with a checksum on every record, and an index of where
//! each pending message is. It talks to storage through [`Disk`], so that the simulation can run the very same code on
//! a disk that loses, tears and corrupts. See ARCHITECTURE.md for why this is not a storage library.

mod disk;
mod folder;
mod index;
mod log;
mod read;
mod reclaim;
mod record;
mod replay;
#[cfg(feature = "testing")]
pub mod sim_disk;

pub use disk::{Disk, DiskFile};
pub use folder::{FolderDisk, Identity};
pub use log::{LogStore, Store, StoreError, StoreOptions};
pub use replay::{Recovery, Replay};
