//! The records of owners on real servers.

use crate::servers::{Servers, runtime};
use std::time::Duration;
use toolbus_cluster::{LeaseEvent, LeaseRecord, Partition};
use toolbus_jetstream::{BucketChange, LeaseChange};

#[test]
fn only_one_of_two_writers_gets_a_lease() {
    let Some(servers) = Servers::start() else { return };
    runtime().block_on(async {
        let leases = servers.connect("leases").await.leases().await.unwrap();
        let record = |owner: &str, epoch| LeaseRecord { owner: Some(owner.into()), epoch };
        let partition = Partition(3);
        let mut watch = leases.watch().await.unwrap();
        let LeaseEvent::Seen { revision: 0, .. } = leases.get(partition).await.unwrap() else { panic!("not free") };
        assert!(leases.write(partition, 0, &record("a", 1)).await.unwrap());
        assert!(!leases.write(partition, 0, &record("b", 1)).await.unwrap());
        let seen = leases.get(partition).await.unwrap();
        let LeaseEvent::Seen { revision, record: found } = seen.clone() else { panic!("no record") };
        assert_eq!(found, record("a", 1));
        assert!(leases.write(partition, revision, &record("b", 2)).await.unwrap());
        assert!(!leases.write(partition, revision, &record("a", 1)).await.unwrap());
        for expected in [record("a", 1), record("b", 2)] {
            let change = tokio::time::timeout(Duration::from_secs(10), watch.next()).await.unwrap().unwrap();
            let BucketChange::Lease(LeaseChange { partition, event: LeaseEvent::Seen { record, .. } }) = change else {
                panic!("{change:?}")
            };
            assert_eq!((partition, record), (Partition(3), expected));
        }
    });
}
