//! What a log needs of a disk, and nothing more.

use std::io;
use std::sync::Arc;

/// A folder of append-only files.
pub trait Disk: Send + Sync {
    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Creates an empty file. It survives a crash only after [`Disk::sync_folder`].
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens an existing file.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Removes a file. A crash may bring it back until [`Disk::sync_folder`].
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes created and removed names durable.
    fn sync_folder(&self) -> io::Result<()>;
    /// Bytes that can still be written.
    fn free_bytes(&self) -> io::Result<u64>;
}

/// One file of a [`Disk`].
pub trait DiskFile: Send + Sync {
    /// Its length in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Writes at the end. Durable only after [`DiskFile::sync`]; an error may leave a part of it.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;
    /// Fills the buffer from that offset on, or fails.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
    /// Cuts the file to that length.
    fn truncate(&self, length: u64) -> io::Result<()>;
    /// Makes everything appended so far durable.
    fn sync(&self) -> io::Result<()>;
}
