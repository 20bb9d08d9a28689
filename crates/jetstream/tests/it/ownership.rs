//! Brokers that share the partitions of a cluster on real servers.

use crate::servers::{Servers, runtime};
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};
use toolbus_cluster::{LeaseOptions, Partition, Partitions};
use toolbus_jetstream::{Cluster, Ownership, OwnershipEvent, OwnershipOptions};
use toolbus_wal::{ChecksumKey, Disk, MemoryDisk};

const PARTITIONS: u16 = 4;
const LIMIT: Duration = Duration::from_secs(60);

/// A broker and the partitions that it owns, with their epochs.
struct Broker {
    ownership: Ownership,
    owned: BTreeMap<Partition, u64>,
    /// Its port is open while the broker lives.
    _port: TcpListener,
}

impl Broker {
    async fn join(cluster: &Cluster, name: &str) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = OwnershipOptions {
            name: name.to_owned(),
            place: name.to_owned(),
            address: port.local_addr().unwrap().to_string(),
            partitions: Partitions::new(PARTITIONS).unwrap(),
            // No takeover of this test may depend on the silence of a lease.
            lease: LeaseOptions { silence: 600_000, renewal: 500, ..LeaseOptions::default() },
            key: ChecksumKey(3),
            mirror: Arc::new(|_| Ok(Arc::new(MemoryDisk::default()) as Arc<dyn Disk>)),
        };
        let ownership = Ownership::join(cluster, options).await.unwrap();
        Self { ownership, owned: BTreeMap::new(), _port: port }
    }

    /// Handles the events of a moment.
    async fn step(&mut self) {
        while let Ok(Some(event)) = tokio::time::timeout(Duration::from_millis(20), self.ownership.next()).await {
            match event {
                OwnershipEvent::Owned { partition, epoch, .. } => drop(self.owned.insert(partition, epoch)),
                OwnershipEvent::Lost(partition) => drop(self.owned.remove(&partition)),
                OwnershipEvent::Elsewhere { partition, .. } => assert!(!self.owned.contains_key(&partition)),
                OwnershipEvent::Unowned(_) | OwnershipEvent::Suspended(_) | OwnershipEvent::Resumed(_) => {}
            }
        }
    }
}

async fn until(what: &str, brokers: &mut [&mut Broker], is_reached: impl Fn(&[BTreeSet<Partition>]) -> bool) {
    let deadline = Instant::now() + LIMIT;
    loop {
        for broker in brokers.iter_mut() {
            broker.step().await;
        }
        let owned: Vec<BTreeSet<Partition>> =
            brokers.iter().map(|broker| broker.owned.keys().copied().collect()).collect();
        if is_reached(&owned) {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {owned:?}");
    }
}

fn all() -> BTreeSet<Partition> {
    Partitions::new(PARTITIONS).unwrap().all().collect()
}

/// Every partition has one owner.
fn is_complete(owned: &[BTreeSet<Partition>]) -> bool {
    owned.iter().map(BTreeSet::len).sum::<usize>() == usize::from(PARTITIONS)
        && owned.iter().flatten().copied().collect::<BTreeSet<_>>() == all()
}

#[test]
fn brokers_share_partitions_and_take_over_from_each_other() {
    let Some(servers) = Servers::start() else { return };
    runtime().block_on(async {
        let cluster = servers.connect("ownership").await;
        let mut first = Broker::join(&cluster, "first").await;
        until("the first broker takes all", &mut [&mut first], |owned| owned[0] == all()).await;
        let mut second = Broker::join(&cluster, "second").await;
        let is_shared = |owned: &[BTreeSet<Partition>]| is_complete(owned) && !owned[1].is_empty();
        until("the second broker gets some", &mut [&mut first, &mut second], is_shared).await;
        assert!(!first.owned.is_empty(), "the names are chosen so that both own some");

        // Released partitions are taken over at once.
        let epochs = second.owned.clone();
        second.ownership.leave(Duration::from_secs(5)).await;
        until("the first broker takes all again", &mut [&mut first], |owned| owned[0] == all()).await;
        assert!(epochs.iter().all(|(partition, epoch)| first.owned[partition] > *epoch), "epochs grow");

        // A broker that was killed refuses connections, and is replaced before its leases are silent for too long.
        let mut third = Broker::join(&cluster, "third").await;
        until("the third broker gets some", &mut [&mut first, &mut third], is_shared).await;
        drop(first);
        until("the third broker takes all", &mut [&mut third], |owned| owned[0] == all()).await;
    });
}
