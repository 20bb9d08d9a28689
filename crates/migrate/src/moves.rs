//! The steps of a move, in the order that makes it safe to interrupt it anywhere.

mod to_cluster;
mod to_folder;

use crate::cluster_side::ClusterSide;
use crate::copy::Found;
use crate::digest;
use crate::error::MoveError;
use crate::hosts::Hosts;
use crate::plan::IdLimits;
use crate::report::Totals;
use crate::sides::Folder;
use crate::survey::{Contents, Log};
use std::path::Path;
use std::sync::Arc;
pub use to_cluster::to_cluster;
pub use to_folder::to_folder;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use toolbus_broker::MovedState;
use toolbus_cluster::Partitions;
use toolbus_engine::{EngineOptions, Settled};
use toolbus_jetstream::Cluster;
use toolbus_wal::{MoveMark, MoveState};

/// What to move, and how.
pub struct MoveOptions {
    /// The cluster. Its servers were checked.
    pub cluster: Cluster,
    /// Its name.
    pub name: String,
    /// The number of partitions of a new cluster.
    pub partitions: Partitions,
    /// Move what can be read of a damaged source.
    pub accept_damage: bool,
    /// Only read the source, and change nothing.
    pub dry_run: bool,
    /// Called with a line about each step.
    pub progress: Arc<dyn Fn(String) + Send + Sync>,
}

impl MoveOptions {
    fn cluster_name(&self) -> String {
        format!("the cluster {}", self.name)
    }

    fn say(&self, line: impl Into<String>) {
        (self.progress)(line.into());
    }

    fn check(&self, log: &Log) -> Result<(), MoveError> {
        if self.accept_damage { Ok(()) } else { log.check_intact() }
    }

    fn check_contents(&self, contents: &Contents) -> Result<(), MoveError> {
        match contents.unreadable {
            ranges @ 1.. if !self.accept_damage => {
                Err(MoveError::Damaged { ranges, bytes: 0, missing_segments: 0, unknown: 0 })
            }
            _ => Ok(()),
        }
    }
}

fn limits() -> IdLimits {
    let EngineOptions { history_ids, history_age, .. } = EngineOptions::default();
    IdLimits { count: history_ids, age: history_age }
}

fn mark(id: &str, state: MoveState, other: String) -> MoveMark {
    MoveMark { id: id.to_owned(), state, other }
}

fn new_move() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Runs what blocks on disks and logs.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce(&Handle) -> Result<T, MoveError> + Send + 'static,
) -> Result<T, MoveError> {
    let runtime = Handle::current();
    spawn_blocking(move || work(&runtime)).await.unwrap_or(Err(MoveError::Panicked))
}

fn totals(found: &[Found], ids: &[Settled], state: &MovedState, hosts: &Hosts, agents: usize) -> Totals {
    let counts = found.iter().fold((0, 0), |(messages, bytes), log| (messages + log.messages, bytes + log.bytes));
    let digest = digest::of_messages(found.iter().flat_map(|log| log.hashes.iter().copied()));
    totals_of(counts, digest, ids, state, hosts, agents)
}

fn totals_of(
    (messages, bytes): (u64, u64),
    digest: u128,
    ids: &[Settled],
    state: &MovedState,
    hosts: &Hosts,
    agents: usize,
) -> Totals {
    Totals {
        messages,
        bytes,
        ids: ids.len() as u64,
        claims: state.claims() as u64,
        fences: state.fences() as u64,
        generations: state.generations() as u64,
        agents: agents as u64,
        hosts: hosts.manifests.len() as u64,
        names: hosts.owners.names() as u64,
        checksum: digest.wrapping_add(digest::of_ids(ids)),
    }
}

/// Gives up a move: the source can be used again. What was copied stays at the target, where it can't be used. A finished move
/// is given up only with `force`.
pub async fn abandon(from: Option<&Path>, options: &MoveOptions, force: bool) -> Result<(), MoveError> {
    let check = |place: String, mark: Option<&MoveMark>| match mark {
        None => Err(MoveError::NoMove { place }),
        Some(mark) if mark.state == MoveState::Arriving => Err(MoveError::Marked { place, mark: mark.clone() }),
        Some(mark) if mark.state == MoveState::Left && !force => Err(MoveError::Finished { place, mark: mark.clone() }),
        Some(_) => Ok(()),
    };
    match from {
        Some(from) => {
            let mut folder = Folder::open(from)?.ok_or_else(|| MoveError::NoData { folder: from.to_owned() })?;
            check(folder.name(), folder.mark.as_ref())?;
            folder.copies()?;
            folder.set_mark(None)
        }
        None => {
            let marked = options.cluster.marked_identity().await?;
            let marked = marked.ok_or_else(|| MoveError::NoCluster { name: options.name.clone() })?;
            let name = options.cluster_name();
            let mut source = ClusterSide { cluster: options.cluster.clone(), name, marked };
            check(source.name.clone(), source.marked.mark.as_ref())?;
            source.set_mark(None).await
        }
    }
}

#[cfg(test)]
#[path = "moves_tests.rs"]
mod tests;
