//! The directory of announced hosts and their manifests, as the rest of the broker sees it. [`StoredDirectory`] implements it.
//!
//! [`StoredDirectory`]: crate::StoredDirectory

use crate::name_owners::HeldBack;
use bytestring::ByteString;
use hashbrown::{HashMap, HashSet};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use toolbus_engine::ConnId;
use toolbus_policy::PolicySet;
use toolbus_protocol::{HostEntry, RoleManifest};

/// Maximum size of a manifest in bytes.
pub const MAX_MANIFEST_BYTES: usize = 8 << 20;
/// Maximum number of manifests of one host: one per role, and one for all other roles.
pub const MAX_ROLES_PER_HOST: usize = 64;
/// Maximum number of hosts in the directory.
pub const MAX_HOSTS: usize = 1024;
/// How long the manifests of an offline host are kept.
pub const KEPT_WHILE_AWAY: Duration = Duration::from_secs(30 * 24 * 3600);

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
    /// Replaces the rules about which host may offer which name, and applies them to all hosts. May block on disk I/O.
    fn set_rules(&self, rules: Arc<PolicySet>);
    /// Whether the directory has manifests of that host, online or offline.
    fn is_host(&self, name: &str) -> bool;
    /// Counts changes of the directory.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// Checks an announcement against the limits.
pub(crate) fn check(manifests: &[RoleManifest]) -> Result<(), ManifestRefusal> {
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
