//! Host manifests on disk: one file per host, replaced atomically, with a checksum. A damaged file is renamed and
//! skipped; its host will announce again. Beside them the owners of all names.

use crate::host_storage::{HostStorage, StoredManifests, StoredOwners, decode_manifests, encode_manifests};
use crate::name_owners::NameOwners;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use toolbus_base::{open_private, private_folder, read_private, replace_file, sync_folder};
use toolbus_protocol::RoleManifest;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

const SUFFIX: &str = "manifests";
const OWNERS_FILE: &str = "names";
/// Extension of files that were renamed because they are damaged.
pub const DAMAGED_SUFFIX: &str = "damaged";

/// The manifests in a folder.
pub struct ManifestFiles {
    folder: PathBuf,
    /// Secret of the data folder, so that no host can choose a name whose hash collides with another host's file.
    seed: u64,
}

impl ManifestFiles {
    /// Fails if the folder exists and must not be used.
    pub fn open(folder: PathBuf, seed: u64) -> io::Result<Self> {
        if fs::symlink_metadata(&folder).is_ok() {
            private_folder(&folder)?;
        }
        Ok(Self { folder, seed })
    }

    fn read_or_set_aside(&self, path: &Path, max_age: Duration) -> Option<StoredManifests> {
        match self.read(path) {
            Ok(stored) if stored.last_seen.elapsed().is_ok_and(|age| age > max_age) => {
                tracing::info!(host = stored.host, "removed the manifests of a host that was offline for too long");
                fs::remove_file(path).ok();
                None
            }
            Ok(stored) => Some(stored),
            Err(error) => {
                let aside = path.with_extension(DAMAGED_SUFFIX);
                tracing::error!(%error, file = %path.display(), "host manifests are damaged; the file is renamed");
                fs::rename(path, aside).ok();
                None
            }
        }
    }

    /// Format: a line with the checksum, then the text.
    fn read_text(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = read_private(path)?;
        let (checksum, text) = bytes.split_at_checked(17).ok_or_else(|| damaged("the file is too short"))?;
        if checksum != self.checksum(text).as_bytes() {
            return Err(damaged("checksum mismatch"));
        }
        Ok(bytes.split_off(17))
    }

    fn write_text(&self, path: &Path, text: &str) -> io::Result<()> {
        self.make_folder()?;
        replace_file(path, format!("{}{text}", self.checksum(text.as_bytes())).as_bytes())
    }

    fn read(&self, path: &Path) -> io::Result<StoredManifests> {
        let text = self.read_text(path)?;
        match decode_manifests(&text) {
            Some((host, manifests)) if self.path_of(&host) == path => {
                Ok(StoredManifests { host, manifests, last_seen: fs::metadata(path)?.modified()?, revision: 0 })
            }
            _ => Err(damaged("the content does not match the file name")),
        }
    }

    fn make_folder(&self) -> io::Result<()> {
        if self.folder.is_dir() {
            return Ok(());
        }
        private_folder(&self.folder)?;
        self.folder.parent().map_or(Ok(()), sync_folder)
    }

    fn path_of(&self, host: &str) -> PathBuf {
        self.folder.join(format!("{:032x}.{SUFFIX}", xxh3_128_with_seed(host.as_bytes(), self.seed)))
    }

    fn checksum(&self, text: &[u8]) -> String {
        format!("{:016x}\n", xxh3_64_with_seed(text, self.seed))
    }
}

impl HostStorage for ManifestFiles {
    fn is_shared(&self) -> bool {
        false
    }

    /// Reads all files that are undamaged.
    fn read_manifests(&self, max_age: Duration) -> io::Result<Vec<StoredManifests>> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                tracing::error!(%error, folder = %self.folder.display(), "can't list the host manifests");
                return Ok(Vec::new());
            }
        };
        let paths = entries.flatten().map(|entry| entry.path());
        let manifests = paths.filter(|path| path.extension().is_some_and(|extension| extension == SUFFIX));
        Ok(manifests.filter_map(|path| self.read_or_set_aside(&path, max_age)).collect())
    }

    /// If the file is damaged, the hosts get their names anew, in the order of their names.
    fn read_owners(&self) -> io::Result<StoredOwners> {
        let path = self.folder.join(OWNERS_FILE);
        let owners = match self.read_text(&path) {
            Ok(text) => NameOwners::from_text(&text).ok_or_else(|| damaged("it can't be parsed")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(StoredOwners::default()),
            Err(error) => Err(error),
        };
        let owners = owners.unwrap_or_else(|error| {
            tracing::error!(%error, file = %path.display(), "the owners of names are damaged; the file is renamed");
            fs::rename(&path, path.with_extension(DAMAGED_SUFFIX)).ok();
            NameOwners::default()
        });
        Ok(StoredOwners { owners, revision: 0 })
    }

    fn write_owners(&self, _revision: u64, owners: &NameOwners) -> io::Result<Option<u64>> {
        self.write_text(&self.folder.join(OWNERS_FILE), &owners.to_text())?;
        Ok(Some(0))
    }

    fn write_manifests(&self, host: &str, manifests: &[RoleManifest]) -> io::Result<u64> {
        self.write_text(&self.path_of(host), &encode_manifests(host, manifests))?;
        Ok(0)
    }

    fn remove_manifests(&self, host: &str) -> io::Result<()> {
        match fs::remove_file(self.path_of(host)) {
            Ok(()) => sync_folder(&self.folder),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sets the file's modification time, without an fsync.
    fn touch(&self, host: &str, at: SystemTime) {
        if let Ok(file) = open_private(&self.path_of(host), OpenOptions::new().append(true)) {
            file.set_modified(at).ok();
        }
    }
}

fn damaged(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_owned())
}
