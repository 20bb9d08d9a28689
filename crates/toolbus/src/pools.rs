//! Pools as commands show them: which hosts are members, and where they differ.

use std::collections::BTreeMap;
use toolbus_mcp::{HostManifest, MergedPool, PoolMember, merge_pool};

/// The hosts of a pool, merged.
#[derive(Debug)]
pub struct ShownPool {
    pub name: String,
    /// Indexes of its hosts, in the order of `merged`'s members.
    pub hosts: Vec<usize>,
    pub merged: MergedPool,
}

/// The pools of these hosts, given as name, whether it is connected, and manifest.
pub fn pools_of<'a>(hosts: impl IntoIterator<Item = (&'a str, bool, &'a HostManifest)>) -> Vec<ShownPool> {
    let mut pools: BTreeMap<&str, (Vec<usize>, Vec<PoolMember<'_>>)> = BTreeMap::new();
    for (index, (host, online, manifest)) in hosts.into_iter().enumerate() {
        if let Some(pool) = manifest.pool.as_deref() {
            let (indexes, members) = pools.entry(pool).or_default();
            indexes.push(index);
            members.push(PoolMember { host, online, manifest });
        }
    }
    let shown = |(name, (hosts, members)): (&str, (Vec<usize>, Vec<PoolMember<'_>>))| ShownPool {
        name: name.to_owned(),
        hosts,
        merged: merge_pool(name, &members),
    };
    pools.into_iter().map(shown).collect()
}
