//! The identity of a cluster on real servers.

use crate::servers::{Servers, runtime};
use toolbus_cluster::Partitions;
use toolbus_jetstream::{ClusterError, ClusterIdentity, IdentityError, MarkedIdentity};
use toolbus_wal::{MoveMark, MoveState};

#[test]
fn all_brokers_get_the_identity_that_one_of_them_created() {
    let Some(mut servers) = Servers::start() else { return };
    runtime().block_on(async {
        let cluster = servers.connect("identity").await;
        let brokers: Vec<_> = (0..8)
            .map(|_| {
                let cluster = cluster.clone();
                tokio::spawn(async move { cluster.identity(Partitions::DEFAULT).await.unwrap() })
            })
            .collect();
        let mut identities = Vec::new();
        for broker in brokers {
            identities.push(broker.await.unwrap());
        }
        assert!(identities.iter().all(|identity| *identity == identities[0]), "{identities:?}");

        let wanted = Partitions::new(32).unwrap();
        let Err(ClusterError::Identity(error)) = cluster.identity(wanted).await else { panic!("accepted") };
        assert_eq!(error, IdentityError::Partitions { found: 16, wanted: 32 });

        // An election, with every server killed once.
        for victim in 0..3 {
            servers.kill(victim);
            assert_eq!(cluster.identity(Partitions::DEFAULT).await.unwrap(), identities[0]);
            servers.restart(victim);
            servers.wait_until_healthy(victim);
        }
        let other = servers.connect("identity2").await;
        assert_ne!(other.identity(wanted).await.unwrap().link_secret, identities[0].link_secret);
    });
}

/// The identity of a cluster of the next version is read by this one. Its checksum is the one that all versions use.
#[test]
fn a_cluster_of_another_format_is_refused_and_left_alone() {
    let Some(servers) = Servers::start() else { return };
    runtime().block_on(async {
        let cluster = servers.connect("format").await;
        let text = r#"{"format":2,"something":"new"}"#;
        let newer = format!("{:016x}\n{text}\n", xxhash_rust::xxh3::xxh3_64(text.as_bytes()));
        let bucket = servers.bucket("format").await;
        bucket.put("identity", newer.clone().into()).await.unwrap();
        let Err(ClusterError::Identity(error)) = cluster.identity(Partitions::DEFAULT).await else {
            panic!("accepted")
        };
        assert_eq!(error, IdentityError::Format { found: 2 });
        let Err(ClusterError::Identity(error)) = cluster.marked_identity().await else { panic!("accepted") };
        assert_eq!(error, IdentityError::Format { found: 2 });
        assert_eq!(bucket.get("identity").await.unwrap().unwrap(), newer);
    });
}

#[test]
fn a_cluster_that_takes_part_in_a_move_is_refused_and_its_mark_is_swapped_by_one_process() {
    let Some(servers) = Servers::start() else { return };
    runtime().block_on(async {
        let cluster = servers.connect("marked").await;
        assert!(cluster.marked_identity().await.unwrap().is_none());
        assert!(cluster.is_empty(Partitions::DEFAULT).await.unwrap());
        let identity = ClusterIdentity::with("id".into(), 7, Partitions::DEFAULT).unwrap();
        let mark = MoveMark { id: "m".into(), state: MoveState::Arriving, other: "the folder /data".into() };
        let mut marked = MarkedIdentity { identity: identity.clone(), mark: Some(mark.clone()), revision: 0 };
        let mut rival = marked.clone();
        assert!(cluster.swap_identity(&mut marked).await.unwrap());
        rival.mark = None;
        assert!(!cluster.swap_identity(&mut rival).await.unwrap(), "it was changed since");
        let Err(ClusterError::Identity(error)) = cluster.identity(Partitions::DEFAULT).await else {
            panic!("accepted")
        };
        assert_eq!(error, IdentityError::Moved(mark));
        assert!(!cluster.is_empty(Partitions::DEFAULT).await.unwrap());
        marked.mark = None;
        assert!(cluster.swap_identity(&mut marked).await.unwrap());
        assert_eq!(cluster.identity(Partitions::DEFAULT).await.unwrap(), identity);
    });
}
