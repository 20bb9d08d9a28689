//! The host directory over the wire and across restarts: persistence, damaged files, and visibility by role.

use crate::support::{Bus, HOUR, Logs, Peer, Setup, hello, hello_v2, within};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use toolbus_broker::ServerOptions;

async fn announce(peer: &mut Peer, manifests: Value) -> Value {
    peer.send(json!({"kind": "announce", "request_id": "a", "manifests": manifests})).await;
    peer.next_of("announced").await
}

async fn hosts(peer: &mut Peer) -> Vec<Value> {
    peer.send(json!({"kind": "hosts", "request_id": "h", "watch": false, "known": {}})).await;
    peer.next_of("hosts").await["hosts"].as_array().expect("a list").clone()
}

fn files(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("hosts")).expect("the hosts folder exists");
    let paths = entries.map(|entry| entry.expect("readable").path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == suffix)).collect()
}

#[tokio::test]
async fn an_offline_host_is_listed_after_a_restart() {
    let bus = Bus::start().await;
    let mut host = bus.peer_v2("host").await;
    let announced = announce(&mut host, json!([{"manifest": {"tools": [1]}}, {"role": "tester", "manifest": 2}])).await;
    assert_eq!(announced, json!({"kind": "announced", "request_id": "a"}));
    let mut asking = bus.peer_v2("asking").await;
    let before = hosts(&mut asking).await;
    assert_eq!(
        (&before[0]["id"], &before[0]["online"], &before[0]["manifest"]),
        (&json!("host"), &json!(true), &json!(2))
    );
    let bus = Bus::reopen(bus.stop().await, Setup::default()).await;
    let mut asking = bus.peer_v2("asking").await;
    let after = hosts(&mut asking).await;
    assert_eq!(
        (&after[0]["id"], &after[0]["online"], &after[0]["manifest"]),
        (&json!("host"), &json!(false), &json!(2))
    );
    assert_eq!(after[0]["version"], before[0]["version"], "the same manifest has the same version");
    let mut host = bus.peer_v2("host").await;
    announce(&mut host, json!([])).await;
    assert!(hosts(&mut asking).await.is_empty());
    let bus = Bus::reopen(bus.stop().await, Setup::default()).await;
    assert!(hosts(&mut bus.peer_v2("asking").await).await.is_empty(), "withdrawn for good");
}

#[tokio::test]
async fn manifests_are_chosen_by_the_authenticated_role() {
    let bus = Bus::start().await;
    let mut host = bus.peer_v2("host").await;
    announce(&mut host, json!([{"role": "boss", "manifest": 1}])).await;
    let mut asking = bus.peer_v2("asking").await;
    asking
        .send(json!({"kind": "hosts", "request_id": "h", "role": "boss", "agent": {"session_id": "x", "role": "boss"}}))
        .await;
    assert_eq!(asking.next_of("hosts").await["hosts"], json!([]));
}

#[tokio::test]
async fn host_frames_of_version_1_peers_are_ignored() {
    let bus = Bus::start().await;
    let mut old = Peer::join(bus.address, hello("old")).await;
    old.send(json!({"kind": "announce", "request_id": "a", "manifests": [{"manifest": 1}]})).await;
    old.send(json!({"kind": "hosts", "request_id": "h", "watch": true})).await;
    old.roundtrip().await;
    assert!(hosts(&mut bus.peer_v2("asking").await).await.is_empty());
}

