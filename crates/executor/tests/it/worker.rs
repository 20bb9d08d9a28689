//! The worker's executor: use of the manifest, and failures to connect.

use crate::bus::{Bus, TOKEN};
use crate::peers::{HOST, RawHost, worker};
use crate::soon;
use crate::tools::{call, names};
use std::sync::atomic::Ordering;
use std::time::Duration;
use toolbus_client::{BrokerError, ErrorCode};
use toolbus_executor::{McpProxyExecutor, ToolError, ToolExecutor};

#[tokio::test]
async fn a_tool_outside_of_the_manifest_is_not_found_without_a_request() {
    let bus = Bus::start().await;
    let host = RawHost::serve(&bus).await;
    let worker = worker(&bus.url(), "worker-7#mcp", None).await;
    let unknown = soon("answer", worker.execute(&call("nova_fly", "{}"))).await;
    assert_eq!(unknown, Err(ToolError::NotFound("nova_fly".into())));
    let known = soon("answer", worker.execute(&call("nova_click", "{\"mark\":7}"))).await;
    assert_eq!(known.expect("a result").result, "{\"mark\":7}");
    assert_eq!((host.manifests.load(Ordering::SeqCst), host.calls.load(Ordering::SeqCst)), (1, 1));
    assert!(worker.owns_exact_tool("nova_click") && !worker.owns_exact_tool("nova_fly"));
    assert_eq!(names(&worker.list_tools()), ["nova_click"]);
}

#[tokio::test]
async fn connecting_fails_without_a_manifest() {
    let bus = Bus::start().await;
    let timeout = Duration::from_millis(50);
    let outcome = McpProxyExecutor::connect(&bus.url(), "worker-7#mcp", None, TOKEN, HOST, timeout).await;
    assert!(matches!(outcome.err(), Some(BrokerError::Timeout(_))));
    let outcome = McpProxyExecutor::connect(&bus.url(), "worker-7#mcp", None, "wrong", HOST, timeout).await;
    let code = outcome.err().and_then(|error| error.code());
    assert_eq!(code, Some(ErrorCode::BadCredentials));
}
