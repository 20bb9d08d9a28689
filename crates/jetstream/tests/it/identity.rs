//! The identity of a cluster on real servers.

use crate::servers::{Servers, runtime};
use toolbus_cluster::Partitions;
use toolbus_jetstream::{ClusterError, IdentityError};

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
