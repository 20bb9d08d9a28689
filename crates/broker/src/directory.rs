//! The directory of announced hosts and their manifests. The rest of the broker uses the [`HostDirectory`] trait; this
//! implementation keeps manifests in memory and in a folder, so that the tools of an offline host stay known.

use crate::manifest_files::{ManifestFiles, StoredManifests};
use bytestring::ByteString;
use hashbrown::{HashMap, HashSet};
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;
use toolbus_engine::ConnId;
use toolbus_protocol::{Body, HostEntry, RoleManifest};

/// Maximum size of a manifest in bytes.
pub const MAX_MANIFEST_BYTES: usize = 8 << 20;
/// Maximum number of manifests of one host: one per role, and one for all other roles.
pub const MAX_ROLES_PER_HOST: usize = 64;
/// Maximum number of hosts in the directory.
pub const MAX_HOSTS: usize = 1024;
/// How long the manifests of an offline host are kept.
pub const KEPT_WHILE_AWAY: Duration = Duration::from_secs(30 * 24 * 3600);
/// Maximum bytes of manifests in one response; the first one is always included.
const MAX_RESPONSE_BYTES: usize = 8 << 20;

/// Why an announcement was refused.
#[derive(Debug, thiserror::Error)]
pub enum ManifestRefusal {
    /// A manifest of this many bytes exceeds [`MAX_MANIFEST_BYTES`].
    #[error("a manifest has {0} bytes; the limit is {MAX_MANIFEST_BYTES}")]
    TooLarge(usize),
    /// This many manifests exceed [`MAX_ROLES_PER_HOST`].
    #[error("the host announces {0} manifests; the limit is {MAX_ROLES_PER_HOST}")]
    TooManyRoles(usize),
    /// Two manifests name the same role.
    #[error("two manifests for the same role")]
    SameRole,
    /// The directory already has [`MAX_HOSTS`] hosts.
    #[error("host limit reached ({MAX_HOSTS} hosts)")]
    TooManyHosts,
    /// The connection has too many announcements that are not durable yet.
    #[error("too many pending announcements")]
    TooManyAtATime,
    /// The manifests could not be made durable.
    #[error("can't write the manifests: {0}")]
    Unwritten(io::Error),
}

/// Future of an announcement; resolves when the manifests are durable.
pub type AnnounceFuture = Pin<Box<dyn Future<Output = Result<(), ManifestRefusal>> + Send>>;

/// Directory of hosts; a trait because a cluster needs another implementation than a single broker.
pub trait HostDirectory: Send + Sync {
    /// Replaces the manifests of a host; resolves when they are durable. The host is online from now until
    /// [`left`](Self::left).
    fn announce(&self, host: &str, conn: ConnId, manifests: Vec<RoleManifest>) -> AnnounceFuture;
    /// Reports that a connection that had announced is closed.
    fn left(&self, host: &str, conn: ConnId);
    /// Lists the hosts that have a manifest for this role. Manifests whose version is in `known` are left out.
    fn hosts(&self, role: Option<&str>, known: &HashMap<ByteString, u64>) -> Vec<HostEntry>;
    /// Whether the directory has manifests of that host, online or offline.
    fn is_host(&self, name: &str) -> bool;
    /// Counts changes of the directory.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// The directory of a single broker.
pub struct FolderDirectory {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Locked during a write, so that manifest files are written one at a time.
    files: Mutex<ManifestFiles>,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    hosts: HashMap<Arc<str>, Host>,
    presence: HashMap<Arc<str>, Presence>,
    announcements: u64,
}

struct Host {
    manifests: Vec<RoleManifest>,
    versions: Vec<u64>,
    /// Number of the announcement of these manifests; an older announcement that is written late must not replace them.
    announcement: u64,
    away_since: SystemTime,
}

struct Presence {
    conns: HashSet<ConnId>,
    since: Instant,
}

impl FolderDirectory {
    /// Reads the stored manifests. Damaged files are renamed and skipped; they never keep the broker from starting.
    pub fn open(folder: &Path, seed: u64) -> Self {
        let files = ManifestFiles::new(folder.join("hosts"), seed);
        let mut hosts = HashMap::new();
        for StoredManifests { host, manifests, last_seen } in files.read_all(KEPT_WHILE_AWAY) {
            hosts.insert(Arc::from(&*host), Host::new(manifests, 0, last_seen));
        }
        let state = State { hosts, ..State::default() };
        let shared = Shared { state: Mutex::new(state), files: Mutex::new(files), changes: watch::Sender::new(0) };
        Self { shared: Arc::new(shared) }
    }
}

impl HostDirectory for FolderDirectory {
    fn announce(&self, host: &str, conn: ConnId, manifests: Vec<RoleManifest>) -> AnnounceFuture {
        let host: Arc<str> = Arc::from(host);
        let number = match self.shared.lock().begin(&host, conn, &manifests) {
            Ok(number) => number,
            Err(refusal) => return Box::pin(std::future::ready(Err(refusal))),
        };
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let write = tokio::task::spawn_blocking(move || shared.replace(host, number, manifests));
            write.await.unwrap_or_else(|error| Err(ManifestRefusal::Unwritten(io::Error::other(error))))
        })
    }

    fn left(&self, host: &str, conn: ConnId) {
        let mut state = self.shared.lock();
        if !state.remove_connection(host, conn) {
            return;
        }
        let Some(known) = state.hosts.get_mut(host) else { return };
        known.away_since = SystemTime::now();
        drop(state);
        self.shared.notify_changed();
        let (shared, host) = (Arc::clone(&self.shared), host.to_owned());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || shared.files().touch(&host));
        }
    }

    fn hosts(&self, role: Option<&str>, known: &HashMap<ByteString, u64>) -> Vec<HostEntry> {
        let state = self.shared.lock();
        let mut entries: Vec<HostEntry> =
            state.hosts.iter().filter_map(|(id, host)| state.entry(id, host, role)).collect();
        entries.sort_by(|a, b| a.id.cmp(&b.id));
        let mut room = MAX_RESPONSE_BYTES;
        for entry in &mut entries {
            let size = entry.manifest.as_ref().map_or(0, |manifest| manifest.as_bytes().len());
            let is_known = known.get(&entry.id) == Some(&entry.version);
            // The first one is included whatever its size, or the client could never get it.
            if is_known || (size > room && room < MAX_RESPONSE_BYTES) {
                entry.manifest = None;
            } else {
                room = room.saturating_sub(size);
            }
        }
        entries
    }

    fn is_host(&self, name: &str) -> bool {
        self.shared.lock().hosts.contains_key(name)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while holding the state lock")
    }

    fn files(&self) -> MutexGuard<'_, ManifestFiles> {
        self.files.lock().expect("no code panics while holding the files lock")
    }

    fn notify_changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Writes the manifests to disk and then publishes them. Blocks on disk I/O.
    fn replace(&self, host: Arc<str>, number: u64, manifests: Vec<RoleManifest>) -> Result<(), ManifestRefusal> {
        let files = self.files();
        if self.lock().hosts.get(&host).is_some_and(|known| known.announcement > number) {
            return Ok(());
        }
        let written = if manifests.is_empty() { files.remove(&host) } else { files.write(&host, &manifests) };
        written.map_err(ManifestRefusal::Unwritten)?;
        let mut state = self.lock();
        if manifests.is_empty() {
            state.hosts.remove(&host);
        } else {
            state.hosts.insert(host, Host::new(manifests, number, SystemTime::now()));
        }
        drop(state);
        self.notify_changed();
        Ok(())
    }
}

