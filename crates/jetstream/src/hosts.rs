//! The directory of hosts of a cluster: manifests and the owners of names in the bucket, and which hosts are connected to which
//! broker.

mod following;

use crate::ClusterError;
use crate::blobs::{Blobs, damaged};
use crate::bucket::{Swap, Value};
use bytes::Bytes;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};
use toolbus_base::hex;
use toolbus_broker::{
    HostStorage, NameOwners, StoredDirectory, StoredManifests, StoredOwners, decode_manifests, encode_manifests,
};
use toolbus_protocol::RoleManifest;

/// How often the owners of names are written while other brokers change them too. The next broker that starts tries again.
const FORGETTING: u32 = 8;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(50);
/// The owners of all names.
const NAMES: &str = "names";
/// The manifests of a host follow, under its name in hexadecimal.
const MANIFESTS: &str = "manifests.";
/// When a host was last online, likewise.
const SEEN: &str = "seen.";

/// The directory of hosts, kept up to date while it exists.
pub struct SharedHosts {
    /// The directory.
    pub directory: StoredDirectory,
    following: JoinHandle<()>,
}

impl Drop for SharedHosts {
    fn drop(&mut self) {
        self.following.abort();
    }
}

impl SharedHosts {
    /// Reads the directory and follows its changes. `broker` is the name under which this broker reports its own hosts.
    pub(crate) async fn open(blobs: Blobs, broker: String) -> Result<Self, ClusterError> {
        let storage = BucketHosts::new(blobs.clone());
        let opening = spawn_blocking(move || StoredDirectory::open(Box::new(storage)));
        let opened = opening.await.unwrap_or_else(|error| Err(error.into()));
        let directory = opened.map_err(ClusterError::request("read the host directory of the cluster"))?;
        let following = tokio::spawn(following::run(blobs, directory.clone(), broker));
        Ok(Self { directory, following })
    }
}

/// The storage. Its methods block their threads, which must not be the runtime's.
pub(crate) struct BucketHosts {
    blobs: Blobs,
    runtime: Handle,
}

impl BucketHosts {
    pub fn new(blobs: Blobs) -> Self {
        Self { blobs, runtime: Handle::current() }
    }

    fn wait<T>(&self, request: impl Future<Output = Result<T, ClusterError>>) -> io::Result<T> {
        self.runtime.block_on(request).map_err(io::Error::other)
    }
}

impl BucketHosts {
    /// Forgets hosts that were away for too long. Their names are free again.
    fn forget(&self, old: &[StoredManifests]) -> io::Result<()> {
        for StoredManifests { host, .. } in old {
            tracing::info!(host, "removed the manifests of a host that was offline for too long");
            self.remove_manifests(host)?;
            self.wait(self.blobs.bucket().erase(&key_of(SEEN, host), None))?;
        }
        for _ in 0..FORGETTING {
            let StoredOwners { mut owners, revision } = self.read_owners()?;
            let before = owners.clone();
            old.iter().for_each(|stored| owners.remove_host(&stored.host));
            if owners == before || self.write_owners(revision, &owners)?.is_some() {
                return Ok(());
            }
            std::thread::sleep(BETWEEN_ATTEMPTS);
        }
        Ok(())
    }
}

impl HostStorage for BucketHosts {
    fn is_shared(&self) -> bool {
        true
    }

    fn read_manifests(&self, max_age: Duration) -> io::Result<Vec<StoredManifests>> {
        let reading = async {
            let mut all = Vec::new();
            for key in &self.blobs.bucket().keys(MANIFESTS).await? {
                if let Some(value) = self.blobs.read(key).await? {
                    all.extend(manifests_of(&self.blobs, key, &value).await?);
                }
            }
            Ok(all)
        };
        let is_recent = |host: &StoredManifests| host.last_seen.elapsed().unwrap_or_default() <= max_age;
        let (recent, old): (Vec<_>, Vec<_>) = self.wait(reading)?.into_iter().partition(is_recent);
        self.forget(&old)?;
        Ok(recent)
    }

    fn read_owners(&self) -> io::Result<StoredOwners> {
        self.wait(async {
            match self.blobs.read(NAMES).await? {
                Some(value) => owners_of(&value).ok_or_else(|| damaged(NAMES)),
                None => {
                    Ok(StoredOwners { revision: self.blobs.bucket().revision(NAMES).await?, ..StoredOwners::default() })
                }
            }
        })
    }

    fn write_owners(&self, revision: u64, owners: &NameOwners) -> io::Result<Option<u64>> {
        let swapped = self.wait(self.blobs.swap(NAMES, owners.to_text().as_bytes(), revision))?;
        Ok(match swapped {
            Swap::Written(revision) => Some(revision),
            Swap::Conflict => None,
        })
    }

    fn write_manifests(&self, host: &str, manifests: &[RoleManifest]) -> io::Result<u64> {
        self.wait(self.blobs.put(&key_of(MANIFESTS, host), encode_manifests(host, manifests).as_bytes()))
    }

    fn remove_manifests(&self, host: &str) -> io::Result<()> {
        self.wait(self.blobs.remove(&key_of(MANIFESTS, host)))
    }

    fn touch(&self, host: &str, at: SystemTime) {
        let at = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        if let Err(error) = self.wait(self.blobs.bucket().put(&key_of(SEEN, host), Bytes::from(at.to_string()))) {
            tracing::debug!(host, %error, "the time at which a host was last online could not be written");
        }
    }
}

/// The manifests in a value. Damaged ones are skipped: their host announces again.
async fn manifests_of(blobs: &Blobs, key: &str, value: &Value) -> Result<Option<StoredManifests>, ClusterError> {
    let Some((host, manifests)) = decode_manifests(&value.bytes).filter(|(host, _)| key_of(MANIFESTS, host) == key)
    else {
        tracing::error!(key, "the manifests of a host in the cluster's bucket are damaged");
        return Ok(None);
    };
    let seen = blobs.bucket().get(&key_of(SEEN, &host)).await?;
    let seen = seen.and_then(|seen| std::str::from_utf8(&seen.bytes).ok()?.parse().ok());
    let last_seen = seen.map_or_else(SystemTime::now, |seen| UNIX_EPOCH + Duration::from_millis(seen));
    Ok(Some(StoredManifests { host, manifests, last_seen, revision: value.revision }))
}

fn owners_of(value: &Value) -> Option<StoredOwners> {
    Some(StoredOwners { owners: NameOwners::from_text(&value.bytes)?, revision: value.revision })
}

fn key_of(prefix: &str, host: &str) -> String {
    format!("{prefix}{}", hex(host.as_bytes()))
}
