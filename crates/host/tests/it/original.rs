//! Workers of the original system, which know only the operations `manifest` and `call`.

use crate::support::{Rig, TIMEOUT, fake, open_host};
use serde_json::{Value, json};
use toolbus_client::{AgentRef, InboxKind, InboxMessage, MultiplexedClient};
use toolbus_protocol::Body;
use toolbus_upstream::HostConfig;

async fn ask(bus: &MultiplexedClient, body: Value) -> Value {
    let body = Body::of(&body).expect("JSON");
    let message = InboxMessage::new(bus.client().me(), InboxKind::McpRequest, body);
    let mut call = bus.start_call("host", message, TIMEOUT).await.expect("a call");
    loop {
        match call.next().await.expect("a reply") {
            toolbus_client::CallItem::Event(_) => {}
            toolbus_client::CallItem::Reply(reply) => return reply.expect("a reply").body.to().expect("JSON"),
        }
    }
}

async fn old_worker(rig: &Rig) -> MultiplexedClient {
    let client = rig.client(AgentRef::new("old")).await;
    client.subscribe().await.expect("a mailbox");
    client.into_multiplexed()
}

/// Such a worker asks only once.
#[tokio::test]
async fn a_manifest_that_is_requested_while_servers_start_is_complete() {
    let rig = Rig::without_host().await;
    let bus = old_worker(&rig).await;
    let host =
        rig.with_other_host(open_host(HostConfig { servers: vec![fake("one", "legacy"), fake("two", "modern")] }));
    let (manifest, _rig) = tokio::join!(ask(&bus, json!({"op": "manifest"})), host);
    assert_eq!(manifest["manifest"].as_array().map(Vec::len), Some(14));
}

#[tokio::test]
async fn an_original_worker_gets_a_manifest_and_calls_tools() {
    let rig = Rig::start(vec![fake("one", "legacy"), fake("two", "modern")]).await;
    let worker = rig.legacy("w").await;
    rig.manifest(&worker, |manifest| {
        manifest.servers.iter().all(|server| server.state == toolbus_mcp::ServerState::Up)
    })
    .await;
    let bus = old_worker(&rig).await;
    let manifest = ask(&bus, json!({"op": "manifest"})).await;
    let function = json!({"name": "echo", "description": "tool echo", "parameters": {"type": "object"}});
    assert_eq!(manifest["manifest"][0], json!({"type": "function", "function": function}));
    assert_eq!(manifest["manifest"].as_array().map(Vec::len), Some(14));

    let call = |tool: &str, arguments: &str| json!({"op": "call", "tool": tool, "arguments": arguments});
    let added = ask(&bus, call("add", r#"{"a":1,"b":2}"#)).await;
    assert_eq!((&added["result"]["success"], &added["result"]["result"]), (&json!(true), &json!("3")));
    let failed = ask(&bus, call("fail", "")).await;
    assert_eq!((&failed["result"]["success"], &failed["result"]["result"]), (&json!(false), &json!("failed")));
    assert_eq!(ask(&bus, call("nothing", "{}")).await, json!({"error": "unknown tool 'nothing'"}));
    assert!(ask(&bus, call("add", "{")).await["error"].as_str().expect("a reason").contains("not JSON"));
    let bad = ask(&bus, json!({"op": "dance"})).await;
    assert!(bad["error"].as_str().expect("a reason").starts_with("bad mcp request"), "{bad}");
}
