//! The directory of hosts: manifests, and the owners of names.

use crate::error::MoveError;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};
use toolbus_broker::{DAMAGED_SUFFIX, HostStorage, NameOwners, StoredManifests, StoredOwners};
use toolbus_protocol::RoleManifest;

/// How often owners are written that someone else writes too.
const ATTEMPTS: u32 = 8;

/// All that a directory has.
pub struct Hosts {
    pub owners: NameOwners,
    pub manifests: BTreeMap<String, (Vec<RoleManifest>, SystemTime)>,
}

/// Fails if a file of a folder's directory was set aside. A broker starts without it, but a move would make the loss final.
pub fn check_folder(folder: &Path) -> Result<(), MoveError> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|source| MoveError::Io { what: "list the host manifests", source })?,
    };
    let damaged = |path: &std::path::PathBuf| path.extension().is_some_and(|found| found == DAMAGED_SUFFIX);
    match entries.flatten().map(|entry| entry.path()).find(damaged) {
        Some(file) => Err(MoveError::DamagedHosts { file }),
        None => Ok(()),
    }
}

impl Hosts {
    pub fn read(storage: &dyn HostStorage) -> Result<Self, MoveError> {
        let failed = |source| MoveError::Io { what: "read the directory of hosts", source };
        let owners = storage.read_owners().map_err(failed)?.owners;
        let of_host = |StoredManifests { host, manifests, last_seen, .. }| (host, (manifests, last_seen));
        let manifests = storage.read_manifests(Duration::MAX).map_err(failed)?.into_iter().map(of_host).collect();
        Ok(Self { owners, manifests })
    }

    /// Writes what differs.
    pub fn write(&self, storage: &dyn HostStorage) -> Result<(), MoveError> {
        self.write_all(storage).map_err(|source| MoveError::Io { what: "write the directory of hosts", source })
    }

    fn write_all(&self, storage: &dyn HostStorage) -> io::Result<()> {
        let mut attempts = 0;
        loop {
            let StoredOwners { owners, revision } = storage.read_owners()?;
            if owners == self.owners || storage.write_owners(revision, &self.owners)?.is_some() {
                break;
            }
            attempts += 1;
            if attempts == ATTEMPTS {
                return Err(io::Error::other("the owners of names change without pause"));
            }
        }
        for (host, (manifests, seen)) in &self.manifests {
            storage.write_manifests(host, manifests)?;
            storage.touch(host, *seen);
        }
        Ok(())
    }

    /// Fails unless the storage has the same hosts, manifests and owners.
    pub fn verify(&self, storage: &dyn HostStorage) -> Result<Self, MoveError> {
        let found = Self::read(storage)?;
        let of = |hosts: &Self| {
            hosts.manifests.iter().map(|(host, (all, _))| (host.clone(), all.clone())).collect::<Vec<_>>()
        };
        match found.owners == self.owners && of(&found) == of(self) {
            true => Ok(found),
            false => Err(MoveError::Unequal { what: "manifests of hosts" }),
        }
    }
}
