//! What a directory of hosts knows, in memory: manifests, owners of names, and which hosts are connected, here or to another
//! broker.

use crate::directory::{KEPT_WHILE_AWAY, MAX_HOSTS, ManifestRefusal, check};
use crate::host_storage::{StoredManifests, StoredOwners};
use crate::offers::{self, Offers};
use bytestring::ByteString;
use hashbrown::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use toolbus_engine::ConnId;
use toolbus_mcp::{HostManifest, PoolMember, merge_pool};
use toolbus_policy::PolicySet;
use toolbus_protocol::{Body, HostEntry, RoleManifest};

/// Maximum bytes of manifests in one response; the first one is always included.
const MAX_RESPONSE_BYTES: usize = 8 << 20;

#[derive(Default)]
pub struct State {
    pub hosts: HashMap<Arc<str>, Host>,
    pub owners: StoredOwners,
    pub rules: Arc<PolicySet>,
    /// Connections to this broker.
    presence: HashMap<Arc<str>, Presence>,
    /// Since when hosts are connected to each other broker.
    elsewhere: HashMap<String, HashMap<Arc<str>, Instant>>,
    announcements: u64,
}

pub struct Host {
    /// As the host announced them.
    pub announced: Vec<RoleManifest>,
    /// As workers see them.
    pub offers: Offers,
    versions: Vec<u64>,
    /// Position in the order of first announcements.
    pub rank: usize,
    /// Number of the announcement of these manifests; an older announcement that is written late must not replace them.
    pub announcement: u64,
    /// The revision of these manifests in a shared storage.
    revision: u64,
    away_since: SystemTime,
}

struct Presence {
    conns: HashSet<ConnId>,
    since: Instant,
}

impl Host {
    pub fn new(stored: StoredManifests, offers: Offers, rank: usize, announcement: u64) -> Self {
        let versions = offers.manifests.iter().map(|manifest| version(&manifest.manifest)).collect();
        let StoredManifests { manifests: announced, last_seen: away_since, revision, .. } = stored;
        Self { announced, offers, versions, rank, announcement, revision, away_since }
    }

    fn set_offers(&mut self, offers: Offers) {
        self.versions = offers.manifests.iter().map(|manifest| version(&manifest.manifest)).collect();
        self.offers = offers;
    }
}

impl State {
    pub fn new(owners: StoredOwners) -> Self {
        Self { owners, ..Self::default() }
    }

