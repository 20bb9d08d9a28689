//! The directory of announced hosts and their manifests. The rest of the broker uses the [`HostDirectory`] trait; this
//! implementation keeps manifests in memory and in a folder, so that the tools of an offline host stay known.

use crate::error::{BrokerError, BrokerResult};
use crate::manifest_files::{ManifestFiles, StoredManifests};
use crate::name_owners::{HeldBack, NameOwners};
use crate::offers::{self, Offers};
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
use toolbus_policy::PolicySet;
use toolbus_protocol::{Body, HostEntry, RoleManifest};
use toolbus_store::OpenError;

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

/// Future of an announcement; resolves when the manifests are durable, with the names that are held back from now on.
pub type AnnounceFuture = Pin<Box<dyn Future<Output = Result<Vec<HeldBack>, ManifestRefusal>> + Send>>;

/// Directory of hosts; a trait because a cluster needs another implementation than a single broker.
pub trait HostDirectory: Send + Sync {
    /// Replaces the manifests of a host; resolves when they are durable. The host is online from now until
    /// [`left`](Self::left).
    fn announce(&self, host: &str, conn: ConnId, manifests: Vec<RoleManifest>) -> AnnounceFuture;
    /// Reports that a connection that had announced is closed.
    fn left(&self, host: &str, conn: ConnId);
    /// Lists the hosts that have a manifest for this role, in the order of their first announcement. Manifests whose
    /// version is in `known` are left out.
    fn hosts(&self, role: Option<&str>, known: &HashMap<ByteString, u64>) -> Vec<HostEntry>;
    /// Whether some host offers anything to this role, or none is known.
    fn offer_anything(&self, role: Option<&str>) -> bool;
    /// Replaces the rules about which host may offer which name, and applies them to all hosts. Blocks on disk I/O.
    fn set_rules(&self, rules: Arc<PolicySet>);
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
    /// Locked during a write, so that announcements are decided and written one at a time.
    files: Mutex<Files>,
    changes: watch::Sender<u64>,
}

struct Files {
    manifests: ManifestFiles,
    owners: NameOwners,
    rules: Arc<PolicySet>,
}

#[derive(Default)]
struct State {
    hosts: HashMap<Arc<str>, Host>,
    presence: HashMap<Arc<str>, Presence>,
    announcements: u64,
}

