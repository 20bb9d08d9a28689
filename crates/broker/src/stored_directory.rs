//! The directory of hosts over a storage: it decides which host owns which name, makes announcements durable, and keeps the
//! tools of an offline host known. In a cluster the brokers share the storage, and owners are decided by compare-and-set.

use crate::directory::{AnnounceFuture, HostDirectory, KEPT_WHILE_AWAY, ManifestRefusal};
use crate::directory_state::{Host, State};
use crate::error::{BrokerError, BrokerResult};
use crate::host_storage::{HostChange, HostStorage, StoredManifests, StoredOwners};
use crate::manifest_files::ManifestFiles;
use crate::name_owners::{HeldBack, NameOwners};
use crate::offers;
use bytestring::ByteString;
use hashbrown::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use toolbus_base::Backoff;
use toolbus_engine::ConnId;
use toolbus_policy::PolicySet;
use toolbus_protocol::{HostEntry, RoleManifest};
use toolbus_store::OpenError;

/// How often owners are decided again because another broker changed them meanwhile.
const MAX_CONFLICTS: usize = 64;
const FIRST_WAIT: Duration = Duration::from_millis(5);
const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// A directory of hosts.
#[derive(Clone)]
pub struct StoredDirectory {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    storage: Box<dyn HostStorage>,
    /// Locked during a write, so that announcements to this broker are decided and written one at a time.
    writing: Mutex<()>,
    changes: watch::Sender<u64>,
}

impl StoredDirectory {
    /// The directory of a single broker. Damaged files are renamed and skipped; they never keep the broker from starting.
    /// A folder that is a link, or contains one, does.
    pub fn in_folder(folder: &Path, seed: u64) -> BrokerResult<Self> {
        let folder = folder.join("hosts");
        let file = folder.display().to_string();
        let unusable = |source| BrokerError::Folder(Arc::new(OpenError::Io { what: "use", file, source }));
        ManifestFiles::open(folder, seed).and_then(|files| Self::open(Box::new(files))).map_err(unusable)
    }

    /// Reads the stored manifests. Blocks.
    pub fn open(storage: Box<dyn HostStorage>) -> io::Result<Self> {
        // Manifests first: a storage may forget the owners of those that are too old.
        let mut stored = storage.read_manifests(KEPT_WHILE_AWAY)?;
        let mut owners = storage.read_owners()?;
        let is_shared = storage.is_shared();
        // In a shared storage, the manifests of a host without any may be on their way.
        if !is_shared {
            forget_missing(&mut owners.owners, &stored);
        }
        stored.sort_by_key(|host| (owners.owners.rank(&host.host), host.host.clone()));
        // Ownership is not assigned here: the rules that decide about it are set later.
        let mut claimed = owners.owners.clone();
        let mut state = State::new(owners);
        for host in stored {
            let name: Arc<str> = Arc::from(&*host.host);
            let offers = if is_shared {
                offers::view_all(&claimed, &state.rules, &name, &host.manifests)
            } else {
                claimed.add_host(&name);
                offers::claim_all(&mut claimed, &state.rules, &name, &host.manifests)
            };
            let rank = claimed.rank(&name);
            state.hosts.insert(name, Host::new(host, offers, rank, 0));
        }
        let (state, writing, changes) = (Mutex::new(state), Mutex::default(), watch::Sender::new(0));
        Ok(Self { shared: Arc::new(Shared { state, storage, writing, changes }) })
    }

    /// Applies a change of a shared storage.
    pub fn apply(&self, change: HostChange) {
        let mut state = self.shared.lock();
        let is_changed = match change {
            HostChange::Owners(owners) => state.set_owners(owners),
            HostChange::Manifests(stored) => state.set_manifests(stored),
            HostChange::Removed { host, revision } => state.remove(&host, revision),
            HostChange::Connected { broker, hosts } => state.set_elsewhere(broker, hosts),
        };
        drop(state);
        if is_changed {
            self.shared.notify_changed();
        }
    }

    /// The announced hosts that are connected to this broker, sorted. Changes are reported by
    /// [`changes`](HostDirectory::changes).
    pub fn connected(&self) -> Vec<String> {
        self.shared.lock().connected()
    }
}

