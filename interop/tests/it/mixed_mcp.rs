//! MCP over the bus between the original's code and ours, over both brokers: the original's worker with a minimal host
//! on our client, and our client as a worker of the original's host.

use crate::brokers::{OriginalBroker, OurBroker};
use crate::ours::{self, AgentRef, BrokerClient, InboxKind, InboxMessage, MultiplexedClient, body, value};
use crate::soon;
use crate::tools::{Behaviour, HOST, Toolbox, call, echo, names, schema, spawn_host, worker};
use bamboo_agent_core::tools::{ToolError, ToolExecutor};
use bamboo_broker::RoleToolAllowlist;
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn the_originals_worker_calls_our_host_over_our_broker() {
    let broker = OurBroker::start().await;
    check_our_host(&broker.endpoint()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_originals_worker_calls_our_host_over_the_originals_broker() {
    let broker = OriginalBroker::start().await;
    check_our_host(&broker.endpoint()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_client_calls_the_originals_host_over_our_broker() {
    let broker = OurBroker::start().await;
    check_our_worker(&broker.endpoint()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_client_calls_the_originals_host_over_the_originals_broker() {
    let broker = OriginalBroker::start().await;
    check_our_worker(&broker.endpoint()).await;
}

async fn check_our_host(endpoint: &str) {
    let host = Arc::new(ours::subscriber(endpoint, HOST).await);
    tokio::spawn(serve_tools(host));
    let worker = &worker(endpoint, "worker-7#mcp", Some("researcher")).await;
    assert_eq!(names(&worker.list_tools()), ["nova_click", "nova_screenshot"]);
    let arguments = "{\"mark\": 7}";
    let result = soon(worker.execute(&call("nova_click", arguments))).await.expect("a result");
    assert_eq!((result.success, result.result), (true, echo("nova_click", arguments)));
    let denied = soon(worker.execute(&call("nova_screenshot", "{}"))).await;
    assert!(matches!(&denied, Err(ToolError::Execution(reason)) if reason.contains("researcher")), "{denied:?}");
    let unknown = soon(worker.execute(&call("nova_fly", "{}"))).await;
    assert!(matches!(unknown, Err(ToolError::NotFound(_))), "{unknown:?}");
    join_all((0..8).map(|mark| async move {
        let arguments = json!({ "mark": mark }).to_string();
        let result = soon(worker.execute(&call("nova_click", &arguments))).await.expect("a result");
        assert_eq!(result.result, echo("nova_click", &arguments));
    }))
    .await;
}

/// A minimal host on our client.
async fn serve_tools(host: Arc<BrokerClient>) {
    while let Some(request) = host.next_message().await {
        let host = Arc::clone(&host);
        tokio::spawn(async move {
            let reply = body(&answer(&request));
            host.reply(&request, InboxKind::McpReply, reply).await.expect("a receipt");
        });
    }
}

fn answer(request: &InboxMessage) -> Value {
    assert_eq!(request.kind, InboxKind::McpRequest);
    let operation = value(request);
    let role = request.from.role.as_deref().unwrap_or_default();
    match (operation["op"].as_str(), operation["tool"].as_str(), operation["arguments"].as_str()) {
        (Some("manifest"), ..) => json!({ "manifest": [schema("nova_click"), schema("nova_screenshot")] }),
        (Some("call"), Some(tool @ "nova_screenshot"), _) => {
            json!({ "error": format!("tool '{tool}' is not allowed for role '{role}'") })
        }
        (Some("call"), Some(tool), Some(arguments)) => {
            json!({ "result": { "success": true, "result": echo(tool, arguments) } })
        }
        _ => json!({ "error": "bad mcp request" }),
    }
}

async fn check_our_worker(endpoint: &str) {
    let toolbox = Toolbox::echoing(&["nova_click", "nova_screenshot"]);
    toolbox.put("broken", || Behaviour::Fail("out of order".into()));
    let allowlist = RoleToolAllowlist::from_entries([("researcher", vec!["nova_click", "broken"])]);
    spawn_host(endpoint, toolbox, allowlist);
    let me = AgentRef::new("worker-7#mcp").with_role("researcher");
    let worker = &ours::connect_as(endpoint, me).await.into_multiplexed();

    let reply = request(worker, json!({ "op": "manifest" })).await;
    assert_eq!(reply, json!({ "manifest": [schema("broken"), schema("nova_click")] }));
    let reply = request(worker, json!({ "op": "call", "tool": "nova_click", "arguments": "{\"mark\": 7}" })).await;
    assert_eq!(reply, json!({ "result": { "success": true, "result": echo("nova_click", "{\"mark\": 7}") } }));
    let reply = request(worker, json!({ "op": "call", "tool": "nova_screenshot", "arguments": "{}" })).await;
    assert_eq!(reply, json!({ "error": "tool 'nova_screenshot' is not allowed for role 'researcher'" }));
    let reply = request(worker, json!({ "op": "call", "tool": "broken", "arguments": "{}" })).await;
    assert_eq!(reply, json!({ "error": "Execution failed: out of order" }));
    let reply = request(worker, json!("nonsense")).await;
    assert!(reply["error"].as_str().expect("an error").starts_with("bad mcp request"), "{reply}");

    join_all((0..8).map(|mark| async move {
        let arguments = json!({ "mark": mark }).to_string();
        let call = json!({ "op": "call", "tool": "nova_click", "arguments": arguments });
        assert_eq!(request(worker, call).await["result"]["result"], echo("nova_click", &arguments));
    }))
    .await;
}

async fn request(worker: &MultiplexedClient, operation: Value) -> Value {
    let sending = worker.request(HOST, InboxKind::McpRequest, body(&operation), Duration::from_secs(10));
    let reply = sending.await.expect("a reply");
    assert_eq!(reply.kind, InboxKind::McpReply);
    value(&reply)
}
