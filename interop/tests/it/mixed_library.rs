//! The library's hosts and executors with the original's, over both brokers.

use crate::brokers::{OriginalBroker, OurBroker};
use crate::tools::{self, Behaviour, HOST, Toolbox, echo, spawn_host};
use crate::{TOKEN, soon};
use bamboo_agent_core::tools::{ToolError as OriginalError, ToolExecutor as _};
use futures_util::future::join_all;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Barrier;
use toolbus_client::AgentRef;
use toolbus_executor::{
    FunctionCall, FunctionSchema, McpProxyExecutor, RoleToolAllowlist, ToolCall, ToolError, ToolExecutor, ToolResult,
    ToolResultImage, ToolSchema, async_trait, serve_mcp_proxy,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_originals_executor_uses_our_host_over_our_broker() {
    let broker = OurBroker::start().await;
    check_our_host(&broker.endpoint()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_originals_executor_uses_our_host_over_the_originals_broker() {
    let broker = OriginalBroker::start().await;
    check_our_host(&broker.endpoint()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_executor_uses_the_originals_host_over_our_broker() {
    let broker = OurBroker::start().await;
    check_our_executor(&broker.endpoint()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_executor_uses_the_originals_host_over_the_originals_broker() {
    let broker = OriginalBroker::start().await;
    check_our_executor(&broker.endpoint()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_executor_uses_our_host_over_the_originals_broker() {
    let broker = OriginalBroker::start().await;
    spawn_our_host(&broker.endpoint());
    let worker = our_worker(&broker.endpoint(), Some("researcher")).await;
    let result = soon(worker.execute(&call("nova_click", "{}"))).await.expect("a result");
    assert_eq!(result, our_result("nova_click", "{}"), "between our own, every field of a result is kept");
}

/// The original's host doesn't reconnect, so the test starts a new one.
#[tokio::test(flavor = "multi_thread")]
async fn our_executor_survives_a_restart_of_the_originals_broker() {
    let mut broker = OriginalBroker::start().await;
    let toolbox = Toolbox::echoing(&["nova_click"]);
    let unrestricted = bamboo_broker::RoleToolAllowlist::unrestricted;
    spawn_host(&broker.endpoint(), Arc::clone(&toolbox), unrestricted());
    let worker = our_worker(&broker.endpoint(), None).await;
    broker.restart().await;
    spawn_host(&broker.endpoint(), toolbox, unrestricted());
    let result = soon(worker.execute(&call("nova_click", "{}"))).await.expect("a result");
    assert_eq!(result.result, echo("nova_click", "{}"));
}

async fn check_our_host(endpoint: &str) {
    spawn_our_host(endpoint);
    let worker = &tools::worker(endpoint, "worker-7#mcp", Some("researcher")).await;
    assert_eq!(tools::names(&worker.list_tools()), ["nova_click"]);
    let result = soon(worker.execute(&tools::call("nova_click", "{\"mark\": 7}"))).await.expect("a result");
    assert_eq!((result.success, result.result), (true, echo("nova_click", "{\"mark\": 7}")));
    let unknown = soon(worker.execute(&tools::call("nova_screenshot", "{}"))).await;
    assert!(matches!(unknown, Err(OriginalError::NotFound(_))), "{unknown:?}");
    join_all((0..8).map(|mark| async move {
        let arguments = json!({ "mark": mark }).to_string();
        let result = soon(worker.execute(&tools::call("nova_click", &arguments))).await.expect("a result");
        assert_eq!(result.result, echo("nova_click", &arguments));
    }))
    .await;
    let operator = tools::worker(endpoint, "operator#mcp", Some("operator")).await;
    assert_eq!(tools::names(&operator.list_tools()), ["broken", "nova_click"]);
    let failure = soon(operator.execute(&tools::call("broken", "{}"))).await;
    let reason = "Execution failed: Execution failed: out of order";
    assert_eq!(failure.expect_err("a failing tool").to_string(), reason, "the same text as from the original's host");
}

async fn check_our_executor(endpoint: &str) {
    let toolbox = Toolbox::echoing(&["nova_click", "nova_screenshot"]);
    toolbox.put("broken", || Behaviour::Fail("out of order".into()));
    let barrier = Arc::new(Barrier::new(4));
    toolbox.put("meet", move || Behaviour::Meet(Arc::clone(&barrier)));
    let allowed = vec!["broken", "meet", "nova_click"];
    let allowlist = bamboo_broker::RoleToolAllowlist::from_entries([("researcher", allowed.clone())]);
    spawn_host(endpoint, toolbox, allowlist);
    let worker = &our_worker(endpoint, Some("researcher")).await;
    let listed = worker.list_tools();
    assert_eq!(listed.iter().map(|tool| tool.function.name.as_str()).collect::<Vec<_>>(), allowed);
    assert_eq!(listed[2].function.parameters, tools::schema("nova_click").function.parameters);
    let result = soon(worker.execute(&call("nova_click", "{\"mark\": 7}"))).await.expect("a result");
    assert_eq!(result, ToolResult::text(true, echo("nova_click", "{\"mark\": 7}")));
    let failure = soon(worker.execute(&call("broken", "{}"))).await;
    assert_eq!(failure, Err(ToolError::Execution("Execution failed: out of order".into())));
    let unknown = soon(worker.execute(&call("nova_screenshot", "{}"))).await;
    assert_eq!(unknown, Err(ToolError::NotFound("nova_screenshot".into())));
    soon(join_all((0..4).map(|_| async { worker.execute(&call("meet", "{}")).await.expect("a result") }))).await;
}

fn spawn_our_host(endpoint: &str) {
    let endpoint = endpoint.to_owned();
    let allowlist = Arc::new(RoleToolAllowlist::from_entries([("researcher", vec!["nova_click"])]));
    tokio::spawn(
        async move { serve_mcp_proxy(&endpoint, AgentRef::new(HOST), TOKEN, Arc::new(OurTools), allowlist).await },
    );
}

async fn our_worker(endpoint: &str, role: Option<&str>) -> McpProxyExecutor {
    let role = role.map(str::to_owned);
    let connecting = McpProxyExecutor::connect(endpoint, "our-worker#mcp", role, TOKEN, HOST, Duration::from_secs(10));
    soon(connecting).await.expect("a manifest")
}

fn call(tool: &str, arguments: &str) -> ToolCall {
    let function = FunctionCall { name: tool.into(), arguments: arguments.into() };
    ToolCall { id: format!("call-{tool}"), tool_type: "function".into(), function }
}

/// A host's tools as an implementation of our `ToolExecutor`.
struct OurTools;

/// Has an image, which the original doesn't know and has to ignore.
fn our_result(tool: &str, arguments: &str) -> ToolResult {
    let image = ToolResultImage { mime_type: "image/png".into(), data: "iVBORw0KGgo=".into() };
    ToolResult { images: vec![image], ..ToolResult::text(true, echo(tool, arguments)) }
}

#[async_trait]
impl ToolExecutor for OurTools {
    async fn execute(&self, call: &ToolCall) -> Result<ToolResult, ToolError> {
        match call.function.name.as_str() {
            "broken" => Err(ToolError::Execution("out of order".into())),
            name => Ok(our_result(name, &call.function.arguments)),
        }
    }

    fn list_tools(&self) -> Vec<ToolSchema> {
        let schema = |name: &str| {
            let (name, description) = (name.to_owned(), format!("the tool {name}"));
            let function = FunctionSchema { name, description, parameters: json!({ "type": "object" }) };
            ToolSchema { schema_type: "function".into(), function }
        };
        ["broken", "nova_click"].map(schema).into()
    }
}
