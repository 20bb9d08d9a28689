//! The real disk: a folder that belongs to one process at a time.

use crate::identity::{Identity, Unusable};
use crate::opening::Opening;
use crate::prefilled::PrefilledFile;
use crate::{Disk, DiskFile, MoveMark};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toolbus_base::{open_private, private_folder, read_private_text};

/// Why a folder can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the lock.
    #[error("another process uses the data folder {}", folder.display())]
    Locked {
        /// The folder.
        folder: PathBuf,
    },
    /// Another version wrote the folder.
    #[error("{file} was not written by a version of toolbus that this one understands")]
    UnknownFormat {
        /// The identity file.
        file: String,
    },
    /// The identity file is corrupt. Opening the log with a wrong key would take all of it for damage.
    #[error("{file} is damaged: its checksum does not match, and nothing in its folder can be read without it")]
    DamagedIdentity {
        /// The identity file.
        file: String,
    },
    /// The identity file is gone, and there is a log that can't be read without it.
    #[error("{file} is missing, and nothing in its folder can be read without it")]
    MissingIdentity {
        /// The identity file.
        file: String,
    },
    /// The data is being moved elsewhere, or was.
    #[error("the data folder {} {mark}", folder.display())]
    Moved {
        /// The folder.
        folder: PathBuf,
        /// Its part in the move.
        mark: MoveMark,
    },
    /// The file system failed.
    #[error("can't {what} {file}: {source}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// On which file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
}

/// A folder with its lock held.
pub struct FolderDisk {
    path: PathBuf,
    folder: File,
    /// Held for as long as the process uses the folder.
    lock: File,
}

const LOCK_FILE: &str = "lock";
const IDENTITY_FILE: &str = "identity";
const UNFINISHED_IDENTITY: &str = "identity.new";
const EPOCH_FILE: &str = "epoch";

impl FolderDisk {
    /// Opens the folder, or creates it, and takes its lock. A folder that takes part in a move is refused.
    pub fn open(path: &Path) -> Result<(Self, Identity), OpenError> {
        let disk = Self::open_locked(path)?;
        match disk.identity()? {
            (identity, None) => Ok((disk, identity)),
            (_, Some(mark)) => Err(OpenError::Moved { folder: path.to_owned(), mark }),
        }
    }

