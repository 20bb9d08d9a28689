//! One process for the probe, the catalog and the first client; lists and handshakes without any.

use crate::catalog::all_up;
use crate::support::{Rig, Worker, event_of, fake, finish, next_event, open_host, parts, within};
use serde_json::{Value, json};
use std::path::Path;
use toolbus_client::AgentRef;
use toolbus_host::HostOptions;
use toolbus_mcp::{ClientHello, HostManifest, HostRequest, ServerState, raw};
use toolbus_upstream::{HostConfig, ServerConfig, TransportConfig};

/// A fake server that records its starts in a file of the folder.
fn recorded(name: &str, era: &str, folder: &Path) -> ServerConfig {
    let mut config = fake(name, era);
    if let TransportConfig::Stdio { env, .. } = &mut config.transport {
        env.insert("FAKE_STARTS".to_owned(), folder.join(name).display().to_string());
    }
    config
}

fn starts(folder: &Path, name: &str) -> usize {
    std::fs::read_to_string(folder.join(name)).map_or(0, |starts| starts.lines().count())
}

/// A legacy client without capabilities, in the version that the host speaks itself.
async fn plain(rig: &Rig, name: &str) -> Worker {
    let info = json!({"name": name, "version": "9"});
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info});
    rig.worker(AgentRef::new(name), ClientHello::legacy(raw(&hello))).await
}

async fn pid(worker: &Worker, server: &str) -> Value {
    worker.tool(server, "whoami", json!({})).await.json()["pid"].clone()
}

/// The starts of a server of that era after a call of each of the clients.
async fn starts_after_calls(era: &str, clients: &[&str]) -> usize {
    let folder = tempfile::tempdir().expect("a folder");
    let rig = Rig::start(vec![recorded("one", era, folder.path())]).await;
    for client in clients {
        let worker = if *client == "legacy" { plain(&rig, "a").await } else { rig.modern("b").await };
        rig.manifest(&worker, all_up).await;
        pid(&worker, "one").await;
    }
    starts(folder.path(), "one")
}

#[tokio::test]
async fn the_probe_the_catalog_and_the_first_client_use_one_process() {
    assert_eq!(starts_after_calls("legacy", &["legacy"]).await, 1);
    assert_eq!(starts_after_calls("modern", &["modern", "modern"]).await, 1);
    assert_eq!(starts_after_calls("both", &["modern"]).await, 1);
    // A process serves one era, so the legacy era of a modern server is tried in another.
    assert_eq!(starts_after_calls("both", &["modern", "legacy"]).await, 2);
    assert_eq!(starts_after_calls("modern", &["legacy", "legacy"]).await, 2);
}

#[tokio::test]
async fn handshakes_and_lists_start_no_process() {
    for era in ["legacy", "both"] {
        let folder = tempfile::tempdir().expect("a folder");
        let rig = Rig::start(vec![recorded("one", era, folder.path())]).await;
        let (legacy, modern) = (rig.legacy("a").await, rig.modern("b").await);
        rig.manifest(&legacy, all_up).await;
        let hello: Value = serde_json::from_str(legacy.hello.initialize.as_ref().expect("params").get()).expect("JSON");
        let greeting = legacy.rpc("one", "initialize", hello).await.result();
        assert_eq!(greeting["serverInfo"]["name"], "one");
        assert_eq!(greeting["protocolVersion"], "2025-06-18");
        legacy.notify("one", "notifications/initialized", json!({})).await;
        legacy.notify("one", "notifications/roots/list_changed", json!({})).await;
        assert_eq!(legacy.rpc("one", "logging/setLevel", json!({"level": "error"})).await.result(), json!({}));
        for worker in [&legacy, &modern] {
            let count = async |method, items| {
                let list = worker.rpc("one", method, json!({})).await.result();
                list[items].as_array().map_or(0, Vec::len)
            };
            assert!(count("tools/list", "tools").await > 5);
            assert_eq!(count("resources/list", "resources").await, 1);
            assert_eq!(count("prompts/list", "prompts").await, 1);
        }
        let wanted = json!({"toolsListChanged": true});
        let mut listen = modern.start("one", "subscriptions/listen", json!({"notifications": wanted})).await;
        assert_eq!(parts(&next_event(&mut listen).await).1["notifications"], wanted);
        assert_eq!(starts(folder.path(), "one"), 1, "{era}");
        // The client has capabilities, so its first call starts a process of its own.
        assert_eq!(legacy.tool("one", "whoami", json!({})).await.json()["hello"]["clientInfo"]["name"], "a");
        assert_eq!(starts(folder.path(), "one"), 2, "{era}");
    }
}

