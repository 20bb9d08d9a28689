//! The records of who owns which partition, and which brokers there are, in the cluster's bucket.

use crate::bucket::Bucket;
use crate::{ClusterError, members};
use async_nats::jetstream::kv::{Operation, Watch};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use toolbus_cluster::{LeaseEvent, LeaseRecord, Partition};

/// The records.
#[derive(Clone)]
pub struct Leases(Bucket);

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
    pub(crate) fn new(bucket: Bucket) -> Self {
        Self(bucket)
    }

    /// The record of a partition as it is now.
    pub async fn get(&self, partition: Partition) -> Result<LeaseEvent, ClusterError> {
        let entry = self.0.store().entry(key_of(partition)).await.map_err(ClusterError::request("read a lease"))?;
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
        match self.0.store().update(key_of(partition), value.into(), revision).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == async_nats::jetstream::kv::UpdateErrorKind::WrongLastRevision => Ok(false),
            Err(error) => Err(ClusterError::Request { what: "write a lease", reason: error.to_string() }),
        }
    }

    /// Watches all records. The watch begins with the records as they are.
    pub async fn watch(&self) -> Result<BucketWatch, ClusterError> {
        Ok(BucketWatch(self.0.watch(&["owners.>", "brokers.>"]).await?))
    }

    pub(crate) async fn put(&self, key: &str, value: Vec<u8>) -> Result<(), ClusterError> {
        self.0
            .store()
            .put(key, value.into())
            .await
            .map(drop)
            .map_err(ClusterError::request("write a record of a broker"))
    }

    pub(crate) async fn erase(&self, key: &str) -> Result<(), ClusterError> {
        self.0.erase(key, None).await
    }

    pub(crate) async fn remove(&self, key: &str) -> Result<(), ClusterError> {
        self.0.store().delete(key).await.map_err(ClusterError::request("remove the record of a broker"))
    }
}

/// A change in the bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BucketChange {
    /// Of the owner of a partition.
    Lease(LeaseChange),
    /// Of the record of a broker.
    Member {
        /// The key of the record.
        key: String,
        /// Its value, or `None` if it was removed.
        value: Option<Bytes>,
    },
}

/// Changes of the bucket. Dropping it ends the watch.
pub struct BucketWatch(Watch);

impl BucketWatch {
    /// The next change, or `None` if the watch has ended and has to be begun again.
    pub async fn next(&mut self) -> Option<BucketChange> {
        loop {
            let entry = self.0.next().await?.ok()?;
            if let Some(number) = entry.key.strip_prefix("owners.") {
                match (number.parse(), record_of(&entry.value)) {
                    (Ok(number), Ok(record)) => {
                        let event = LeaseEvent::Seen { revision: entry.revision, record };
                        return Some(BucketChange::Lease(LeaseChange { partition: Partition(number), event }));
                    }
                    _ => tracing::warn!(key = entry.key, "the bucket of the cluster has an unreadable lease"),
                }
            } else if entry.key.starts_with(members::PREFIX) {
                let value = (entry.operation == Operation::Put).then_some(entry.value);
                return Some(BucketChange::Member { key: entry.key, value });
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
