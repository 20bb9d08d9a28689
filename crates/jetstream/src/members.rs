//! The brokers of the cluster: each renews a record with its address. A record that does not change for a while belongs to a
//! broker that is gone or cut off.

use crate::Leases;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The form of a member's record.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Stored {
    address: String,
}

/// The members that this broker knows, timed by its own clock.
#[derive(Default)]
pub(crate) struct Members {
    known: BTreeMap<String, Member>,
}

struct Member {
    address: String,
    first_seen: Instant,
    last_seen: Instant,
}

pub(crate) const PREFIX: &str = "brokers.";

impl Members {
    /// A record was written.
    pub fn seen(&mut self, key: &str, value: &[u8], now: Instant) {
        let (Some(name), Ok(stored)) = (key.strip_prefix(PREFIX), serde_json::from_slice::<Stored>(value)) else {
            return tracing::warn!(key, "the bucket of the cluster has an unreadable record of a broker");
        };
        let member = self.known.entry(name.to_owned());
        let member = member.or_insert(Member { address: String::new(), first_seen: now, last_seen: now });
        member.address = stored.address;
        member.last_seen = now;
    }

    /// The record of a broker was removed: it has stopped.
    pub fn left(&mut self, key: &str) {
        key.strip_prefix(PREFIX).map(|name| self.known.remove(name));
    }

    /// The members whose records changed within `silence`, and were known for at least `settled`.
    pub fn live(&self, now: Instant, silence: Duration, settled: Duration) -> impl Iterator<Item = &str> {
        let is_live = move |member: &Member| now - member.last_seen < silence && now - member.first_seen >= settled;
        self.known.iter().filter(move |(_, member)| is_live(member)).map(|(name, _)| name.as_str())
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
pub(crate) async fn announce(leases: &Leases, name: &str, address: &str) {
    let stored = Stored { address: address.to_owned() };
    if let Ok(value) = serde_json::to_vec(&stored)
        && let Err(error) = leases.put(&format!("{PREFIX}{name}"), value).await
    {
        tracing::debug!(%error, "the record of this broker could not be renewed");
    }
}
