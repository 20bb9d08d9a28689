//! The directory of hosts of several brokers on real servers.

use crate::servers::{Servers, runtime};
use bytestring::ByteString;
use hashbrown::HashMap;
use std::time::{Duration, Instant};
use toolbus_broker::{HostDirectory, StoredDirectory};
use toolbus_cluster::Partitions;
use toolbus_engine::ConnId;
use toolbus_jetstream::{Cluster, SharedHosts};
use toolbus_protocol::{Body, HostEntry, RoleManifest};

const LIMIT: Duration = Duration::from_secs(60);

/// A manifest with one tool and a description of that size.
fn manifest(tool: &str, size: usize) -> Vec<RoleManifest> {
    let text = format!(
        r#"{{"servers":[{{"name":"s","state":"up","tools":[{{"name":"{tool}","description":"{}","inputSchema":{{"type":"object"}}}}]}}]}}"#,
        "x".repeat(size)
    );
    vec![RoleManifest { role: None, manifest: Body::parse(text).expect("valid JSON") }]
}

fn entries(directory: &StoredDirectory) -> Vec<HostEntry> {
    directory.hosts(None, &HashMap::<ByteString, u64>::new())
}

fn manifest_of(directory: &StoredDirectory, host: &str) -> Option<String> {
    let entry = entries(directory).into_iter().find(|entry| entry.id == host)?;
    Some(String::from_utf8_lossy(entry.manifest?.as_bytes()).into_owned())
}

async fn until(what: &str, mut is_reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_reached() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn broker(cluster: &Cluster, name: &str) -> SharedHosts {
    let identity = cluster.identity(Partitions::DEFAULT).await.unwrap();
    cluster.hosts(&identity, name).await.unwrap()
}

#[test]
fn brokers_share_manifests_owners_and_presence() {
    let Some(mut servers) = Servers::start() else { return };
    runtime().block_on(async {
        let cluster = servers.connect("hosts").await;
        let (a, b) = (broker(&cluster, "a").await, broker(&cluster, "b").await);

        let held = a.directory.announce("left", ConnId(1), manifest("echo", 10)).await.unwrap();
        assert!(held.is_empty());
        until("b knows the host and that it is online", || {
            entries(&b.directory).iter().any(|entry| entry.id == "left" && entry.online)
        })
        .await;

        // Both brokers decide about the same name.
        let held = b.directory.announce("right", ConnId(1), manifest("echo", 10)).await.unwrap();
        assert_eq!(held.len(), 1, "the first host keeps the name: {held:?}");
        until("a hides the name", || {
            manifest_of(&a.directory, "right").is_some_and(|text| !text.contains(r#""name":"echo""#))
        })
        .await;

        // Larger than a message of NATS, while a server is killed.
        for (victim, tool) in ["one", "two"].into_iter().enumerate() {
            servers.kill(victim);
            a.directory.announce("left", ConnId(1), manifest(tool, 3 << 20)).await.unwrap();
            until("b has the new manifest", || {
                manifest_of(&b.directory, "left").is_some_and(|text| text.contains(tool) && text.len() > 3 << 20)
            })
            .await;
            servers.restart(victim);
            servers.wait_until_healthy(victim);
        }

        let c = broker(&cluster, "c").await;
        assert!(
            manifest_of(&c.directory, "left").is_some_and(|text| text.contains("two")),
            "a broker that joins later"
        );
        a.directory.left("left", ConnId(1));
        until("the host is offline everywhere", || {
            [&b, &c]
                .iter()
                .all(|hosts| entries(&hosts.directory).iter().all(|entry| entry.id != "left" || !entry.online))
        })
        .await;

        b.directory.announce("right", ConnId(1), Vec::new()).await.unwrap();
        until("the host has withdrawn", || entries(&a.directory).iter().all(|entry| entry.id != "right")).await;
    });
}
