//! The numbered files of a log. Segments are written one after the other and removed from the oldest on.

use crate::{Disk, DiskFile};
use std::io;
use std::sync::Arc;

/// How the segments of one log are named: `PREFIX` and ten digits and `.log`.
#[derive(Debug, Clone, Copy)]
pub struct Segments {
    /// What their names begin with.
    pub prefix: &'static str,
}

pub(crate) const SUFFIX: &str = ".log";

impl Segments {
    /// The file name of a segment.
    pub fn name(self, number: u32) -> String {
        format!("{}{number:010}{SUFFIX}", self.prefix)
    }

    /// The numbers of all segments on the disk, in order.
    pub fn list(self, disk: &dyn Disk) -> io::Result<Vec<u32>> {
        let number = |name: &String| name.strip_prefix(self.prefix)?.strip_suffix(SUFFIX)?.parse().ok();
        let mut numbers: Vec<u32> = disk.list()?.iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Creates a segment whose name survives a crash: a file whose name is lost takes its contents along.
    pub fn create(self, disk: &dyn Disk, number: u32) -> io::Result<Arc<dyn DiskFile>> {
        let file = disk.create(&self.name(number))?;
        if let Err(error) = disk.sync_folder() {
            // Should there be no room for the name, the next attempt must be able to create the file.
            disk.remove(&self.name(number)).ok();
            return Err(error);
        }
        Ok(file)
    }

    /// Removes a segment durably.
    pub fn remove(self, disk: &dyn Disk, number: u32) -> io::Result<()> {
        disk.remove(&self.name(number))?;
        disk.sync_folder()
    }
}

/// Whether the error means that there is no room.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The kind of an error that means that another process owns the log now. Nothing was written, and nothing can be.
pub const FENCED: io::ErrorKind = io::ErrorKind::StaleNetworkFileHandle;

/// Keeps damaged bytes in a file of their own, for a person to examine. A failure is only logged: it must not keep the
/// log from opening.
pub fn set_aside(disk: &dyn Disk, segment: u32, offset: u64, bytes: &[u8]) {
    let name = format!("damaged-{segment:010}-{offset}.bin");
    let keep = |file: &dyn DiskFile| {
        file.append(bytes)?;
        // Nothing else may be in the file, such as zeros for further appends.
        file.truncate(bytes.len() as u64)?;
        file.sync()?;
        disk.sync_folder()
    };
    let kept = match disk.create(&name) {
        Ok(file) => keep(&*file),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = kept {
        tracing::error!(file = name, %error, "damaged bytes could not be kept");
    }
}