impl State {
    /// Checks the limits, marks the host as online (or offline if it withdraws) and numbers the announcement.
    fn begin(&mut self, host: &Arc<str>, conn: ConnId, manifests: &[RoleManifest]) -> Result<u64, ManifestRefusal> {
        check(manifests)?;
        if manifests.is_empty() {
            self.remove_connection(host, conn);
        } else {
            // Hosts whose first announcement is still being written count as well.
            let pending = self.presence.keys().filter(|present| !self.hosts.contains_key(*present)).count();
            let is_new = !self.hosts.contains_key(host) && !self.presence.contains_key(host);
            if is_new && self.hosts.len() + pending >= MAX_HOSTS {
                return Err(ManifestRefusal::TooManyHosts);
            }
            let since = Instant::now();
            let presence = self.presence.entry(Arc::clone(host)).or_insert_with(|| Presence::new(since));
            presence.conns.insert(conn);
        }
        self.announcements += 1;
        Ok(self.announcements)
    }

    /// Returns true if it was the host's last connection.
    fn remove_connection(&mut self, host: &str, conn: ConnId) -> bool {
        let Some(presence) = self.presence.get_mut(host) else { return false };
        presence.conns.remove(&conn);
        let gone = presence.conns.is_empty();
        if gone {
            self.presence.remove(host);
        }
        gone
    }

    fn entry(&self, id: &str, host: &Host, role: Option<&str>) -> Option<HostEntry> {
        let of = |wanted: Option<&str>| host.manifests.iter().position(|manifest| manifest.role.as_deref() == wanted);
        let index = role.and_then(|role| of(Some(role))).or_else(|| of(None))?;
        let presence = self.presence.get(id);
        let since = match presence {
            Some(presence) => presence.since.elapsed(),
            None => host.away_since.elapsed().unwrap_or_default(),
        };
        if presence.is_none() && since > KEPT_WHILE_AWAY {
            return None;
        }
        Some(HostEntry {
            id: ByteString::from(id),
            online: presence.is_some(),
            since_ms: since.as_millis() as u64,
            version: host.versions[index],
            manifest: Some(host.manifests[index].manifest.clone()),
        })
    }
}

impl Host {
    fn new(manifests: Vec<RoleManifest>, announcement: u64, away_since: SystemTime) -> Self {
        let versions = manifests.iter().map(|manifest| version(&manifest.manifest)).collect();
        Self { manifests, versions, announcement, away_since }
    }
}

impl Presence {
    fn new(since: Instant) -> Self {
        Self { conns: HashSet::new(), since }
    }
}

/// Content hash of a manifest, stable across restarts; 53 bits, the integers that every JSON reader represents exactly.
fn version(manifest: &Body) -> u64 {
    xxhash_rust::xxh3::xxh3_64(manifest.as_bytes()) >> 11
}

fn check(manifests: &[RoleManifest]) -> Result<(), ManifestRefusal> {
    if manifests.len() > MAX_ROLES_PER_HOST {
        return Err(ManifestRefusal::TooManyRoles(manifests.len()));
    }
    if let Some(large) =
        manifests.iter().map(|manifest| manifest.manifest.as_bytes().len()).find(|size| *size > MAX_MANIFEST_BYTES)
    {
        return Err(ManifestRefusal::TooLarge(large));
    }
    let roles: HashSet<Option<&str>> = manifests.iter().map(|manifest| manifest.role.as_deref()).collect();
    if roles.len() < manifests.len() { Err(ManifestRefusal::SameRole) } else { Ok(()) }
}
