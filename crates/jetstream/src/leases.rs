//! The records of who owns which partition, in a key-value bucket.

use crate::ClusterError;
use async_nats::jetstream::kv::{Operation, Store, Watch};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use toolbus_cluster::{LeaseEvent, LeaseRecord, Partition};

/// The bucket.
#[derive(Clone)]
pub struct Leases(Store);

/// A change of a partition's record, as the event that its lease handles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseChange {
    /// The partition.
    pub partition: Partition,
    /// [`LeaseEvent::Seen`].
    pub event: LeaseEvent,
}

/// The form of a record in the bucket.
#[derive(Serialize, Deserialize)]
struct Stored {
    owner: Option<String>,
    epoch: u64,
}

impl Leases {
    pub(crate) fn new(bucket: Store) -> Self {
        Self(bucket)
    }

    /// The record of a partition as it is now.
    pub async fn get(&self, partition: Partition) -> Result<LeaseEvent, ClusterError> {
        let entry = self.0.entry(key_of(partition)).await.map_err(ClusterError::request("read a lease"))?;
        Ok(match entry.filter(|entry| entry.operation == Operation::Put) {
            Some(entry) => LeaseEvent::Seen { revision: entry.revision, record: record_of(&entry.value)? },
            None => LeaseEvent::Seen { revision: 0, record: LeaseRecord { owner: None, epoch: 0 } },
        })
    }

    /// Writes a record if its revision is still the expected one, 0 for none. Returns false if it is not. After an error it
    /// may have been written: the watch tells.
    pub async fn write(&self, partition: Partition, revision: u64, record: &LeaseRecord) -> Result<bool, ClusterError> {
        let stored = Stored { owner: record.owner.clone(), epoch: record.epoch };
        let value = serde_json::to_vec(&stored).map_err(ClusterError::request("encode a lease"))?;
        match self.0.update(key_of(partition), value.into(), revision).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == async_nats::jetstream::kv::UpdateErrorKind::WrongLastRevision => Ok(false),
            Err(error) => Err(ClusterError::Request { what: "write a lease", reason: error.to_string() }),
        }
    }

    /// Watches all records. The watch begins with the records as they are.
    pub async fn watch(&self) -> Result<LeaseWatch, ClusterError> {
        let watch = self.0.watch_with_history("owners.>").await;
        Ok(LeaseWatch(watch.map_err(ClusterError::request("watch the leases"))?))
    }
}

/// Changes of records. Dropping it ends the watch.
pub struct LeaseWatch(Watch);

impl LeaseWatch {
    /// The next change, or `None` if the watch has ended and has to be begun again.
    pub async fn next(&mut self) -> Option<LeaseChange> {
        loop {
            let entry = self.0.next().await?.ok()?;
            let number = entry.key.strip_prefix("owners.").and_then(|number| number.parse().ok());
            match (number, record_of(&entry.value)) {
                (Some(number), Ok(record)) => {
                    let event = LeaseEvent::Seen { revision: entry.revision, record };
                    return Some(LeaseChange { partition: Partition(number), event });
                }
                _ => tracing::warn!(key = entry.key, "the bucket of the leases has an unreadable record"),
            }
        }
    }
}

fn key_of(Partition(number): Partition) -> String {
    format!("owners.{number}")
}

fn record_of(value: &[u8]) -> Result<LeaseRecord, ClusterError> {
    let stored: Stored = serde_json::from_slice(value).map_err(ClusterError::request("decode a lease"))?;
    Ok(LeaseRecord { owner: stored.owner, epoch: stored.epoch })
}
