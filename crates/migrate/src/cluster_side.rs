//! The cluster of a move. The mover owns all partitions like a broker, by leases and epochs, so that a broker that was started
//! before the cluster was marked is fenced.

use crate::error::MoveError;
use crate::sides::Copies;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use toolbus_cluster::{Follower, LeaseOptions, Partition, StreamDisk};
use toolbus_jetstream::{Cluster, ClusterIdentity, MarkedIdentity, Ownership, OwnershipEvent, OwnershipOptions};
use toolbus_store::Disk;
use toolbus_wal::MoveMark;

/// How long it may take to own all partitions: longer than the lease of a silent broker and a takeover.
const CLAIM: Duration = Duration::from_secs(120);
/// How long the release of the partitions is awaited.
const LEAVE: Duration = Duration::from_secs(5);

/// Begins the names of movers among the brokers. Two of them can't work at the same time: each holds the lock of the folder
/// that the mark of the cluster names.
const MOVER: &str = "migrate-";

/// A cluster that takes part in a move.
pub struct ClusterSide {
    pub cluster: Cluster,
    pub name: String,
    pub marked: MarkedIdentity,
}

impl ClusterSide {
    pub async fn set_mark(&mut self, mark: Option<MoveMark>) -> Result<(), MoveError> {
        self.marked.mark = mark;
        match self.cluster.swap_identity(&mut self.marked).await? {
            true => Ok(()),
            false => Err(MoveError::InUse(format!("another process changes {}", self.name))),
        }
    }

    pub fn identity(&self) -> &ClusterIdentity {
        &self.marked.identity
    }

    /// Fails if brokers of the cluster are running. An earlier mover of the same move is not: its folder is locked.
    pub async fn check_no_broker(&self) -> Result<(), MoveError> {
        match self.cluster.live_brokers(MOVER).await?.as_slice() {
            [] => Ok(()),
            live => Err(MoveError::InUse(format!("{} has running brokers: {}", self.name, live.join(", ")))),
        }
    }

    /// Becomes the owner of all partitions. `place` names the folder of this side, of which one process at a time holds the
    /// lock.
    pub async fn claim(&self, place: &str, copies: Arc<Copies>) -> Result<Claimed, MoveError> {
        // While this process lives, its address accepts connections, as that of a broker does.
        let port = TcpListener::bind("127.0.0.1:0");
        let port = port.map_err(|source| MoveError::Io { what: "open a port", source })?;
        let address = port.local_addr().map_err(|source| MoveError::Io { what: "open a port", source })?;
        let identity = self.identity();
        let options = OwnershipOptions {
            name: format!("{MOVER}{}", uuid::Uuid::new_v4()),
            address: address.to_string(),
            place: format!("{MOVER}{place}"),
            partitions: identity.partitions,
            lease: LeaseOptions::default(),
            key: identity.checksum_key(),
            mirror: Arc::new(move |partition| copies.create(partition)),
        };
        let mut ownership = Ownership::join(&self.cluster, options).await?;
        let (mut disks, mut others) = (BTreeMap::new(), BTreeMap::new());
        let deadline = Instant::now() + CLAIM;
        while disks.len() < usize::from(identity.partitions.count()) {
            let Ok(event) = timeout_at(deadline, ownership.next()).await else {
                let owners: Vec<String> = others.into_values().collect();
                return Err(MoveError::InUse(match owners.is_empty() {
                    true => format!("the partitions of {} can't be claimed", self.name),
                    false => format!("{} has a broker at {}", self.name, owners.join(", ")),
                }));
            };
            match event {
                Some(OwnershipEvent::Owned { partition, disk, .. }) => {
                    others.remove(&partition);
                    disks.insert(partition, disk);
                }
                Some(OwnershipEvent::Elsewhere { partition, address, .. }) => drop(others.insert(partition, address)),
                Some(OwnershipEvent::Lost(partition)) => drop(disks.remove(&partition)),
                Some(_) => {}
                None => return Err(MoveError::Lost),
            }
        }
        let (lost, stop) = (CancellationToken::new(), CancellationToken::new());
        let guarding = tokio::spawn(guard(ownership, lost.clone(), stop.clone(), port));
        Ok(Claimed { disks, lost, stop, guarding })
    }

    /// A partition as it is in its log, in a copy of its own. Blocks.
    pub fn read(&self, partition: Partition, copies: &Copies, runtime: &Handle) -> Result<Arc<dyn Disk>, MoveError> {
        let log = runtime.block_on(self.cluster.log(partition, runtime.clone()))?;
        let copy = copies.create(partition).map_err(|source| MoveError::Io { what: "copy a partition", source })?;
        Follower::new(Arc::clone(&copy), self.identity().checksum_key()).catch_up(&log)?;
        Ok(copy)
    }
}

/// All partitions of a cluster, owned by this process.
pub struct Claimed {
    pub disks: BTreeMap<Partition, StreamDisk>,
    lost: CancellationToken,
    stop: CancellationToken,
    guarding: JoinHandle<()>,
}

impl Claimed {
    /// The disk of a partition, once.
    pub fn disk(&mut self, partition: Partition) -> Result<Arc<dyn Disk>, MoveError> {
        Ok(Arc::new(self.disks.remove(&partition).ok_or(MoveError::Lost)?))
    }

    /// Fails if a broker has taken over a partition since.
    pub fn check(&self) -> Result<(), MoveError> {
        if self.lost.is_cancelled() { Err(MoveError::Lost) } else { Ok(()) }
    }

    /// Releases all partitions, so that brokers can take them over at once.
    pub async fn release(self) {
        drop(spawn_blocking(move || drop(self.disks)).await);
        self.stop.cancel();
        self.guarding.await.ok();
    }
}

/// Keeps the leases until `stop`.
async fn guard(mut ownership: Ownership, lost: CancellationToken, stop: CancellationToken, _port: TcpListener) {
    loop {
        let event = tokio::select! {
            event = ownership.next() => event,
            () = stop.cancelled() => break,
        };
        if matches!(event, None | Some(OwnershipEvent::Lost(_) | OwnershipEvent::Elsewhere { .. })) {
            lost.cancel();
        }
        if event.is_none() {
            return;
        }
    }
    ownership.leave(LEAVE).await;
}
