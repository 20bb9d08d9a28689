//! What a worker's executor does by itself.

use crate::bus::{Bus, TOKEN};
use crate::peers::{HOST, RawHost, worker};
use crate::soon;
use crate::tools::{call, names};
use std::sync::atomic::Ordering;
use std::time::Duration;
use toolbus_client::{BrokerError, ErrorCode};
use toolbus_executor::{McpProxyExecutor, ToolError, ToolExecutor};

#[tokio::test]
async fn a_tool_that_is_not_in_the_manifest_is_not_found_without_asking_the_host() {
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
async fn without_a_manifest_there_is_no_executor() {
    let bus = Bus::start().await;
    let patience = Duration::from_millis(50);
    let outcome = McpProxyExecutor::connect(&bus.url(), "worker-7#mcp", None, TOKEN, HOST, patience).await;
    assert!(matches!(outcome.err(), Some(BrokerError::Timeout(_))));
    let outcome = McpProxyExecutor::connect(&bus.url(), "worker-7#mcp", None, "wrong", HOST, patience).await;
    let code = outcome.err().and_then(|error| error.code());
    assert_eq!(code, Some(ErrorCode::BadCredentials));
}