    /// Checks the limits, marks the host as online (or offline if it withdraws) and numbers the announcement.
    pub fn begin(&mut self, host: &Arc<str>, conn: ConnId, manifests: &[RoleManifest]) -> Result<u64, ManifestRefusal> {
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

    /// Returns true if it was the host's last connection to this broker.
    pub fn remove_connection(&mut self, host: &str, conn: ConnId) -> bool {
        let Some(presence) = self.presence.get_mut(host) else { return false };
        presence.conns.remove(&conn);
        let gone = presence.conns.is_empty();
        if gone {
            self.presence.remove(host);
            self.went_away(host);
        }
        gone
    }

    fn went_away(&mut self, host: &str) {
        if let Some(known) = self.hosts.get_mut(host) {
            known.away_since = SystemTime::now();
        }
    }

    /// Whether the host is connected to another broker and not to this one.
    pub fn is_elsewhere_only(&self, host: &str) -> bool {
        !self.presence.contains_key(host) && self.elsewhere.values().any(|hosts| hosts.contains_key(host))
    }

    /// The announced hosts that are connected to this broker, sorted.
    pub fn connected(&self) -> Vec<String> {
        let announced = self.presence.keys().filter(|host| self.hosts.contains_key(*host));
        let mut connected: Vec<String> = announced.map(|host| host.to_string()).collect();
        connected.sort_unstable();
        connected
    }

    /// Replaces the hosts that are connected to another broker. Returns false if nothing changes.
    pub fn set_elsewhere(&mut self, broker: String, hosts: Vec<String>) -> bool {
        let now = Instant::now();
        let before = self.elsewhere.remove(&broker).unwrap_or_default();
        let since = |host: String| {
            let since = before.get(&*host).copied().unwrap_or(now);
            (Arc::from(host), since)
        };
        let after: HashMap<Arc<str>, Instant> = hosts.into_iter().map(since).collect();
        let is_same = before.len() == after.len() && before.keys().all(|host| after.contains_key(host));
        for host in before.keys().filter(|host| !after.contains_key(*host)) {
            self.went_away(host);
        }
        if !after.is_empty() {
            self.elsewhere.insert(broker, after);
        }
        !is_same
    }

    /// Takes over owners that are newer. Returns false if they are not.
    pub fn set_owners(&mut self, owners: StoredOwners) -> bool {
        if self.owners.revision > 0 && owners.revision <= self.owners.revision {
            return false;
        }
        let before = std::mem::replace(&mut self.owners, owners);
        let different = before.owners.hosts_that_differ(&self.owners.owners);
        let different: Vec<Arc<str>> =
            self.hosts.keys().filter(|host| different.contains(&***host)).map(Arc::clone).collect();
        different.iter().for_each(|host| self.review(host));
        if before.owners.hosts() != self.owners.owners.hosts() {
            self.hosts.iter_mut().for_each(|(name, host)| host.rank = self.owners.owners.rank(name));
        }
        true
    }

    /// Takes over the manifests of a host, unless newer ones are known.
    pub fn set_manifests(&mut self, stored: StoredManifests) -> bool {
        let known = self.hosts.get(&*stored.host);
        if known.is_some_and(|known| known.revision >= stored.revision) {
            return false;
        }
        let announcement = known.map_or(0, |known| known.announcement);
        let name: Arc<str> = Arc::from(&*stored.host);
        let owners = &self.owners.owners;
        let offers = offers::view_all(owners, &self.rules, &name, &stored.manifests);
        let host = Host::new(stored, offers, owners.rank(&name), announcement);
        self.hosts.insert(name, host);
        true
    }

    /// Publishes an announcement of this broker.
    pub fn publish(&mut self, name: Arc<str>, host: Host) {
        if self.hosts.get(&name).is_none_or(|known| known.revision <= host.revision) {
            self.hosts.insert(name, host);
        }
    }

    /// Removes a host, unless it was announced again after that revision.
    pub fn remove(&mut self, host: &str, revision: u64) -> bool {
        let is_older = self.hosts.get(host).is_some_and(|known| known.revision < revision);
        is_older && self.hosts.remove(host).is_some()
    }

    /// Applies the rules and the owners to all hosts.
    pub fn review_all(&mut self) {
        let names: Vec<Arc<str>> = self.hosts.keys().cloned().collect();
        names.iter().for_each(|name| self.review(name));
    }

    fn review(&mut self, name: &str) {
        let Some(host) = self.hosts.get_mut(name) else { return };
        host.set_offers(offers::view_all(&self.owners.owners, &self.rules, name, &host.announced));
        host.rank = self.owners.owners.rank(name);
    }

    /// Why the host is not in the pool that it asks to join, or where the definitions of the members differ.
    pub fn pool_problems(&self, host: &str) -> Vec<String> {
        let Some(known) = self.hosts.get(host) else { return Vec::new() };
        let Some(pool) = self.owners.owners.pool_of(&self.rules, host) else {
            return known.offers.refused_pool.iter().cloned().collect();
        };
        let read = |(name, host): (&Arc<str>, &Host)| {
            let manifest = host.offers.manifests.first()?;
            let manifest: HostManifest = serde_json::from_slice(manifest.manifest.as_bytes()).ok()?;
            let online = self.online_since(name).is_some();
            (manifest.pool.as_deref() == Some(pool)).then(|| (name.to_string(), online, manifest))
        };
        let members: Vec<_> = self.in_order().into_iter().filter_map(read).collect();
        let members: Vec<PoolMember<'_>> =
            members.iter().map(|(host, online, manifest)| PoolMember { host, online: *online, manifest }).collect();
        merge_pool(pool, &members).manifest.problems
    }

    /// The hosts in the order of their first announcement.
    pub fn in_order(&self) -> Vec<(&Arc<str>, &Host)> {
        let mut hosts: Vec<_> = self.hosts.iter().collect();
        hosts.sort_by(|a, b| (a.1.rank, a.0).cmp(&(b.1.rank, b.0)));
        hosts
    }

    pub fn list(&self, role: Option<&str>, known: &HashMap<ByteString, u64>) -> Vec<HostEntry> {
        let hosts = self.in_order().into_iter();
        let mut entries: Vec<HostEntry> = hosts.filter_map(|(id, host)| self.entry(id, host, role)).collect();
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

    fn entry(&self, id: &str, host: &Host, role: Option<&str>) -> Option<HostEntry> {
        let index = host.offers.index_of(role)?;
        let online_since = self.online_since(id);
        let since = match online_since {
            Some(since) => since.elapsed(),
            None => host.away_since.elapsed().unwrap_or_default(),
        };
        if online_since.is_none() && since > KEPT_WHILE_AWAY {
            return None;
        }
        Some(HostEntry {
            id: ByteString::from(id),
            online: online_since.is_some(),
            since_ms: since.as_millis() as u64,
            version: host.versions[index],
            manifest: Some(host.offers.manifests[index].manifest.clone()),
        })
    }

    fn online_since(&self, host: &str) -> Option<Instant> {
        let here = self.presence.get(host).map(|presence| presence.since);
        let elsewhere = self.elsewhere.values().filter_map(|hosts| hosts.get(host).copied());
        here.into_iter().chain(elsewhere).min()
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
