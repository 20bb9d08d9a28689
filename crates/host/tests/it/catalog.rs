//! The merged catalog of all servers, as the host manifest announces it.

use crate::support::{Rig, fake};
use serde_json::json;
use toolbus_mcp::{HostManifest, Members, ServerManifest, ServerState};
use toolbus_upstream::ServerConfig;

fn tools(server: &ServerManifest) -> Vec<String> {
    let name = |tool: &toolbus_mcp::Raw| Members::of(Some(tool)).expect("an object").text("name").expect("a name");
    server.tools.iter().map(name).collect()
}

/// Whether all servers of a host are up.
pub fn all_up(manifest: &HostManifest) -> bool {
    manifest.servers.iter().all(|server| server.state == ServerState::Up)
}

#[tokio::test]
async fn all_pages_of_a_list_are_read_in_both_eras() {
    let rig = Rig::start(vec![fake("old", "legacy"), fake("new", "modern")]).await;
    let worker = rig.legacy("w").await;
    let manifest = rig.manifest(&worker, all_up).await;
    assert_eq!(tools(&manifest.servers[0]).len(), 14);
    assert_eq!(manifest.servers[0].resources.len(), 1);
    assert_eq!(manifest.servers[0].prompts.len(), 1);
    assert!(manifest.servers[0].initialize.is_some() && manifest.servers[0].discover.is_none());
    assert!(manifest.servers[1].discover.is_some() && manifest.servers[1].initialize.is_none());
}

#[tokio::test]
async fn the_first_server_keeps_a_duplicate_name_and_a_prefix_resolves_it() {
    let mut third = fake("three", "legacy");
    third.prefix = Some("t_".to_owned());
    let rig = Rig::start(vec![fake("one", "legacy"), fake("two", "legacy"), third]).await;
    let worker = rig.legacy("w").await;
    let manifest = rig.manifest(&worker, all_up).await;
    assert_eq!(tools(&manifest.servers[0]).len(), 14);
    assert!(tools(&manifest.servers[1]).is_empty());
    assert_eq!(tools(&manifest.servers[2])[0], "t_echo");
    assert!(
        manifest.problems[0].contains("\"one\"") && manifest.problems[0].contains("\"two\""),
        "{:?}",
        manifest.problems
    );

    let error = worker.tool("two", "echo", json!({})).await.error();
    assert_eq!(error["data"]["code"], "TB0410");
    assert!(error["message"].as_str().expect("a message").contains("prefix"));
    assert_eq!(worker.tool("three", "t_add", json!({"a": 1, "b": 2})).await.text(), "3");
    let listed = worker.rpc("three", "tools/list", json!({})).await.result();
    assert_eq!(listed["tools"][0]["name"], "t_echo");
    assert_eq!(worker.tool("three", "add", json!({"a": 1, "b": 2})).await.error()["data"]["code"], "TB0404");
}

#[tokio::test]
async fn a_failed_server_is_reported_down_with_its_stderr_and_others_run() {
    let script = "import sys; print('no such screen', file=sys.stderr); sys.exit(4)";
    let broken = ServerConfig::stdio("broken", "python3", &["-c", script]);
    let missing = ServerConfig::stdio("missing", "/nowhere/at/all", &[]);
    let rig = Rig::start(vec![broken, missing, fake("good", "legacy")]).await;
    let worker = rig.legacy("w").await;
    let settled = |manifest: &HostManifest| manifest.servers.iter().all(|server| server.state != ServerState::Starting);
    let manifest = rig.manifest(&worker, settled).await;
    let states: Vec<_> = manifest.servers.iter().map(|server| server.state).collect();
    assert_eq!(states, [ServerState::Down, ServerState::Down, ServerState::Up]);
    let down = manifest.servers[0].down.as_ref().expect("a reason");
    assert!(down.stderr.iter().any(|line| line.contains("no such screen")), "{down:?}");
    assert_eq!(worker.tool("good", "add", json!({"a": 1, "b": 2})).await.text(), "3");
    assert_eq!(worker.tool("broken", "add", json!({})).await.error()["data"]["code"], "TB0402");
}

