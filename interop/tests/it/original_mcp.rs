//! The original's MCP host and worker, both on our broker.

use crate::brokers::OurBroker;
use crate::original::{InboxKind, agent_in_role, subscriber};
use crate::soon;
use crate::tools::{Behaviour, HOST, Toolbox, call, echo, names, schema, spawn_host, worker};
use bamboo_agent_core::tools::{ToolError, ToolExecutor};
use bamboo_broker::{McpReply, McpRequest, RoleToolAllowlist};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Barrier;

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_sees_the_hosts_tools_and_calls_them() {
    let broker = OurBroker::start().await;
    let toolbox = Toolbox::echoing(&["nova_click", "nova_type"]);
    toolbox.put("broken", || Behaviour::Fail("out of order".into()));
    spawn_host(&broker.endpoint(), toolbox, RoleToolAllowlist::unrestricted());
    let worker = worker(&broker.endpoint(), "worker-7#mcp", None).await;
    let tools = worker.list_tools();
    assert_eq!(names(&tools), ["broken", "nova_click", "nova_type"]);
    assert_eq!(tools[1].function.parameters, schema("nova_click").function.parameters);

    let arguments = "{\"mark\": 7,\t\"why\":\"ü\"}";
    let result = soon(worker.execute(&call("nova_click", arguments))).await.expect("a result");
    assert!(result.success);
    assert_eq!(result.result, echo("nova_click", arguments));
    let failure = soon(worker.execute(&call("broken", "{}"))).await;
    assert!(matches!(&failure, Err(ToolError::Execution(reason)) if reason.contains("out of order")), "{failure:?}");
    let unknown = soon(worker.execute(&call("nova_fly", "{}"))).await;
    assert!(matches!(unknown, Err(ToolError::NotFound(_))), "{unknown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_allowlist_filters_the_manifest_and_denies_the_call() {
    let broker = OurBroker::start().await;
    let toolbox = Toolbox::echoing(&["nova_click", "nova_screenshot"]);
    let allowlist = RoleToolAllowlist::from_entries([("researcher", vec!["nova_click"]), ("locked", vec![])]);
    spawn_host(&broker.endpoint(), toolbox, allowlist);
    let check = async |role, expected: &[&str]| {
        let worker = worker(&broker.endpoint(), &format!("{role}#mcp"), Some(role)).await;
        assert_eq!(names(&worker.list_tools()), expected, "{role}");
    };
    check("researcher", &["nova_click"]).await;
    check("locked", &[]).await;
    check("operator", &["nova_click", "nova_screenshot"]).await;

    // Calls a tool that is not in the manifest, directly over the bus instead of through the executor.
    let me = agent_in_role("sneaky#mcp", "researcher");
    let sneaky = subscriber(&broker.endpoint(), me.clone()).await.into_multiplexed(me);
    let denied = request(&sneaky, &McpRequest::Call { tool: "nova_screenshot".into(), arguments: "{}".into() }).await;
    assert_eq!(denied.error.as_deref(), Some("tool 'nova_screenshot' is not allowed for role 'researcher'"));
    let allowed = request(&sneaky, &McpRequest::Call { tool: "nova_click".into(), arguments: "{}".into() }).await;
    assert_eq!(allowed.result.expect("a result").result, echo("nova_click", "{}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_mcp_request_is_answered_with_an_error() {
    let broker = OurBroker::start().await;
    spawn_host(&broker.endpoint(), Toolbox::new(), RoleToolAllowlist::unrestricted());
    let me = agent_in_role("odd#mcp", "researcher");
    let odd = subscriber(&broker.endpoint(), me.clone()).await.into_multiplexed(me);
    let reply = request(&odd, &json!({"op": "dance"})).await;
    assert!(reply.error.expect("an error").starts_with("bad mcp request"));
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_concurrent_calls_get_their_own_answers() {
    let broker = OurBroker::start().await;
    spawn_host(&broker.endpoint(), Toolbox::echoing(&["nova_click"]), RoleToolAllowlist::unrestricted());
    let worker = &worker(&broker.endpoint(), "worker-7#mcp", None).await;
    join_all((0..8).map(|mark| async move {
        let arguments = json!({ "mark": mark }).to_string();
        let result = soon(worker.execute(&call("nova_click", &arguments))).await.expect("a result");
        assert_eq!(result.result, echo("nova_click", &arguments));
    }))
    .await;
}

/// The tool returns only when four calls wait in it, so sequential calls would never end.
#[tokio::test(flavor = "multi_thread")]
async fn four_calls_on_one_connection_overlap() {
    let broker = OurBroker::start().await;
    let toolbox = Toolbox::new();
    let barrier = Arc::new(Barrier::new(4));
    toolbox.put("meet", move || Behaviour::Meet(Arc::clone(&barrier)));
    spawn_host(&broker.endpoint(), toolbox, RoleToolAllowlist::unrestricted());
    let worker = &worker(&broker.endpoint(), "worker-7#mcp", None).await;
    let calls = join_all((0..4).map(|_| async { worker.execute(&call("meet", "{}")).await.expect("a result") }));
    soon(calls).await;
}

async fn request(client: &bamboo_broker::MultiplexedClient, body: &impl serde::Serialize) -> McpReply {
    let body: Value = serde_json::to_value(body).expect("a body");
    let reply = client.request(HOST, InboxKind::McpRequest, body, Duration::from_secs(10)).await.expect("a reply");
    serde_json::from_value(reply).expect("an MCP reply")
}