impl HostDirectory for StoredDirectory {
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
        if !state.remove_connection(host, conn) || !state.hosts.contains_key(host) {
            return;
        }
        let is_online = state.is_elsewhere_only(host);
        drop(state);
        self.shared.notify_changed();
        let (shared, host) = (Arc::clone(&self.shared), host.to_owned());
        if let (Ok(runtime), false) = (tokio::runtime::Handle::try_current(), is_online) {
            runtime.spawn_blocking(move || shared.storage.touch(&host, SystemTime::now()));
        }
    }

    fn hosts(&self, role: Option<&str>, known: &HashMap<ByteString, u64>) -> Vec<HostEntry> {
        self.shared.lock().list(role, known)
    }

    fn offer_anything(&self, role: Option<&str>) -> bool {
        let state = self.shared.lock();
        let is_offered = |host: &Host| host.offers.index_of(role).is_some_and(|index| host.offers.are_of_use[index]);
        state.hosts.is_empty() || state.hosts.values().any(is_offered)
    }

    /// In a shared storage, names that the rules give to another host are hidden at once, and claimed in the background.
    fn set_rules(&self, rules: Arc<PolicySet>) {
        let shared = Arc::clone(&self.shared);
        shared.lock().rules = rules;
        let runtime = tokio::runtime::Handle::try_current();
        match runtime {
            Ok(runtime) if shared.storage.is_shared() => {
                shared.lock().review_all();
                shared.notify_changed();
                runtime.spawn_blocking(move || shared.claim_again());
            }
            _ => shared.claim_again(),
        }
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

    fn notify_changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Decides which names are visible, makes the manifests durable and then publishes them. Blocks.
    fn replace(
        &self,
        host: Arc<str>,
        number: u64,
        manifests: Vec<RoleManifest>,
    ) -> Result<Vec<HeldBack>, ManifestRefusal> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let state = self.lock();
            let is_late = state.hosts.get(&host).is_some_and(|known| known.announcement > number);
            // The host has reconnected to another broker, which has its later announcement.
            let has_moved = !manifests.is_empty() && state.is_elsewhere_only(&host);
            if is_late || has_moved {
                return Ok(Vec::new());
            }
        }
        let mut new = Vec::new();
        if manifests.is_empty() {
            self.withdraw(&host).map_err(ManifestRefusal::Unwritten)?;
            self.lock().hosts.remove(&host);
        } else {
            // Read first: a shared storage may report the write before it returns.
            let before = self.lock().hosts.get(&host).map_or_else(Vec::new, |before| before.offers.held_back.clone());
            let known = self.write(&host, number, manifests).map_err(ManifestRefusal::Unwritten)?;
            new.extend(known.offers.held_back.iter().filter(|held| !before.contains(held)).cloned());
            let mut state = self.lock();
            let before = state.pool_problems(&host);
            state.publish(Arc::clone(&host), known);
            for problem in state.pool_problems(&host).iter().filter(|problem| !before.contains(problem)) {
                tracing::warn!(host = &*host, "{problem}");
            }
        }
        self.notify_changed();
        Ok(new)
    }

    /// The owners are written first: a name must not be visible before it is durably owned.
    fn write(&self, host: &str, number: u64, manifests: Vec<RoleManifest>) -> io::Result<Host> {
        let before = self.lock().owners.owners.clone();
        let offers = self.change_owners(|owners, rules| {
            owners.add_host(host);
            offers::claim_all(owners, rules, host, &manifests)
        })?;
        let revision = self.storage.write_manifests(host, &manifests).inspect_err(|_| {
            if !before.hosts().iter().any(|known| known == host) {
                self.change_owners(|owners, _| owners.remove_host(host)).ok();
            }
        })?;
        let stored = StoredManifests { host: host.to_owned(), manifests, last_seen: SystemTime::now(), revision };
        let rank = self.lock().owners.owners.rank(host);
        Ok(Host::new(stored, offers, rank, number))
    }

    fn withdraw(&self, host: &str) -> io::Result<()> {
        self.storage.remove_manifests(host)?;
        self.change_owners(|owners, _| owners.remove_host(host))
    }

    /// Decides about owners and makes the decision durable. If another broker has changed them meanwhile, it is made again
    /// from the new state. A shared storage is written even if nothing changes: the state that was decided upon may be old.
    fn change_owners<T>(&self, mut decide: impl FnMut(&mut NameOwners, &PolicySet) -> T) -> io::Result<T> {
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        for _ in 0..MAX_CONFLICTS {
            let (StoredOwners { mut owners, revision }, rules) = {
                let state = self.lock();
                (state.owners.clone(), Arc::clone(&state.rules))
            };
            let before = owners.clone();
            let outcome = decide(&mut owners, &rules);
            if owners == before && !self.storage.is_shared() {
                return Ok(outcome);
            }
            match self.storage.write_owners(revision, &owners)? {
                Some(revision) => {
                    self.lock().set_owners(StoredOwners { owners, revision });
                    return Ok(outcome);
                }
                None => {
                    thread::sleep(backoff.next_delay());
                    let newer = self.storage.read_owners()?;
                    self.lock().set_owners(newer);
                }
            }
        }
        Err(io::Error::other("other brokers change the owners of names without pause"))
    }

    /// Claims the names of all hosts under the present rules.
    fn claim_again(&self) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let hosts: Vec<(Arc<str>, Vec<RoleManifest>)> = {
            let state = self.lock();
            state.in_order().into_iter().map(|(name, host)| (Arc::clone(name), host.announced.clone())).collect()
        };
        let claimed = self.change_owners(|owners, rules| {
            // First of all, because the last host that leaves a pool frees its names.
            hosts.iter().for_each(|(host, manifests)| offers::join_pool(owners, rules, host, manifests));
            for (host, manifests) in &hosts {
                owners.add_host(host);
                offers::claim_all(owners, rules, host, manifests);
            }
        });
        if let Err(error) = claimed {
            tracing::error!(%error, "the owners of names could not be written");
        }
        self.lock().review_all();
        self.notify_changed();
    }
}

/// Forgets hosts without stored manifests. Those with manifests but without an entry are older than the entries.
fn forget_missing(owners: &mut NameOwners, stored: &[StoredManifests]) {
    let is_stored = |host: &String| stored.iter().any(|stored| stored.host == *host);
    let missing: Vec<String> = owners.hosts().iter().filter(|host| !is_stored(host)).cloned().collect();
    missing.iter().for_each(|host| owners.remove_host(host));
}