struct Host {
    /// As the host announced them.
    announced: Vec<RoleManifest>,
    /// As workers see them.
    offers: Offers,
    versions: Vec<u64>,
    /// Position in the order of first announcements.
    rank: usize,
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
    /// A folder that is a link, or contains one, does.
    pub fn open(folder: &Path, seed: u64) -> BrokerResult<Self> {
        let folder = folder.join("hosts");
        let file = folder.display().to_string();
        let unusable = |source| BrokerError::Folder(Arc::new(OpenError::Io { what: "use", file, source }));
        let manifests = ManifestFiles::open(folder, seed).map_err(unusable)?;
        let mut stored = manifests.read_all(KEPT_WHILE_AWAY);
        let mut files = Files { owners: manifests.read_owners(), manifests, rules: Arc::default() };
        files.forget_missing(&stored);
        stored.sort_by_key(|host| (files.owners.rank(&host.host), host.host.clone()));
        // Ownership is not assigned here: the rules that decide about it are set later.
        let owners = files.owners.clone();
        let mut state = State::default();
        for StoredManifests { host, manifests, last_seen } in stored {
            let known = files.host(&host, manifests, 0, last_seen);
            state.hosts.insert(Arc::from(&*host), known);
        }
        files.owners = owners;
        let shared = Shared { state: Mutex::new(state), files: Mutex::new(files), changes: watch::Sender::new(0) };
        Ok(Self { shared: Arc::new(shared) })
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
            runtime.spawn_blocking(move || shared.files().manifests.touch(&host));
        }
    }

    fn hosts(&self, role: Option<&str>, known: &HashMap<ByteString, u64>) -> Vec<HostEntry> {
        let state = self.shared.lock();
        let mut hosts: Vec<_> = state.hosts.iter().collect();
        hosts.sort_by_key(|(_, host)| host.rank);
        let mut entries: Vec<HostEntry> =
            hosts.into_iter().filter_map(|(id, host)| state.entry(id, host, role)).collect();
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

    fn offer_anything(&self, role: Option<&str>) -> bool {
        let state = self.shared.lock();
        let is_offered = |host: &Host| host.offers.index_of(role).is_some_and(|index| host.offers.are_of_use[index]);
        state.hosts.is_empty() || state.hosts.values().any(is_offered)
    }

    fn set_rules(&self, rules: Arc<PolicySet>) {
        self.shared.set_rules(rules);
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

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().expect("no code panics while holding the files lock")
    }

    fn notify_changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Decides which names are visible, writes the manifests to disk and then publishes them. Blocks on disk I/O.
    fn replace(
        &self,
        host: Arc<str>,
        number: u64,
        manifests: Vec<RoleManifest>,
    ) -> Result<Vec<HeldBack>, ManifestRefusal> {
        let mut files = self.files();
        if self.lock().hosts.get(&host).is_some_and(|known| known.announcement > number) {
            return Ok(Vec::new());
        }
        let mut new = Vec::new();
        if manifests.is_empty() {
            files.withdraw(&host).map_err(ManifestRefusal::Unwritten)?;
            self.lock().hosts.remove(&host);
        } else {
            let known = files.announce(&host, manifests, number).map_err(ManifestRefusal::Unwritten)?;
            let mut state = self.lock();
            let before = state.hosts.get(&host).map_or(&[][..], |before| &before.offers.held_back);
            new.extend(known.offers.held_back.iter().filter(|held| !before.contains(held)).cloned());
            state.hosts.insert(host, known);
        }
        self.notify_changed();
        Ok(new)
    }

    fn set_rules(&self, rules: Arc<PolicySet>) {
        let mut files = self.files();
        files.rules = rules;
        let mut state = self.lock();
        let mut hosts: Vec<(&Arc<str>, &mut Host)> = state.hosts.iter_mut().collect();
        hosts.sort_by(|a, b| (a.1.rank, a.0).cmp(&(b.1.rank, b.0)));
        for (name, host) in hosts {
            let announced = std::mem::take(&mut host.announced);
            *host = files.host(name, announced, host.announcement, host.away_since);
        }
        drop(state);
        if let Err(error) = files.write_owners() {
            tracing::error!(%error, "the owners of names could not be written");
        }
        self.notify_changed();
    }
}

impl Files {
    /// Forgets hosts without stored manifests. Those with manifests but without an entry are older than the entries.
    fn forget_missing(&mut self, stored: &[StoredManifests]) {
        let is_stored = |host: &String| stored.iter().any(|stored| stored.host == *host);
        let missing: Vec<String> = self.owners.hosts().iter().filter(|host| !is_stored(host)).cloned().collect();
        missing.iter().for_each(|host| self.owners.remove_host(host));
    }

    /// The owners are written first: a name must not be visible before it is durably owned.
    fn announce(&mut self, host: &str, manifests: Vec<RoleManifest>, number: u64) -> io::Result<Host> {
        let before = self.owners.clone();
        let known = self.host(host, manifests, number, SystemTime::now());
        let is_same = self.owners == before;
        let written = if is_same { Ok(()) } else { self.write_owners() };
        if let Err(error) = written.and_then(|()| self.manifests.write(host, &known.announced)) {
            self.owners = before;
            return Err(error);
        }
        Ok(known)
    }

    fn withdraw(&mut self, host: &str) -> io::Result<()> {
        self.manifests.remove(host)?;
        self.owners.remove_host(host);
        self.write_owners()
    }

    fn host(&mut self, name: &str, announced: Vec<RoleManifest>, number: u64, away_since: SystemTime) -> Host {
        self.owners.add_host(name);
        let offers = offers::claim_all(&mut self.owners, &self.rules, name, &announced);
        let versions = offers.manifests.iter().map(|manifest| version(&manifest.manifest)).collect();
        Host { announced, offers, versions, rank: self.owners.rank(name), announcement: number, away_since }
    }

    fn write_owners(&self) -> io::Result<()> {
        self.manifests.write_owners(&self.owners)
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
        let index = host.offers.index_of(role)?;
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
            manifest: Some(host.offers.manifests[index].manifest.clone()),
        })
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
