//! The write-ahead log under the broker's store and the call journal.
//!
//! - [`Disk`] and [`DiskFile`] are all that a log needs of a file system, so that the simulation runs the same code on a
//!   disk that loses, tears and corrupts ([`sim_disk`]).
//! - [`FolderDisk`] is the real one: a folder that belongs to one process at a time, with an [`Identity`] that keys the
//!   checksums of everything in it. [`MemoryDisk`] is for logs that need not outlive their process.
//! - [`Log`] is an append-only log of records in segment files, with [`GroupCommit`] for its writers. It rotates to new
//!   segments, removes the oldest ones, and tells a torn write from corruption when it is opened.

#![warn(missing_docs)]

mod disk;
mod folder;
mod frame;
mod group_commit;
mod identity;
mod log;
mod memory_disk;
mod move_mark;
mod old_format;
mod opening;
mod planted;
pub mod prefilled;
mod reader;
mod recovery;
mod replaced_file;
mod scan;
mod segments;
#[cfg(feature = "testing")]
pub mod sim_disk;

pub use disk::{Disk, DiskFile};
pub use folder::{FolderDisk, OpenError};
pub use frame::{ChecksumKey, Frame, Location, MAX_PAYLOAD};
pub use group_commit::{GroupCommit, SyncGroup};
pub use identity::Identity;
pub use log::{Contents, CreatedSegment, Log, LogOptions, NextSegment, Segment, SegmentFile, Unsynced};
pub use memory_disk::MemoryDisk;
pub use move_mark::{MoveMark, MoveState};
pub use old_format::BATCH;
pub use opening::{MAX_ANCESTORS, Opening};
pub use planted::PlantedBug;
pub use reader::Reader;
pub use recovery::Recovery;
pub use replaced_file::{REPLACED_PREFIX, ReplacedFile, name_of_copy};
pub use segments::{FENCED, Segments, is_full, set_aside};
