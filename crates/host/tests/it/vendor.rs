//! Notifications of methods that only client and server know, and more notifications than a caller reads.

use crate::crashing::TestFolder;
use crate::support::{Rig, fake, parts};
use serde_json::json;
use toolbus_mcp::ServerState;

#[tokio::test]
async fn a_vendor_notification_reaches_the_server_in_every_combination_of_eras() {
    for (server, is_legacy) in [("legacy", false), ("legacy", true), ("modern", false), ("modern", true)] {
        let folder = TestFolder::new();
        let rig = Rig::start(vec![fake("one", server)]).await;
        let worker = if is_legacy { rig.legacy("w").await } else { rig.modern("w").await };
        rig.manifest(&worker, |manifest| manifest.servers.iter().any(|one| one.state == ServerState::Up)).await;
        worker.notify("one", "notifications/vendor/effect", folder.quick()).await;
        folder.expect_effects(1).await;
        worker.tool("one", "whoami", json!({})).await.json();
        worker.notify("one", "notifications/vendor/effect", folder.quick()).await;
        folder.expect_effects(2).await;
    }
}

#[tokio::test]
async fn a_burst_of_progress_ends_with_the_last_one() {
    const STEPS: u64 = 20_000;
    for (server, is_legacy) in [("legacy", true), ("legacy", false), ("modern", true), ("modern", false)] {
        let rig = Rig::start(vec![fake("one", server)]).await;
        let worker = if is_legacy { rig.legacy("w").await } else { rig.modern("w").await };
        let arguments =
            json!({"name": "slow", "arguments": {"steps": STEPS, "pause": 0}, "_meta": {"progressToken": "p"}});
        let reply = worker.rpc("one", "tools/call", arguments).await;
        assert_eq!(reply.text(), "done");
        let seen: Vec<_> =
            reply.events.iter().map(|event| parts(event).1["progress"].as_u64().expect("a number")).collect();
        assert_eq!(seen.last(), Some(&(STEPS - 1)), "{server} {is_legacy}: {} arrived", seen.len());
        assert!(seen.is_sorted());
    }
}

#[tokio::test]
async fn a_process_that_a_modern_clients_notification_opens_knows_the_client() {
    let folder = TestFolder::new();
    let rig = Rig::start(vec![fake("one", "legacy")]).await;
    let mut worker = rig.modern("w").await;
    let initialize = json!({"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "modern", "version": "9"}});
    worker.hello.initialize = Some(toolbus_mcp::raw(&initialize));
    worker.notify("one", "notifications/vendor/effect", folder.quick()).await;
    folder.expect_effects(1).await;
    worker.hello.initialize = None;
    let known = worker.tool("one", "whoami", json!({})).await.json();
    assert_eq!(known["hello"], initialize);
    let asked = worker.tool("one", "ask", json!({})).await.result();
    assert_eq!(asked["resultType"], "input_required");
}
