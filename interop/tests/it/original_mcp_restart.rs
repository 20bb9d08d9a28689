//! The original's MCP host and worker across restarts of our broker on the same port and folder.

use crate::brokers::OurBroker;
use crate::original::agent;
use crate::tools::{Behaviour, HOST, Toolbox, call, echo, names, worker};
use crate::{TOKEN, soon};
use bamboo_agent_core::tools::{ToolCall, ToolError, ToolExecutor, ToolResult};
use bamboo_broker::{McpProxyExecutor, RoleToolAllowlist, serve_mcp_proxy_supervised};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

#[tokio::test(flavor = "multi_thread")]
async fn worker_and_host_reconnect_and_the_worker_gets_a_new_manifest() {
    let mut broker = OurBroker::start().await;
    let toolbox = Toolbox::echoing(&["nova_click"]);
    let host = SupervisedHost::start(&broker.endpoint(), Arc::clone(&toolbox));
    let worker = worker(&broker.endpoint(), "worker-7#mcp", None).await;
    assert_eq!(names(&worker.list_tools()), ["nova_click"]);

    broker.stop().await;
    toolbox.put("nova_type", || Behaviour::Echo);
    broker.start_again().await;
    let result = execute(&worker, &call("nova_click", "{}")).await.expect("a result");
    assert_eq!(result.result, echo("nova_click", "{}"));
    assert_eq!(names(&worker.list_tools()), ["nova_click", "nova_type"]);
    let result = soon(worker.execute(&call("nova_type", "{}"))).await.expect("a result");
    assert_eq!(result.result, echo("nova_type", "{}"));
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_in_flight_is_repeated_after_a_restart_of_the_broker() {
    let mut broker = OurBroker::start().await;
    let toolbox = Toolbox::new();
    let calls_so_far = AtomicU32::new(0);
    toolbox.put("slow", move || match calls_so_far.fetch_add(1, Ordering::SeqCst) {
        0 => Behaviour::Hang,
        _ => Behaviour::Echo,
    });
    let mut called = toolbox.watch_calls();
    let host = SupervisedHost::start(&broker.endpoint(), toolbox);
    let worker = worker(&broker.endpoint(), "worker-7#mcp", None).await;

    let worker = Arc::new(worker);
    let caller = Arc::clone(&worker);
    let running = tokio::spawn(async move { caller.execute(&call("slow", "{}")).await });
    assert_eq!(soon(called.recv()).await.as_deref(), Some("slow"));
    broker.restart().await;
    let result = match soon(running).await.expect("no panic") {
        Err(error) if is_lost_connection(&error) => execute(&worker, &call("slow", "{}")).await,
        outcome => outcome,
    };
    assert_eq!(result.expect("a result").result, echo("slow", "{}"));
    // The broker kept the first request, which was not acknowledged: the host gets it again besides the repetition.
    for _ in 0..2 {
        assert_eq!(soon(called.recv()).await.as_deref(), Some("slow"));
    }
    host.stop().await;
}

/// Calls after the connection was lost. The original's worker reconnects and repeats the call by itself, except for a
/// race: if the request fails before the worker notices the lost connection, it returns the error, and the next call
/// works.
async fn execute(worker: &McpProxyExecutor, call: &ToolCall) -> Result<ToolResult, ToolError> {
    let mut outcome = soon(worker.execute(call)).await;
    for _ in 0..2 {
        match &outcome {
            Err(error) if is_lost_connection(error) => outcome = soon(worker.execute(call)).await,
            _ => break,
        }
    }
    outcome
}

fn is_lost_connection(error: &ToolError) -> bool {
    let lost = ["connection closed before", "ws send:"];
    matches!(error, ToolError::Execution(reason) if lost.iter().any(|text| reason.contains(text)))
}

struct SupervisedHost {
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

impl SupervisedHost {
    fn start(endpoint: &str, toolbox: Arc<Toolbox>) -> Self {
        let (endpoint, shutdown) = (endpoint.to_owned(), CancellationToken::new());
        let allowlist = Arc::new(RoleToolAllowlist::unrestricted());
        let stopped = shutdown.clone();
        let serving = tokio::spawn(async move {
            serve_mcp_proxy_supervised(&endpoint, agent(HOST), TOKEN, toolbox, allowlist, stopped).await;
        });
        Self { shutdown, serving }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        soon(self.serving).await.expect("no panic");
    }
}