#[tokio::test]
async fn a_list_does_not_wait_for_calls_of_the_same_session() {
    let mut server = fake("one", "legacy");
    server.max_concurrency = 1;
    let rig = Rig::start(vec![server]).await;
    let worker = rig.legacy("w").await;
    rig.manifest(&worker, all_up).await;
    let params = json!({"name": "slow", "arguments": {}, "_meta": {"progressToken": 1}});
    let mut slow = worker.start("one", "tools/call", params).await;
    next_event(&mut slow).await;
    assert_eq!(worker.rpc("one", "tools/list", json!({})).await.result()["tools"].as_array().map(Vec::len), Some(14));
    worker.cancel("one", &slow.id()).await;
}

#[tokio::test]
async fn a_process_that_was_taken_over_serves_one_client_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let rig = Rig::start(vec![recorded("one", "legacy", folder.path())]).await;
    let (a, b) = (plain(&rig, "a").await, plain(&rig, "b").await);
    rig.manifest(&a, all_up).await;
    let (first, other) = (pid(&a, "one").await, pid(&b, "one").await);
    assert_ne!(first, other);
    assert_eq!(pid(&a, "one").await, first);
    // What the client changes in its process is not announced to others, and the client sees it.
    a.tool("one", "change", json!({"name": "brand_new"})).await.result();
    let listed = async |worker: &Worker| {
        let list = worker.rpc("one", "tools/list", json!({})).await.result();
        list["nextCursor"].as_str().map(ToOwned::to_owned)
    };
    assert_eq!(listed(&a).await.as_deref(), Some("6"), "its own process answers page by page");
    assert_eq!(listed(&b).await, None, "the catalog answers at once");
    within("a new process for the catalog", async {
        while starts(folder.path(), "one") < 3 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    a.send(HostRequest::Close { session: a.session.clone() }).await;
    let manifest = rig.manifest(&b, all_up).await;
    assert_eq!(manifest.servers[0].tools.len(), 14);
}

#[tokio::test]
async fn a_client_whose_process_lists_other_tools_is_notified_and_sees_them() {
    let mut server = fake("one", "legacy");
    if let TransportConfig::Stdio { env, .. } = &mut server.transport {
        env.insert("FAKE_ELICITING_TOOL".to_owned(), "asks".to_owned());
    }
    let rig = Rig::start(vec![server]).await;
    let worker = rig.legacy("w").await;
    let manifest = rig.manifest(&worker, all_up).await;
    assert_eq!(manifest.servers[0].tools.len(), 14);
    worker.tool("one", "add", json!({"a": 1, "b": 2})).await.text();
    let event = within("an event", worker.bus.client().next_event()).await.expect("an open client");
    assert_eq!(parts(&event_of(&event.body)).0, "notifications/tools/list_changed");
    let has_asks = |page: &Value| page["tools"].as_array().expect("a list").iter().any(|tool| tool["name"] == "asks");
    assert!(has_asks(&worker.rpc("one", "tools/list", json!({"cursor": "12"})).await.result()));
    // From then on, a list starts the process of a client with capabilities, without waiting for it.
    let other = rig.legacy("v").await;
    let first = other.rpc("one", "tools/list", json!({})).await.result();
    assert_eq!(first["tools"].as_array().map(Vec::len), Some(14));
    let event = within("an event", other.bus.client().next_event()).await.expect("an open client");
    assert_eq!(parts(&event_of(&event.body)).0, "notifications/tools/list_changed");
    assert!(has_asks(&other.rpc("one", "tools/list", json!({"cursor": "12"})).await.result()));
}

#[tokio::test]
async fn a_restarted_host_lists_a_server_that_is_still_starting_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let gate = folder.path().join("gate");
    std::fs::write(&gate, "open").expect("the folder is writable");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fake_server.py");
    let wait = "while ! test -e \"$1\"; do sleep 0.02; done; exec python3 \"$0\" legacy slow";
    let slow = ServerConfig::stdio("slow", "sh", &["-c", wait, script, &gate.display().to_string()]);
    let file = folder.path().join("catalog.json");
    let options = open_host(HostConfig { servers: vec![slow] });
    let mut rig = Rig::with(HostOptions { catalog_file: Some(file), ..options }).await;
    let worker = rig.legacy("w").await;
    rig.manifest(&worker, all_up).await;
    std::fs::remove_file(&gate).expect("the gate is there");
    rig.restart_host().await;
    let is_starting = |manifest: &HostManifest| manifest.servers[0].state == ServerState::Starting;
    let manifest = rig.manifest(&worker, is_starting).await;
    assert_eq!((manifest.servers[0].tools.len(), manifest.servers[0].initialize.is_some()), (14, true));
    let call = worker.start("slow", "tools/call", json!({"name": "add", "arguments": {"a": 1, "b": 2}})).await;
    std::fs::write(&gate, "open").expect("the folder is writable");
    assert_eq!(finish(call).await.text(), "3");
}