#[tokio::test]
async fn a_changed_list_is_announced() {
    for era in ["modern", "shared"] {
        let mut server = fake("one", if era == "modern" { "modern" } else { "legacy" });
        if era == "shared" {
            server.session = toolbus_upstream::SessionMode::Shared;
        }
        let rig = Rig::start(vec![server]).await;
        let worker = rig.legacy("w").await;
        rig.manifest(&worker, all_up).await;
        worker.tool("one", "change", json!({"name": "brand_new"})).await.result();
        let manifest = rig.manifest(&worker, |manifest| tools(&manifest.servers[0]).len() == 15).await;
        assert_eq!(tools(&manifest.servers[0])[14], "brand_new");
    }
}

#[tokio::test]
async fn a_crashed_server_is_restarted() {
    let rig = Rig::start(vec![fake("one", "modern")]).await;
    let worker = rig.modern("w").await;
    rig.manifest(&worker, all_up).await;
    worker.tool("one", "die", json!({})).await.error();
    rig.manifest(&worker, |manifest| !all_up(manifest)).await;
    let manifest = rig.manifest(&worker, all_up).await;
    assert_eq!(tools(&manifest.servers[0]).len(), 14);
}

/// A server that sends `list_changed` every millisecond; the name of its last tool counts how often the list was read.
fn restless(tools: &str) -> ServerConfig {
    let script = r#"
import json, sys, threading, time
def send(m): sys.stdout.write(json.dumps(dict(m, jsonrpc="2.0")) + "\n"); sys.stdout.flush()
reads = 0
def change():
    while True:
        send({"method": "notifications/tools/list_changed"}); time.sleep(0.001)
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "initialize":
        send({"id": m["id"], "result": {"protocolVersion": "2025-11-25", "serverInfo": {"name": "r", "version": "1"},
            "capabilities": {"tools": {"listChanged": True}}}})
    elif m.get("method") == "notifications/initialized":
        threading.Thread(target=change, daemon=True).start()
    elif m.get("method") == "tools/list":
        reads += 1
        tools = [{"name": "t%d" % n, "inputSchema": {"type": "object"}, "description": "x" * 100} for n in range(int(sys.argv[1]))]
        send({"id": m["id"], "result": {"tools": tools + [{"name": "reads_%d" % reads}]}})
    elif "id" in m:
        send({"id": m["id"], "error": {"code": -32601, "message": "no"}})
"#;
    ServerConfig::stdio("restless", "python3", &["-c", script, tools])
}

fn reads(manifest: &HostManifest) -> u32 {
    let last = manifest.servers[0].tools.last().and_then(|tool| Members::of(Some(tool)).ok()?.text("name"));
    last.and_then(|name| name.strip_prefix("reads_")?.parse().ok()).unwrap_or_default()
}

#[tokio::test]
async fn a_list_that_changes_constantly_is_read_once_a_second() {
    let rig = Rig::start(vec![restless("1"), fake("calm", "legacy")]).await;
    let started = std::time::Instant::now();
    let worker = rig.legacy("w").await;
    let manifest = rig.manifest(&worker, |manifest| all_up(manifest) && reads(manifest) >= 3).await;
    let most = started.elapsed().as_secs() as u32 + 2;
    assert!(reads(&manifest) <= most, "the list was read {} times, expected at most {most}", reads(&manifest));
    assert_eq!(worker.tool("calm", "add", json!({"a": 1, "b": 2})).await.text(), "3");
}

#[tokio::test]
async fn a_server_may_have_thousands_of_tools() {
    let rig = Rig::start(vec![restless("5000")]).await;
    let worker = rig.legacy("w").await;
    let manifest = rig.manifest(&worker, all_up).await;
    assert_eq!(manifest.servers[0].tools.len(), 5001);
}

#[tokio::test]
async fn a_call_received_before_its_server_is_listed_is_checked_again_afterwards() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fake_server.py");
    let late = ServerConfig::stdio("two", "sh", &["-c", "sleep 1; exec python3 \"$0\" legacy two", script]);
    let rig = Rig::start(vec![fake("one", "legacy"), late]).await;
    let worker = rig.legacy("w").await;
    let error = worker.tool("two", "add", json!({"a": 1, "b": 2})).await.error();
    assert_eq!(error["data"]["code"], "TB0410", "{error}");
}
