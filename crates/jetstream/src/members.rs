//! The brokers of the cluster: each renews a record with its address. A record that does not change for a while belongs to a
//! broker that is gone or cut off.

use crate::bucket::Bucket;
use crate::{ClusterError, Leases};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use toolbus_cluster::{Partition, preferred};

/// The form of a member's record.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Stored {
    address: String,
    place: String,
}

/// The members that this broker knows, timed by its own clock.
#[derive(Default)]
pub(crate) struct Members {
    known: BTreeMap<String, Member>,
}

struct Member {
    address: String,
    /// The data folder that the broker runs in. Only one process at a time can.
    place: String,
    first_seen: Instant,
    last_seen: Instant,
}

pub(crate) const PREFIX: &str = "brokers.";

impl Members {
    /// A record was written. Returns the earlier processes in the same data folder, which are certain to be gone.
    pub fn seen(&mut self, key: &str, value: &[u8], now: Instant) -> Vec<String> {
        let (Some(name), Ok(stored)) = (key.strip_prefix(PREFIX), serde_json::from_slice::<Stored>(value)) else {
            tracing::warn!(key, "the bucket of the cluster has an unreadable record of a broker");
            return Vec::new();
        };
        let Stored { address, place } = stored;
        if let Some(member) = self.known.get_mut(name) {
            (member.address, member.last_seen) = (address, now);
            return Vec::new();
        }
        let is_earlier = |_: &String, member: &mut Member| member.place == place;
        let earlier = self.known.extract_if(.., is_earlier).map(|(name, _)| name).collect();
        self.known.insert(name.to_owned(), Member { address, place, first_seen: now, last_seen: now });
        earlier
    }

    /// When the record of a member was last written.
    pub fn last_seen(&self, name: &str) -> Option<Instant> {
        self.known.get(name).map(|member| member.last_seen)
    }

    /// The record of a broker was removed: it has stopped.
    pub fn left(&mut self, key: &str) {
        key.strip_prefix(PREFIX).map(|name| self.known.remove(name));
    }

    /// The member that should own a partition, of those whose records changed within `silence` and that are known for at
    /// least `settled`. Data folders are placed, and not processes, so that a broker that starts again gets the partitions
    /// that it had.
    pub fn preferred(&self, partition: Partition, now: Instant, silence: Duration, settled: Duration) -> Option<&str> {
        let is_live = |member: &&Member| now - member.last_seen < silence && now - member.first_seen >= settled;
        let live = self.known.values().filter(is_live).map(|member| member.place.as_str());
        let place = preferred(partition, live)?;
        self.known.iter().find(|(_, member)| member.place == place).map(|(name, _)| name.as_str())
    }

    /// Forgets the members whose records have not changed for `silence`, unless they still matter. Returns their names.
    pub fn forget(&mut self, now: Instant, silence: Duration, matters: impl Fn(&str) -> bool) -> Vec<String> {
        let is_gone = |name: &String, member: &mut Member| now - member.last_seen > silence && !matters(name);
        self.known.extract_if(.., is_gone).map(|(name, _)| name).collect()
    }

    pub fn address_of(&self, name: &str) -> Option<&str> {
        self.known.get(name).map(|member| member.address.as_str())
    }
}

/// Writes this broker's own record.
pub(crate) async fn announce(leases: &Leases, name: &str, address: String, place: String) {
    let stored = Stored { address, place };
    if let Ok(value) = serde_json::to_vec(&stored)
        && let Err(error) = leases.put(&format!("{PREFIX}{name}"), value).await
    {
        tracing::debug!(%error, "the record of this broker could not be renewed");
    }
}

/// How long the records are observed: longer than two renewals.
const OBSERVED: Duration = Duration::from_secs(5);

/// The addresses of the brokers whose records are renewed now. Those whose names have the prefix `except` don't count.
pub(crate) async fn live(bucket: &Bucket, except: &str) -> Result<Vec<String>, ClusterError> {
    let except = format!("{PREFIX}{except}");
    let mut before = BTreeMap::new();
    for key in bucket.keys(PREFIX).await?.into_iter().filter(|key| !key.starts_with(&except)) {
        before.insert(key.clone(), bucket.revision(&key).await?);
    }
    if before.is_empty() {
        return Ok(Vec::new());
    }
    tokio::time::sleep(OBSERVED).await;
    let mut live = Vec::new();
    for key in bucket.keys(PREFIX).await?.into_iter().filter(|key| !key.starts_with(&except)) {
        if let Some(value) = bucket.get(&key).await?
            && before.get(&key) != Some(&value.revision)
        {
            let stored = serde_json::from_slice::<Stored>(&value.bytes);
            live.push(stored.map_or_else(|_| key.clone(), |stored| stored.address));
        }
    }
    Ok(live)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLED: Duration = Duration::from_secs(10);
    const SILENCE: Duration = Duration::from_secs(12);

    fn record(place: &str) -> Vec<u8> {
        let stored = Stored { address: format!("{place}:1"), place: place.to_owned() };
        serde_json::to_vec(&stored).expect("plain JSON")
    }

    #[test]
    fn a_broker_that_starts_again_replaces_its_earlier_process_and_gets_its_partitions() {
        let start = Instant::now();
        let mut members = Members::default();
        for place in ["a", "b", "c"] {
            assert!(members.seen(&format!("{PREFIX}{place}1"), &record(place), start).is_empty());
        }
        let owned_by = |members: &Members, name: &str, now| -> Vec<u16> {
            let owner = |partition| members.preferred(Partition(partition), now, SILENCE, SETTLED);
            (0..16).filter(|partition| owner(*partition) == Some(name)).collect()
        };
        let settled = start + SETTLED;
        let before = owned_by(&members, "b1", settled);
        assert!(!before.is_empty());
        assert_eq!(members.seen("brokers.b2", &record("b"), settled), ["b1"]);
        assert!(owned_by(&members, "b2", settled).is_empty(), "not at once");
        for place in ["a1", "c1", "b2"] {
            members.seen(&format!("{PREFIX}{place}"), &record(&place[..1]), settled + SETTLED);
        }
        assert_eq!(owned_by(&members, "b2", settled + SETTLED), before);
        let later = settled + SETTLED + SILENCE;
        assert_eq!(members.preferred(Partition(0), later, SILENCE, SETTLED), None, "all are silent");
    }
}
