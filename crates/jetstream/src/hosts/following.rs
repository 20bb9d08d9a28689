//! Follows the changes that other brokers make to the host directory, and reports the hosts that are connected to this one.

use super::{MANIFESTS, NAMES, manifests_of, owners_of};
use crate::ClusterError;
use crate::blobs::Blobs;
use async_nats::jetstream::kv::{Entry, Operation};
use bytes::Bytes;
use futures_util::StreamExt;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};
use toolbus_base::from_hex_of_any_length;
use toolbus_broker::{HostChange, HostDirectory, StoredDirectory};

/// The hosts at a broker, which follows by name.
const ONLINE: &str = "online.";
/// How often a broker repeats which hosts are connected to it.
const REPORT: Duration = Duration::from_secs(4);
/// The hosts of a broker that has not repeated that for so long are offline.
const SILENCE: Duration = Duration::from_secs(15);
/// Wait before a watch that ended is begun again.
const BETWEEN_WATCHES: Duration = Duration::from_millis(250);

/// Runs until it is dropped.
pub async fn run(blobs: Blobs, directory: StoredDirectory, broker: String) {
    let own_key = format!("{ONLINE}{broker}");
    let mut following = Following { blobs, directory, own_key, others: BTreeMap::new() };
    let mut is_failing = false;
    loop {
        match following.watch(&mut is_failing).await {
            // Once per outage.
            Err(error) if !std::mem::replace(&mut is_failing, true) => {
                tracing::warn!(%error, "the host directory of the cluster can't be followed; trying again");
            }
            Err(error) => tracing::debug!(%error, "the host directory of the cluster still can't be followed"),
            Ok(()) => {}
        }
        tokio::time::sleep(BETWEEN_WATCHES).await;
    }
}

struct Following {
    blobs: Blobs,
    directory: StoredDirectory,
    own_key: String,
    /// The other brokers, and when each was last heard of.
    others: BTreeMap<String, Instant>,
}

impl Following {
    /// Applies all changes until the watch ends.
    async fn watch(&mut self, is_failing: &mut bool) -> Result<(), ClusterError> {
        let manifests = format!("{MANIFESTS}>");
        let online = format!("{ONLINE}>");
        let mut watch = self.blobs.bucket().watch(&[NAMES, &manifests, &online]).await?;
        let mut changes = self.directory.changes();
        let mut reported = None;
        let mut ticks = interval(REPORT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_due = tokio::select! {
                entry = watch.next() => match entry {
                    Some(Ok(entry)) => {
                        self.changed(&entry).await?;
                        false
                    }
                    Some(Err(error)) => return Err(ClusterError::request("watch the cluster")(error)),
                    None => return Ok(()),
                },
                _ = ticks.tick() => {
                    self.forget_silent().await?;
                    true
                }
                Ok(()) = changes.changed() => false,
            };
            let connected = self.directory.connected();
            if is_due || reported.as_ref() != Some(&connected) {
                self.report(&connected).await?;
                reported = Some(connected);
                if std::mem::take(is_failing) {
                    tracing::info!("the host directory of the cluster is followed again");
                }
            }
        }
    }

    async fn changed(&mut self, entry: &Entry) -> Result<(), ClusterError> {
        let is_put = entry.operation == Operation::Put;
        if entry.key == NAMES {
            if let Some(owners) = self.blobs.value_of(entry).await?.as_ref().and_then(owners_of) {
                self.directory.apply(HostChange::Owners(owners));
            }
        } else if entry.key.starts_with(MANIFESTS) && is_put {
            if let Some(value) = self.blobs.value_of(entry).await?
                && let Some(stored) = manifests_of(&self.blobs, &entry.key, &value).await?
            {
                self.directory.apply(HostChange::Manifests(stored));
            }
        } else if entry.key.starts_with(MANIFESTS) {
            self.removed(entry);
        } else if let Some(broker) = entry.key.strip_prefix(ONLINE).filter(|_| entry.key != self.own_key) {
            let hosts = if is_put { serde_json::from_slice(&entry.value).unwrap_or_default() } else { Vec::new() };
            match is_put {
                true => self.others.insert(broker.to_owned(), Instant::now()),
                false => self.others.remove(broker),
            };
            self.directory.apply(HostChange::Connected { broker: broker.to_owned(), hosts });
        }
        Ok(())
    }

    /// The hosts of a silent broker are offline. It reports them again if it was only cut off.
    async fn forget_silent(&mut self) -> Result<(), ClusterError> {
        let now = Instant::now();
        let silent = self.others.extract_if(.., |_, heard| now - *heard > SILENCE);
        for broker in silent.map(|(broker, _)| broker).collect::<Vec<_>>() {
            self.blobs.bucket().erase(&format!("{ONLINE}{broker}"), None).await?;
            self.directory.apply(HostChange::Connected { broker, hosts: Vec::new() });
        }
        Ok(())
    }

    fn removed(&self, entry: &Entry) {
        let host = entry.key.strip_prefix(MANIFESTS).and_then(from_hex_of_any_length);
        if let Some(host) = host.and_then(|host| String::from_utf8(host).ok()) {
            self.directory.apply(HostChange::Removed { host, revision: entry.revision });
        }
    }

    async fn report(&self, connected: &[String]) -> Result<(), ClusterError> {
        let hosts = serde_json::to_vec(connected).map_err(ClusterError::request("encode the hosts of this broker"))?;
        self.blobs.bucket().put(&self.own_key, Bytes::from(hosts)).await.map(drop)
    }
}
