//! The manifests of hosts on disk: one file for each host, replaced as a whole, with a checksum. A file that can't be read is
//! set aside; its host will announce again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use toolbus_protocol::{Announce, ClientFrame, RoleManifest, json};
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

const SUFFIX: &str = "manifests";
const DAMAGED_SUFFIX: &str = "damaged";

/// What was found of one host.
pub struct StoredManifests {
    pub host: String,
    pub manifests: Vec<RoleManifest>,
    /// When the host was last known to be there.
    pub seen: SystemTime,
}

pub struct ManifestFiles {
    folder: PathBuf,
    /// The folder's secret: names of hosts come from outside and must not be made to share a file.
    seed: u64,
}

impl ManifestFiles {
    pub fn new(folder: PathBuf, seed: u64) -> Self {
        Self { folder, seed }
    }

    /// Everything that is readable and not too old.
    pub fn read_all(&self, kept_for: Duration) -> Vec<StoredManifests> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                tracing::error!(%error, folder = %self.folder.display(), "the manifests of hosts can't be listed");
                return Vec::new();
            }
        };
        let paths = entries.flatten().map(|entry| entry.path());
        let manifests = paths.filter(|path| path.extension().is_some_and(|extension| extension == SUFFIX));
        manifests.filter_map(|path| self.read_or_set_aside(&path, kept_for)).collect()
    }

    fn read_or_set_aside(&self, path: &Path, kept_for: Duration) -> Option<StoredManifests> {
        match self.read(path) {
            Ok(stored) if stored.seen.elapsed().is_ok_and(|age| age > kept_for) => {
                tracing::info!(host = stored.host, "a host that was away for long is forgotten");
                fs::remove_file(path).ok();
                None
            }
            Ok(stored) => Some(stored),
            Err(error) => {
                let aside = path.with_extension(DAMAGED_SUFFIX);
                tracing::error!(%error, file = %path.display(), "damaged manifests of a host are set aside");
                fs::rename(path, aside).ok();
                None
            }
        }
    }

    /// A line with the checksum, and the host's announcement under its name.
    fn read(&self, path: &Path) -> io::Result<StoredManifests> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let bytes = fs::read(path)?;
        let (checksum, text) = bytes.split_at_checked(17).ok_or_else(|| bad("it is too short"))?;
        if checksum != self.checksum(text).as_bytes() {
            return Err(bad("its checksum is wrong"));
        }
        match json::read_client(text) {
            Ok(ClientFrame::Announce(Announce { request_id, manifests })) if self.path_of(&request_id) == path => {
                Ok(StoredManifests { host: request_id.to_string(), manifests, seen: fs::metadata(path)?.modified()? })
            }
            _ => Err(bad("it is not what its name says")),
        }
    }

    pub fn write(&self, host: &str, manifests: &[RoleManifest]) -> io::Result<()> {
        let announce = Announce { request_id: host.into(), manifests: manifests.to_vec() };
        let nobody = toolbus_protocol::AgentRef::new("");
        let text = json::write_client(&ClientFrame::Announce(announce), &nobody);
        self.make_folder()?;
        let path = self.path_of(host);
        let temporary = path.with_extension("new");
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(self.checksum(text.as_bytes()).as_bytes())?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(temporary, path)?;
        self.sync_folder()
    }

    pub fn remove(&self, host: &str) -> io::Result<()> {
        match fs::remove_file(self.path_of(host)) {
            Ok(()) => self.sync_folder(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Notes in the file's time that the host was there until now. Not worth a sync: it only delays forgetting.
    pub fn touch(&self, host: &str) {
        if let Ok(file) = OpenOptions::new().append(true).open(self.path_of(host)) {
            file.set_modified(SystemTime::now()).ok();
        }
    }

    fn make_folder(&self) -> io::Result<()> {
        if self.folder.is_dir() {
            return Ok(());
        }
        fs::create_dir_all(&self.folder)?;
        self.folder.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }

    fn path_of(&self, host: &str) -> PathBuf {
        self.folder.join(format!("{:032x}.{SUFFIX}", xxh3_128_with_seed(host.as_bytes(), self.seed)))
    }

    fn checksum(&self, text: &[u8]) -> String {
        format!("{:016x}\n", xxh3_64_with_seed(text, self.seed))
    }
}
