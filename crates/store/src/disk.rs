//! What the log needs of a disk, and nothing more.

use std::io;
use std::sync::Arc;

/// A folder of append-only files.
pub trait Disk: Send + Sync {
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes a new, empty file. It survives a crash only after [`Disk::sync_folder`].
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    fn remove(&self, name: &str) -> io::Result<()>;
    fn sync_folder(&self) -> io::Result<()>;
    fn free_bytes(&self) -> io::Result<u64>;
}

pub trait DiskFile: Send + Sync {
    fn size(&self) -> io::Result<u64>;
    fn append(&self, bytes: &[u8]) -> io::Result<()>;
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
    fn truncate(&self, length: u64) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
}
