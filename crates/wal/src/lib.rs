//! The files under a write-ahead log: what the broker's store and the call journal share.
//!
//! - [`Disk`] and [`DiskFile`] are all that a log needs of a file system, so that the simulation runs the same code on a
//!   disk that loses, tears and corrupts ([`sim_disk`]).
//! - [`FolderDisk`] is the real one: a folder that belongs to one process at a time, with an [`Identity`] that keys the
//!   checksums of everything in it. [`MemoryDisk`] is for logs that need not outlive their process.
//! - [`Segments`] names, lists and creates the numbered files of a log.

#![warn(missing_docs)]

mod disk;
mod folder;
mod identity;
mod memory_disk;
mod segments;
#[cfg(feature = "testing")]
pub mod sim_disk;

pub use disk::{Disk, DiskFile};
pub use folder::{FolderDisk, OpenError};
pub use identity::Identity;
pub use memory_disk::MemoryDisk;
pub use segments::{Segments, is_full, set_aside};
