//! The agents of a cluster: the records of every broker's `agents.json`, joined in the bucket. Each broker joins the records
//! of the others into its own file and writes what the bucket lacks, so that an agent that is added or revoked at one broker
//! is added or revoked at all.

use crate::ClusterError;
use crate::bucket::{Bucket, Swap};
use async_nats::jetstream::kv::{Entry, Operation};
use bytes::Bytes;
use futures_util::StreamExt;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};
use toolbus_base::{from_hex_of_any_length, hex};
use toolbus_identity::{AgentsFolder, AgentsMark, SharedRecord};

/// The record of an agent, under its name in hexadecimal.
pub(crate) const PREFIX: &str = "agents.";
/// How often the file is checked for changes.
const POLL: Duration = Duration::from_millis(200);
/// Wait after a failure.
const AGAIN: Duration = Duration::from_millis(250);

/// The agents of a cluster at one broker. Followed until it is dropped.
pub struct SharedAgents {
    following: JoinHandle<()>,
}

impl Drop for SharedAgents {
    fn drop(&mut self) {
        self.following.abort();
    }
}

impl SharedAgents {
    /// Joins the agents of the cluster and those of the folder now, and after every change of either.
    pub(crate) async fn join(bucket: Bucket, folder: AgentsFolder) -> Result<Self, ClusterError> {
        let mut records = Records { bucket, folder, shared: BTreeMap::new(), joined: BTreeMap::new(), mark: None };
        records.read().await?;
        records.exchange().await?;
        Ok(Self { following: tokio::spawn(records.follow()) })
    }
}

struct Records {
    bucket: Bucket,
    folder: AgentsFolder,
    /// The records of the bucket and their revisions.
    shared: BTreeMap<String, (u64, SharedRecord)>,
    /// The records that the file has since the last join.
    joined: BTreeMap<String, SharedRecord>,
    /// The version of the file that was joined.
    mark: Option<AgentsMark>,
}

impl Records {
    async fn follow(mut self) {
        let mut is_failing = false;
        loop {
            match self.watch(&mut is_failing).await {
                // Once per outage.
                Err(error) if !std::mem::replace(&mut is_failing, true) => {
                    tracing::warn!(%error, "the agents of the cluster can't be followed; trying again");
                }
                Err(error) => tracing::debug!(%error, "the agents of the cluster still can't be followed"),
                Ok(()) => {}
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Follows the changes until the watch ends.
    async fn watch(&mut self, is_failing: &mut bool) -> Result<(), ClusterError> {
        let mut watch = self.bucket.watch(&[&format!("{PREFIX}>")]).await?;
        self.exchange().await?;
        if std::mem::take(is_failing) {
            tracing::info!("the agents of the cluster are followed again");
        }
        let mut polls = interval(POLL);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_changed = tokio::select! {
                entry = watch.next() => match entry {
                    Some(Ok(entry)) => self.seen(entry),
                    Some(Err(error)) => return Err(ClusterError::request("watch the agents of the cluster")(error)),
                    None => return Ok(()),
                },
                _ = polls.tick() => self.folder.mark() != self.mark,
            };
            if is_changed {
                self.exchange().await?;
            }
        }
    }

    /// Notes a record of the bucket. Returns whether it is news.
    fn seen(&mut self, entry: Entry) -> bool {
        let name = entry.key.strip_prefix(PREFIX).and_then(from_hex_of_any_length);
        let Some(name) = name.and_then(|name| String::from_utf8(name).ok()) else { return false };
        if entry.operation != Operation::Put {
            return false;
        }
        let is_known = self.shared.get(&name).is_some_and(|(revision, _)| *revision >= entry.revision);
        if is_known {
            return false;
        }
        let is_new = self.joined.get(&name).is_none_or(|joined| *joined != entry.value);
        self.shared.insert(name, (entry.revision, entry.value.to_vec()));
        is_new
    }

    async fn read(&mut self) -> Result<(), ClusterError> {
        for key in self.bucket.keys(PREFIX).await? {
            self.read_one(&key).await?;
        }
        Ok(())
    }

    async fn read_one(&mut self, key: &str) -> Result<(), ClusterError> {
        let entry = self.bucket.entry(key).await?;
        entry.map(|entry| self.seen(entry));
        Ok(())
    }

    /// Joins the records of the bucket into the file, and writes those that the bucket lacks. A record that another broker
    /// changes meanwhile is joined again.
    async fn exchange(&mut self) -> Result<(), ClusterError> {
        loop {
            let folder = self.folder.clone();
            let shared = self.shared.iter().map(|(name, (_, record))| (name.clone(), record.clone())).collect();
            let joining = spawn_blocking(move || {
                // Taken before, so that a change during the join is noticed.
                let mark = folder.mark();
                folder.join(&shared).map(|joined| (mark, joined))
            });
            let joined = joining.await.map_err(ClusterError::request("join the agents"))?;
            (self.mark, self.joined) = joined.map_err(ClusterError::request("join the agents of the cluster"))?;
            if self.write_missing().await? {
                return Ok(());
            }
        }
    }

    /// Returns false if another broker has changed a record meanwhile.
    async fn write_missing(&mut self) -> Result<bool, ClusterError> {
        let mut is_complete = true;
        for (name, record) in self.joined.clone() {
            let known = self.shared.get(&name);
            if known.is_some_and(|(_, shared)| *shared == record) {
                continue;
            }
            let (revision, key) =
                (known.map_or(0, |(revision, _)| *revision), format!("{PREFIX}{}", hex(name.as_bytes())));
            match self.bucket.swap(&key, Bytes::from(record.clone()), revision).await? {
                Swap::Written(revision) => drop(self.shared.insert(name, (revision, record))),
                Swap::Conflict => {
                    is_complete = false;
                    tokio::time::sleep(AGAIN).await;
                    self.read_one(&key).await?;
                }
            }
        }
        Ok(is_complete)
    }
}
