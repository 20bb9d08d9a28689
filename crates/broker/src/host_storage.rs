//! Where a directory of hosts keeps its manifests and the owners of names: a folder, or a bucket that several brokers share.

use crate::name_owners::NameOwners;
use std::io;
use std::time::{Duration, SystemTime};
use toolbus_protocol::{Announce, ClientFrame, RoleManifest, json};

/// The stored manifests of one host.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredManifests {
    /// The host.
    pub host: String,
    /// Its manifests as it announced them.
    pub manifests: Vec<RoleManifest>,
    /// When the host was last known to be online.
    pub last_seen: SystemTime,
    /// Increases with every change of any host, or always 0 in a storage that isn't shared.
    pub revision: u64,
}

/// The stored owners of names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredOwners {
    /// The owners.
    pub owners: NameOwners,
    /// Changes with every write; 0 if nothing was written yet.
    pub revision: u64,
}

/// A storage of manifests and owners. All methods block, for seconds if the storage is remote.
pub trait HostStorage: Send + Sync {
    /// Whether other brokers use the storage too, and report their changes as [`HostChange`].
    fn is_shared(&self) -> bool;
    /// Reads the manifests of all hosts that were online within `max_age`, and may forget the others.
    fn read_manifests(&self, max_age: Duration) -> io::Result<Vec<StoredManifests>>;
    /// Reads the owners of names.
    fn read_owners(&self) -> io::Result<StoredOwners>;
    /// Replaces the owners durably if `revision` is still the stored one. Returns the new revision, or `None` if another
    /// broker has changed them.
    fn write_owners(&self, revision: u64, owners: &NameOwners) -> io::Result<Option<u64>>;
    /// Replaces the manifests of a host durably. Returns the new revision.
    fn write_manifests(&self, host: &str, manifests: &[RoleManifest]) -> io::Result<u64>;
    /// Removes the manifests of a host durably.
    fn remove_manifests(&self, host: &str) -> io::Result<()>;
    /// Records that the host was online until then. Losing that only makes its manifests expire earlier.
    fn touch(&self, host: &str, at: SystemTime);
}

/// A change that another broker made, or the echo of an own one.
#[derive(Debug, Clone, PartialEq)]
pub enum HostChange {
    /// The owners of names were written.
    Owners(StoredOwners),
    /// The manifests of a host were written.
    Manifests(StoredManifests),
    /// The manifests of a host were removed.
    Removed {
        /// The host.
        host: String,
        /// The revision of the removal.
        revision: u64,
    },
    /// The announced hosts that are connected to another broker; empty if the broker is gone.
    Connected {
        /// The broker.
        broker: String,
        /// All its hosts.
        hosts: Vec<String>,
    },
}

/// The stored form of a host's manifests: the announcement as a JSON frame with the host's name as request id.
pub fn encode_manifests(host: &str, manifests: &[RoleManifest]) -> String {
    let announce = Announce { request_id: host.into(), manifests: manifests.to_vec() };
    json::write_client(&ClientFrame::Announce(announce), &toolbus_protocol::AgentRef::new(""))
}

/// Reads the stored form: the host and its manifests.
pub fn decode_manifests(text: &[u8]) -> Option<(String, Vec<RoleManifest>)> {
    match json::read_client(text) {
        Ok(ClientFrame::Announce(Announce { request_id, manifests })) => Some((request_id.to_string(), manifests)),
        _ => None,
    }
}
