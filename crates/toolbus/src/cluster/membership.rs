//! Follows which broker owns which partition: serves those of this broker, and opens links to the owners of the others.

use super::mirrors::Mirrors;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::{CancellationToken, DropGuard};
use toolbus_base::Backoff;
use toolbus_broker::{ClusterMailboxes, LinkError, Links};
use toolbus_cluster::{Partition, StreamDisk};
use toolbus_jetstream::{Ownership, OwnershipEvent};

/// Waits between attempts to open a partition at its owner, which may still take it over.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// How often connections are looked for whose commands wait for too long.
const TICK: Duration = Duration::from_secs(1);
/// How long a leaving broker waits until the release of its partitions is written.
const LEAVING: Duration = Duration::from_secs(2);
/// Failed partitions that wait to be reported: at most one per partition.
const MAX_FAILED: usize = 256;

/// A broker's membership in a cluster.
pub struct Membership {
    pub mailboxes: Arc<ClusterMailboxes>,
    pub links: Arc<Links>,
    pub mirrors: Arc<Mirrors>,
}

/// The partitions whose stores failed, with their epochs.
type Failed = mpsc::Sender<(Partition, u64)>;

impl Membership {
    /// Carries out the events until `stop`, then releases all partitions, so that other brokers take them over at once. What
    /// blocks on a log runs beside: a log that does not answer must not delay the events of other partitions.
    pub async fn run(self, mut ownership: Ownership, stop: CancellationToken) {
        let (failed, mut failures) = mpsc::channel(MAX_FAILED);
        // Dropping the guard of a partition ends its attempts to reach the owner.
        let mut remote: HashMap<Partition, DropGuard> = HashMap::new();
        let mut closing = JoinSet::new();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.mailboxes.end_waiting(),
                () = stop.cancelled() => break,
                Some((partition, epoch)) = failures.recv() => {
                    self.close(partition, Some(epoch), &mut closing);
                    ownership.closed(partition, epoch).await;
                }
                event = ownership.next() => match event {
                    Some(event) => self.handle(event, &mut remote, &failed, &mut closing),
                    None => break,
                },
                Some(_) = closing.join_next() => {}
            }
        }
        // Accepted messages become durable before the next owners begin.
        for partition in self.mailboxes.owned() {
            self.close(partition, None, &mut closing);
        }
        closing.join_all().await;
        ownership.leave(LEAVING).await;
        self.mirrors.remove_all();
    }

    fn handle(
        &self,
        event: OwnershipEvent,
        remote: &mut HashMap<Partition, DropGuard>,
        failed: &Failed,
        closing: &mut JoinSet<()>,
    ) {
        match event {
            OwnershipEvent::Owned { partition, epoch, disk } => {
                remote.remove(&partition);
                self.mailboxes.own(partition, epoch);
                tokio::spawn(open(Arc::clone(&self.mailboxes), partition, epoch, disk, failed.clone()));
            }
            OwnershipEvent::Elsewhere { partition, epoch, owner, address } => {
                let token = CancellationToken::new();
                remote.insert(partition, token.clone().drop_guard());
                let (mailboxes, links) = (Arc::clone(&self.mailboxes), Arc::clone(&self.links));
                let at = Owner { name: owner, address, epoch };
                tokio::spawn(async move {
                    let following = follow_owner(&mailboxes, &links, partition, &at);
                    token.run_until_cancelled(following).await;
                });
            }
            OwnershipEvent::Unowned(partition) => {
                if remote.remove(&partition).is_some() {
                    self.mailboxes.set_remote(partition, None);
                }
            }
            OwnershipEvent::Suspended(partition) => {
                tracing::warn!(partition = partition.0, "NATS does not confirm: the partition is not served for now");
                self.mailboxes.suspend(partition);
            }
            OwnershipEvent::Resumed(partition) => self.mailboxes.resume(partition),
            OwnershipEvent::Lost(partition) => self.close(partition, None, closing),
        }
    }

    /// Stops serving a partition at once, also to other brokers, and ends its core beside.
    fn close(&self, partition: Partition, epoch: Option<u64>, closing: &mut JoinSet<()>) {
        let Some(core) = self.mailboxes.withdraw(partition, epoch) else { return };
        let mirrors = Arc::clone(&self.mirrors);
        closing.spawn_blocking(move || {
            core.close();
            mirrors.remove(partition);
        });
    }
}

/// Serves a partition of this broker, and reports when its store fails.
async fn open(mailboxes: Arc<ClusterMailboxes>, partition: Partition, epoch: u64, disk: StreamDisk, failed: Failed) {
    let opened = spawn_blocking(move || mailboxes.open(partition, epoch, Arc::new(disk))).await;
    let core = match opened {
        Ok(Ok(Some(core))) => core,
        Ok(Err(error)) => {
            tracing::error!(partition = partition.0, %error, "a partition can't be opened");
            failed.send((partition, epoch)).await.ok();
            return;
        }
        Ok(Ok(None)) | Err(_) => return,
    };
    tracing::info!(partition = partition.0, epoch, "serving a partition");
    // The core ends by itself when the partition is closed.
    let failure = core.failure();
    drop(core);
    if let Some(error) = failure.await {
        tracing::warn!(partition = partition.0, %error, "the store of a partition failed");
        failed.send((partition, epoch)).await.ok();
    }
}

/// The broker that owns a partition.
struct Owner {
    name: String,
    address: String,
    epoch: u64,
}

/// Keeps a link to the owner of a partition. Runs until it is cancelled.
async fn follow_owner(mailboxes: &ClusterMailboxes, links: &Arc<Links>, partition: Partition, owner: &Owner) {
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    loop {
        match links.open(&owner.name, &owner.address, partition, owner.epoch).await {
            Ok(link) => {
                backoff.reset();
                mailboxes.set_remote(partition, Some(link.mailboxes));
                link.closed.cancelled().await;
                mailboxes.set_remote(partition, None);
            }
            // The owner is about to take the partition over, or has lost it.
            Err(LinkError::NotOwner { .. }) => {}
            Err(error) => {
                tracing::debug!(partition = partition.0, owner = owner.name, %error, "no link to the owner");
            }
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}