#[tokio::test]
async fn a_damaged_file_loses_one_host_only() {
    let bus = Bus::start().await;
    for name in ["one", "two", "three"] {
        announce(&mut bus.peer_v2(name).await, json!([{"manifest": name}])).await;
    }
    let folder = bus.stop().await;
    let paths = files(folder.path(), "manifests");
    assert_eq!(paths.len(), 3);
    let mut bytes = fs::read(&paths[0]).expect("readable");
    let last = bytes.len() - 5;
    bytes[last] ^= 1;
    fs::write(&paths[0], bytes).expect("writable");
    // A valid file under the name of another host is damaged as well.
    fs::copy(&paths[1], paths[1].with_file_name("00000000000000000000000000000000.manifests")).expect("writable");
    let logs = Logs::start();
    let bus = Bus::reopen(folder, Setup::default()).await;
    assert_eq!(logs.warnings().len(), 2, "{:?}", logs.warnings());
    assert_eq!(hosts(&mut bus.peer_v2("asking").await).await.len(), 2);
    assert_eq!(files(bus.folder(), "damaged").len(), 2);
}

#[tokio::test]
async fn a_host_offline_for_a_month_is_removed() {
    let bus = Bus::start().await;
    for name in ["old", "young"] {
        announce(&mut bus.peer_v2(name).await, json!([{"manifest": name}])).await;
    }
    let folder = bus.stop().await;
    for path in files(folder.path(), "manifests") {
        let old = fs::read_to_string(&path).expect("text").contains("old");
        let days = if old { 31 } else { 29 };
        let seen = SystemTime::now() - Duration::from_secs(days * 24 * 3600);
        fs::OpenOptions::new().append(true).open(path).expect("open").set_modified(seen).expect("a time");
    }
    let bus = Bus::reopen(folder, Setup::default()).await;
    let left = hosts(&mut bus.peer_v2("asking").await).await;
    assert_eq!(left.iter().map(|host| &host["id"]).collect::<Vec<_>>(), ["young"]);
    assert!(left[0]["since_ms"].as_u64().expect("a number") > 28 * 24 * 3_600_000);
    assert_eq!(files(bus.folder(), "manifests").len(), 1);
}

#[tokio::test]
async fn the_number_of_hosts_is_limited() {
    let bus = Bus::start().await;
    for number in 0..1024 {
        let mut host = Peer::join(bus.address, hello_v2(&format!("host-{number}"))).await;
        let announced = announce(&mut host, json!([{"manifest": number}])).await;
        assert_eq!(announced.get("code"), None, "{announced}");
    }
    let refused = announce(&mut bus.peer_v2("one-too-many").await, json!([{"manifest": 1}])).await;
    assert_eq!(refused["code"], "TB0213");
    let again = announce(&mut bus.peer_v2("host-7").await, json!([{"manifest": 2}])).await;
    assert_eq!(again.get("code"), None, "a known host may change its manifests");
}

#[tokio::test]
async fn change_notifications_are_coalesced_and_the_last_change_is_notified() {
    let bus = Bus::start().await;
    let mut watching = bus.peer_v2("watching").await;
    watching.send(json!({"kind": "hosts", "request_id": "h", "watch": true})).await;
    watching.next_of("hosts").await;
    let mut host = bus.peer_v2("host").await;
    for number in 0..100 {
        announce(&mut host, json!([{"manifest": number}])).await;
    }
    let mut notifications = 0;
    within("the last change", async {
        loop {
            watching.next_of("hosts_changed").await;
            notifications += 1;
            if hosts(&mut watching).await[0]["manifest"] == 99 {
                break;
            }
        }
    })
    .await;
    assert!(notifications < 60, "{notifications} notifications");
}

/// Without a heartbeat, only the announcement itself can wake the connection.
#[tokio::test]
async fn an_idle_peer_learns_of_a_change_at_once() {
    let server = ServerOptions { heartbeat: HOUR, ..ServerOptions::default() };
    let bus = Bus::with(Setup { server, ..Setup::default() }).await;
    let mut watching = bus.peer_v2("watching").await;
    watching.send(json!({"kind": "hosts", "request_id": "h", "watch": true})).await;
    watching.next_of("hosts").await;
    let mut host = bus.peer_v2("host").await;
    for manifest in 0..3 {
        announce(&mut host, json!([{"manifest": manifest}])).await;
        watching.next_of("hosts_changed").await;
    }
}
