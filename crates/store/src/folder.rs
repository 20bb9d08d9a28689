//! The real disk: a folder that belongs to one process at a time.

use crate::{Disk, DiskFile, StoreError};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What stays the same over the life of a data folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Names the durable namespace; clients compare it after a reconnect.
    pub id: String,
    /// Secret: keys the fingerprints of message ids and the checksums of the log.
    pub seed: u64,
}

pub struct FolderDisk {
    path: PathBuf,
    folder: File,
    /// Held for as long as the process uses the folder.
    _lock: File,
}

const LOCK_FILE: &str = "lock";
const IDENTITY_FILE: &str = "identity";
const FORMAT_LINE: &str = "toolbus log 2";

impl FolderDisk {
    /// Opens or makes the folder and takes its lock.
    pub fn open(path: &Path) -> Result<(Self, Identity), StoreError> {
        let io = |what: &'static str| {
            let file = path.display().to_string();
            move |source| StoreError::Io { what, file, source }
        };
        fs::create_dir_all(path).map_err(io("make the data folder"))?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path.join(LOCK_FILE))
            .map_err(io("open the lock of"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::Locked { folder: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(io("lock")(source)),
        }
        let folder = File::open(path).map_err(io("open"))?;
        let disk = Self { path: path.to_owned(), folder, _lock: lock };
        let identity = disk.identity()?;
        Ok((disk, identity))
    }

    fn identity(&self) -> Result<Identity, StoreError> {
        let path = self.path.join(IDENTITY_FILE);
        let file = path.display().to_string();
        match fs::read_to_string(&path) {
            Ok(text) => parse_identity(&text).ok_or(StoreError::UnknownFormat { file }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_identity().map_err(|source| StoreError::Io { what: "write", file, source })
            }
            Err(source) => Err(StoreError::Io { what: "read", file, source }),
        }
    }

    fn make_identity(&self) -> io::Result<Identity> {
        let random = uuid::Uuid::new_v4();
        let identity = Identity { id: uuid::Uuid::new_v4().to_string(), seed: random.as_u64_pair().0 };
        let temporary = self.path.join("identity.new");
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&temporary)?;
        writeln!(file, "{FORMAT_LINE}\n{}\n{}", identity.id, identity.seed)?;
        file.sync_all()?;
        fs::rename(temporary, self.path.join(IDENTITY_FILE))?;
        self.folder.sync_all()?;
        Ok(identity)
    }
}

fn parse_identity(text: &str) -> Option<Identity> {
    let mut lines = text.lines();
    (lines.next()? == FORMAT_LINE).then_some(())?;
    Some(Identity { id: lines.next()?.to_owned(), seed: lines.next()?.parse().ok()? })
}

impl Disk for FolderDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.path.join(name);
        let file = OpenOptions::new().create_new(true).read(true).append(true).mode(0o600).open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).append(true).open(self.path.join(name))?;
        Ok(Arc::new(RealFile(file)))
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

struct RealFile(File);

impl DiskFile for RealFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.0).write_all(bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