    /// Opens a folder that takes part in a move, or is about to. An empty folder becomes one with the identity and the mark of
    /// `new`. Returns `None` for a folder without an identity otherwise.
    pub fn open_for_move(
        path: &Path,
        new: Option<(&Identity, &MoveMark)>,
    ) -> Result<Option<(Self, Identity, Option<MoveMark>)>, OpenError> {
        if new.is_none() && !path.is_dir() {
            return Ok(None);
        }
        let disk = Self::open_locked(path)?;
        let io = |what: &'static str| {
            let file = path.join(IDENTITY_FILE).display().to_string();
            move |source| OpenError::Io { what, file, source }
        };
        let names = disk.list().map_err(io("list the folder of"))?;
        if !names.iter().any(|name| name == IDENTITY_FILE) {
            if disk.has_log().map_err(io("list the folder of"))? {
                return Err(OpenError::MissingIdentity { file: path.join(IDENTITY_FILE).display().to_string() });
            }
            let is_empty = names.iter().all(|name| Self::is_leftover(name));
            let Some((identity, mark)) = new.filter(|_| is_empty) else { return Ok(None) };
            disk.mark(identity, Some(mark)).map_err(io("write"))?;
        }
        let (identity, mark) = disk.identity()?;
        Ok(Some((disk, identity, mark)))
    }

    /// Whether a file of that name may be left in a folder whose creation was killed: the lock, or the beginning of an identity.
    pub fn is_leftover(name: &str) -> bool {
        name == LOCK_FILE || name.starts_with(UNFINISHED_IDENTITY)
    }

    /// The mark of a folder that takes part in a move. Takes no lock.
    pub fn mark_of(path: &Path) -> Option<MoveMark> {
        let text = read_private_text(&path.join(IDENTITY_FILE)).ok()?;
        Identity::parse(&text).ok()?.mark
    }

    /// Marks the folder as a part of a move, or removes the mark. Durable when it returns.
    pub fn mark(&self, identity: &Identity, mark: Option<&MoveMark>) -> io::Result<()> {
        self.replace(IDENTITY_FILE, &mark.map_or_else(|| identity.to_text(), |mark| identity.to_marked_text(mark)))
    }

    fn open_locked(path: &Path) -> Result<Self, OpenError> {
        let io = |what: &'static str| {
            let file = path.display().to_string();
            move |source| OpenError::Io { what, file, source }
        };
        private_folder(path).map_err(io("use the data folder"))?;
        let options = &mut OpenOptions::new();
        let lock = open_private(&path.join(LOCK_FILE), options.create(true).truncate(false).write(true))
            .map_err(io("open the lock of"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::Locked { folder: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(io("lock")(source)),
        }
        let folder = File::open(path).map_err(io("open"))?;
        Ok(Self { path: path.to_owned(), folder, lock })
    }

    /// Another handle to the lock. Unlocking it lets others open the folder, so nothing may be written afterwards.
    pub fn lock(&self) -> io::Result<File> {
        self.lock.try_clone()
    }

    /// Records durably that the folder is opened for writing. An unreadable record starts again, like that of a new folder.
    pub fn next_opening(&self, identity: &Identity) -> io::Result<Opening> {
        let last = read_private_text(&self.path.join(EPOCH_FILE)).ok();
        let opening = last.and_then(|text| Opening::parse(&text, identity)).unwrap_or_default().next();
        self.replace(EPOCH_FILE, &opening.to_text(identity))?;
        Ok(opening)
    }

    fn identity(&self) -> Result<(Identity, Option<MoveMark>), OpenError> {
        let path = self.path.join(IDENTITY_FILE);
        let file = path.display().to_string();
        let write = |identity: Identity| match self.replace(IDENTITY_FILE, &identity.to_text()) {
            Ok(()) => Ok((identity, None)),
            Err(source) => Err(OpenError::Io { what: "write", file: file.clone(), source }),
        };
        match read_private_text(&path) {
            Ok(text) => match Identity::parse(&text) {
                Ok(parsed) if parsed.is_old => write(parsed.identity),
                Ok(parsed) => Ok((parsed.identity, parsed.mark)),
                Err(Unusable::OtherFormat) => Err(OpenError::UnknownFormat { file }),
                Err(Unusable::Damaged) => Err(OpenError::DamagedIdentity { file }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => match self.has_log() {
                Ok(false) => write(Identity::random()),
                Ok(true) => Err(OpenError::MissingIdentity { file }),
                Err(source) => Err(OpenError::Io { what: "list the folder of", file, source }),
            },
            // A flipped bit can also make it something else than text.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(OpenError::DamagedIdentity { file }),
            Err(source) => Err(OpenError::Io { what: "read", file, source }),
        }
    }

    /// Whether a log was written here. With a new key all of it would count as damage.
    fn has_log(&self) -> io::Result<bool> {
        let is_log = |name: &String| {
            let size = fs::metadata(self.path.join(name)).map_or(0, |found| found.len());
            name.ends_with(crate::segments::SUFFIX) && size > 0
        };
        Ok(self.list()?.iter().any(is_log))
    }

    /// Writes a small file atomically: after a crash there is the old one or the new one.
    fn replace(&self, name: &str, text: &str) -> io::Result<()> {
        toolbus_base::replace_file(&self.path.join(name), text.as_bytes())
    }
}

impl Disk for FolderDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.path.join(name);
        let file = open_private(&path, OpenOptions::new().create_new(true).read(true).write(true))?;
        Ok(Arc::new(PrefilledFile::open(file)?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = open_private(&self.path.join(name), OpenOptions::new().read(true).write(true))?;
        Ok(Arc::new(PrefilledFile::open(file)?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.folder.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::fstatvfs(&self.folder)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}
