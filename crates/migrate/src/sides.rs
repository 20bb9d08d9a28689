//! The folder of a move: its lock, its mark, and the local copies of partitions that are removed with the move.

use crate::error::MoveError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use toolbus_base::private_folder;
use toolbus_cluster::Partition;
use toolbus_store::{Disk, FolderDisk, Identity};
use toolbus_wal::MoveMark;

/// The local copies of partitions, in the data folder.
const COPIES: &str = "migration";
const IDENTITY: &str = "identity";
/// The folder of host manifests, in the data folder.
pub const HOSTS: &str = "hosts";

/// A locked data folder.
pub struct Folder {
    pub path: PathBuf,
    pub disk: Arc<FolderDisk>,
    pub identity: Identity,
    pub mark: Option<MoveMark>,
}

impl Folder {
    /// Opens a folder with data; `None` if it has none.
    pub fn open(path: &Path) -> Result<Option<Self>, MoveError> {
        Ok(FolderDisk::open_for_move(path, None)?.map(|opened| Self::new(path, opened)))
    }

    /// Creates a folder as the target of a move, or opens it. Returns `None` if it has anything else.
    pub fn create(path: &Path, identity: &Identity, mark: &MoveMark) -> Result<Option<Self>, MoveError> {
        Ok(FolderDisk::open_for_move(path, Some((identity, mark)))?.map(|opened| Self::new(path, opened)))
    }

    fn new(path: &Path, (disk, identity, mark): (FolderDisk, Identity, Option<MoveMark>)) -> Self {
        Self { path: path.to_owned(), disk: Arc::new(disk), identity, mark }
    }

    pub fn set_mark(&mut self, mark: Option<MoveMark>) -> Result<(), MoveError> {
        let written = self.disk.mark(&self.identity, mark.as_ref());
        written.map_err(|source| MoveError::Io { what: "write the identity of the folder", source })?;
        self.mark = mark;
        Ok(())
    }

    /// What messages call it.
    pub fn name(&self) -> String {
        name_of(&self.path)
    }

    /// A place for copies of partitions, without those of an earlier run.
    pub fn copies(&self) -> Result<Copies, MoveError> {
        let copies = Copies::in_folder(self.path.join(COPIES));
        copies.remove_all()?;
        Ok(copies)
    }

    /// Makes a folder that was just created free again.
    pub fn undo(self) -> Result<(), MoveError> {
        self.copies()?;
        let removed = std::fs::remove_file(self.path.join(IDENTITY));
        removed.map_err(|source| MoveError::Io { what: "remove the identity of the folder", source })
    }
}

/// Fails if the data of a folder is being moved, or was: what is changed here would have no effect.
pub fn check_here(path: &Path) -> Result<(), MoveError> {
    match FolderDisk::mark_of(path) {
        Some(mark) => Err(MoveError::Marked { place: name_of(path), mark }),
        None => Ok(()),
    }
}

/// What messages call a folder.
pub fn name_of(path: &Path) -> String {
    format!("the folder {}", path.display())
}

/// Whether a folder does not exist, or has nothing but what an attempt leaves that was killed while it created the folder.
pub fn is_free(path: &Path) -> io::Result<bool> {
    match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        entries => Ok(entries?.flatten().all(|entry| FolderDisk::is_leftover(&entry.file_name().to_string_lossy()))),
    }
}

/// Creates local copies of partitions.
pub struct Copies {
    folder: PathBuf,
    next: AtomicU64,
}

impl Copies {
    pub fn in_folder(folder: PathBuf) -> Self {
        Self { folder, next: AtomicU64::new(1) }
    }

    /// An empty copy.
    pub fn create(&self, Partition(partition): Partition) -> io::Result<Arc<dyn Disk>> {
        private_folder(&self.folder)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (disk, _) =
            FolderDisk::open(&self.folder.join(format!("{partition:03}-{number}"))).map_err(io::Error::other)?;
        Ok(Arc::new(disk))
    }

    /// Removes the copies of a partition, which are no longer used.
    pub fn remove(&self, Partition(partition): Partition) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return };
        let prefix = format!("{partition:03}-");
        for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)) {
            std::fs::remove_dir_all(entry.path()).ok();
        }
    }

    pub fn remove_all(&self) -> Result<(), MoveError> {
        match std::fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(MoveError::Io { what: "remove the copies of an earlier run", source: error })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_whose_creation_was_killed_is_free() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        let is_free = || is_free(path).expect("readable");
        assert!(is_free());
        std::fs::write(path.join("lock"), "").expect("a file");
        std::fs::write(path.join("identity.new-123"), "toolbus").expect("a file");
        assert!(is_free());
        std::fs::write(path.join("identity"), "").expect("a file");
        assert!(!is_free());
    }
}
