//! The local copies of the partitions that this broker owns. They are only caches of the replicated logs: each takeover
//! begins with an empty one, and none outlives the process.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use toolbus_base::private_folder;
use toolbus_broker::{Disk, FolderDisk};
use toolbus_cluster::Partition;
use toolbus_journal::OpenError;

/// The folder of the copies, in the broker's data folder.
const FOLDER: &str = "partitions";
/// Ends the names of the log's files in the data folder of a broker without a cluster.
const SEGMENT_SUFFIX: &str = ".log";

/// Why a data folder can't be used in a cluster.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// It can't be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// A broker without a cluster has used it.
    #[error("it has mailboxes of its own, which no broker of the cluster would serve")]
    OwnMailboxes,
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Creates and removes local copies.
pub struct Mirrors {
    /// Keeps other brokers from using the data folder.
    _lock: FolderDisk,
    /// The id of the data folder.
    place: String,
    folder: PathBuf,
    /// Numbers the copies: the next one of a partition may be created while the last one is still in use.
    next: AtomicU64,
    folders: Mutex<HashMap<Partition, Vec<PathBuf>>>,
}

impl Mirrors {
    /// Locks the data folder, and removes copies that an earlier process left.
    pub fn open(data: &Path) -> Result<Self, MirrorError> {
        let (lock, identity) = FolderDisk::open(data)?;
        if lock.list()?.iter().any(|name| name.ends_with(SEGMENT_SUFFIX)) {
            return Err(MirrorError::OwnMailboxes);
        }
        let folder = data.join(FOLDER);
        remove_folder(&folder)?;
        private_folder(&folder)?;
        Ok(Self { _lock: lock, place: identity.id, folder, next: AtomicU64::new(1), folders: Mutex::default() })
    }

    /// Tells the data folder from others, also after a restart.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// An empty copy of a partition.
    pub fn create(&self, partition: Partition) -> io::Result<Arc<dyn Disk>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.join(format!("{:03}-{number}", partition.0));
        let (disk, _) = FolderDisk::open(&folder).map_err(io::Error::other)?;
        self.folders().entry(partition).or_default().push(folder);
        Ok(Arc::new(disk))
    }

    /// Removes the copies of a partition that this broker no longer owns, except the last one, which may already belong to
    /// the next takeover.
    pub fn remove(&self, partition: Partition) {
        let mut folders = self.folders();
        let Some(copies) = folders.get_mut(&partition) else { return };
        let last = copies.pop();
        let removed = std::mem::replace(copies, last.into_iter().collect());
        drop(folders);
        removed.iter().for_each(|folder| drop(remove_folder(folder)));
    }

    /// Removes all copies.
    pub fn remove_all(&self) {
        remove_folder(&self.folder).ok();
    }

    fn folders(&self) -> MutexGuard<'_, HashMap<Partition, Vec<PathBuf>>> {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remove_folder(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
