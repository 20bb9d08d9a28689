//! The folder of a log: numbered files, the head file that records the end of the chain, and the lock.

use crate::error::AuditError;
use crate::line::{ChainPosition, NO_HASH};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use toolbus_base::{open_private, open_unlinked, private_folder};

pub const HEAD_FILE: &str = "head.json";
const LOCK_FILE: &str = "lock";

pub fn file_name(number: u64) -> String {
    format!("audit-{number:06}.jsonl")
}

pub fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix("audit-")?.strip_suffix(".jsonl")?.parse().ok()
}

/// The numbers of the existing files, in order.
pub fn numbers(folder: &Path) -> Result<Vec<u64>, AuditError> {
    let entries = fs::read_dir(folder).map_err(AuditError::io("list", folder))?;
    let mut numbers: Vec<u64> = entries.flatten().filter_map(|entry| number_of(entry.file_name().to_str()?)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

pub fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(file_name(number))
}

/// The end of the log, as of the last flush.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub position: ChainPosition,
    pub file: u64,
}

/// Returns `None` if there is no head file, and a description of the error if it is invalid.
pub fn read_head(folder: &Path) -> Result<Option<Head>, String> {
    let text = match read(&folder.join(HEAD_FILE)) {
        Ok(bytes) => String::from_utf8(bytes).map_err(|_| "it is malformed")?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("it can't be read: {error}")),
    };
    #[derive(serde::Deserialize)]
    struct Stored {
        seq: u64,
        hash: String,
        file: String,
    }
    let stored: Stored = serde_json::from_str(&text).map_err(|_| "it is malformed".to_owned())?;
    let file = number_of(&stored.file).ok_or("it names no file of the log")?;
    if stored.hash.len() != NO_HASH.len() {
        return Err("its hash is malformed".to_owned());
    }
    Ok(Some(Head { position: ChainPosition { seq: stored.seq, hash: stored.hash }, file }))
}

/// The head file. Overwritten in place with content of constant length: it is smaller than a sector, so writes are not
/// torn, and no rename is needed for every flush.
pub struct HeadFile {
    file: File,
    path: PathBuf,
}

impl HeadFile {
    pub fn open(folder: &Path) -> Result<Self, AuditError> {
        let path = folder.join(HEAD_FILE);
        let file = open_private(&path, OpenOptions::new().create(true).truncate(false).write(true));
        Ok(Self { file: file.map_err(AuditError::io("open", &path))?, path })
    }

    pub fn write(&self, head: &Head) -> Result<(), AuditError> {
        let ChainPosition { seq, hash } = &head.position;
        let text = format!("{{\"seq\":{seq:>20},\"hash\":\"{hash}\",\"file\":\"{}\"}}\n", file_name(head.file));
        self.file.write_all_at(text.as_bytes(), 0).map_err(AuditError::io("write", &self.path))?;

        Ok(())
    }

    pub fn sync(&self) -> Result<(), AuditError> {
        self.file.sync_data().map_err(AuditError::io("sync", &self.path))
    }
}

/// Creates the folder, accessible by its owner only, and takes its lock.
pub fn lock(folder: &Path) -> Result<File, AuditError> {
    private_folder(folder).map_err(AuditError::io("use the folder", folder))?;
    let path = folder.join(LOCK_FILE);
    let file = open_private(&path, OpenOptions::new().create(true).truncate(false).write(true));
    let file = file.map_err(AuditError::io("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(AuditError::Locked { folder: folder.to_owned() }),
        Err(TryLockError::Error(error)) => Err(AuditError::io("lock", path)(error)),
    }
}

pub fn create(folder: &Path, number: u64) -> Result<File, AuditError> {
    let path = path_of(folder, number);
    let file = open_private(&path, OpenOptions::new().create_new(true).append(true));
    let file = file.map_err(AuditError::io("create", &path))?;
    sync_folder(folder)?;
    Ok(file)
}

pub fn append(folder: &Path, number: u64) -> Result<File, AuditError> {
    let path = path_of(folder, number);
    open_private(&path, OpenOptions::new().append(true)).map_err(AuditError::io("open", path))
}

/// Opens a file for reading, also one of a copy that another user made.
pub fn open(path: &Path) -> io::Result<File> {
    open_unlinked(path, OpenOptions::new().read(true))
}

/// Reads a file, also one of a copy that another user made.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub fn sync_folder(folder: &Path) -> Result<(), AuditError> {
    toolbus_base::sync_folder(folder).map_err(AuditError::io("sync", folder))
}
