//! The key-value bucket that all brokers of a cluster share. Requests are repeated, because no server answers them during an
//! election, and a write whose answer was lost is resolved by reading.

use crate::ClusterError;
use crate::cluster::START;
use async_nats::jetstream::kv::{Entry, Operation, Store, UpdateErrorKind, Watch};
use bytes::Bytes;
use futures_util::TryStreamExt;
use std::fmt::Display;
use std::future::Future;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_base::Backoff;

/// How long a request is repeated. An election takes up to 9 s.
const REPEAT_FOR: Duration = Duration::from_secs(15);
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// Room for the headers and the subject of a message.
const HEADERS: usize = 4 << 10;

/// The bucket.
#[derive(Clone)]
pub(crate) struct Bucket {
    store: Store,
    max_payload: usize,
}

/// The value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    pub revision: u64,
    pub bytes: Bytes,
}

/// The outcome of a write that names the revision that it replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Swap {
    /// Written as this revision.
    Written(u64),
    /// The key has another revision. Nothing was written.
    Conflict,
}

impl Bucket {
    pub fn new(store: Store, max_payload: usize) -> Self {
        Self { store, max_payload }
    }

    /// Maximum size of a value.
    pub fn max_value(&self) -> usize {
        self.max_payload.saturating_sub(HEADERS)
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Reads a key. The answer may come from a replica that is behind, so it decides nothing by itself: what depends on it
    /// has to be written with [`swap`](Self::swap).
    pub async fn get(&self, key: &str) -> Result<Option<Value>, ClusterError> {
        let entry = self.entry(key).await?;
        let entry = entry.filter(|entry| entry.operation == Operation::Put);
        Ok(entry.map(|entry| Value { revision: entry.revision, bytes: entry.value }))
    }

    /// All keys with that prefix.
    pub async fn keys(&self, prefix: &str) -> Result<Vec<String>, ClusterError> {
        let list = || async {
            let keys = self.store.keys().await.map_err(|error| error.to_string())?;
            keys.try_collect::<Vec<String>>().await.map_err(|error| error.to_string())
        };
        let keys = repeated_for(START, "list the keys of the cluster's bucket", list).await?;
        Ok(keys.into_iter().filter(|key| key.starts_with(prefix)).collect())
    }

    /// The revision that [`swap`](Self::swap) has to name: that of the value or of its removal, 0 if there was none.
    pub async fn revision(&self, key: &str) -> Result<u64, ClusterError> {
        Ok(self.entry(key).await?.map_or(0, |entry| entry.revision))
    }

    /// The last write or removal of a key, as [`get`](Self::get) reads it.
    pub async fn entry(&self, key: &str) -> Result<Option<Entry>, ClusterError> {
        repeated("read the cluster's bucket", || self.store.entry(key)).await
    }

    /// Writes a key if its revision is still `expected`, 0 for none. After a lost answer, the same value at a newer revision
    /// counts as written: either it is this write, or another one with the same effect.
    pub async fn swap(&self, key: &str, bytes: Bytes, expected: u64) -> Result<Swap, ClusterError> {
        let deadline = Instant::now() + REPEAT_FOR;
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        let mut is_sent = false;
        loop {
            let reason = match self.store.update(key, bytes.clone(), expected).await {
                Ok(revision) => return Ok(Swap::Written(revision)),
                Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision && !is_sent => {
                    return Ok(Swap::Conflict);
                }
                Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => {
                    match self.get(key).await? {
                        Some(found) if found.bytes == bytes && found.revision != expected => {
                            return Ok(Swap::Written(found.revision));
                        }
                        // A replica that is behind has not seen the newer revision yet.
                        Some(found) if found.revision > expected => return Ok(Swap::Conflict),
                        _ => error.to_string(),
                    }
                }
                Err(error) => error.to_string(),
            };
            is_sent = true;
            if Instant::now() >= deadline {
                return Err(ClusterError::Request { what: "write the cluster's bucket", reason });
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    /// Writes a key that only this broker writes.
    pub async fn put(&self, key: &str, bytes: Bytes) -> Result<u64, ClusterError> {
        repeated("write the cluster's bucket", || self.store.put(key, bytes.clone())).await
    }

    /// Removes a key. Watches report that.
    pub async fn remove(&self, key: &str) -> Result<(), ClusterError> {
        repeated("write the cluster's bucket", || self.store.delete(key)).await
    }

    /// Removes all keys that match, or only what was written before a revision, without a trace and without a report to
    /// watches.
    pub async fn erase(&self, pattern: &str, before: Option<u64>) -> Result<(), ClusterError> {
        let subject = format!("{}{pattern}", self.store.prefix);
        let erase = || {
            let purge = self.store.stream.purge().filter(&subject);
            match before {
                Some(before) => purge.sequence(before).into_future(),
                None => purge.into_future(),
            }
        };
        repeated("erase from the cluster's bucket", erase).await.map(drop)
    }

    /// Watches keys, in the order of their changes. Begins with the present values.
    pub async fn watch(&self, patterns: &[&str]) -> Result<Watch, ClusterError> {
        let watch = self.store.watch_many_with_history(patterns).await;
        watch.map_err(ClusterError::request("watch the cluster"))
    }
}

/// Repeats a request that can be repeated.
pub(crate) async fn repeated<T, E: Display, F: Future<Output = Result<T, E>>>(
    what: &'static str,
    request: impl FnMut() -> F,
) -> Result<T, ClusterError> {
    repeated_for(REPEAT_FOR, what, request).await
}

/// Repeats a request that can be repeated, for that long.
pub(crate) async fn repeated_for<T, E: Display, F: Future<Output = Result<T, E>>>(
    limit: Duration,
    what: &'static str,
    mut request: impl FnMut() -> F,
) -> Result<T, ClusterError> {
    let deadline = Instant::now() + limit;
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    loop {
        let reason = match request().await {
            Ok(answer) => return Ok(answer),
            Err(error) => error.to_string(),
        };
        if Instant::now() >= deadline {
            return Err(ClusterError::Request { what, reason });
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}
