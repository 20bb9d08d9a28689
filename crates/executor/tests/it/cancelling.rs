//! Cancelled and expired calls, both running and waiting for a permit.

use crate::bus::{Bus, TOKEN};
use crate::peers::{HOST, Host, worker};
use crate::tools::{Behaviour, Toolbox, call, echo};
use crate::{eventually, soon};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use toolbus_client::{AgentRef, Body, InboxKind, InboxMessage, SendOptions};
use toolbus_executor::{McpProxyExecutor, McpProxyHostOptions, McpRequest, ToolError, ToolExecutor};

fn gated() -> (Arc<Semaphore>, Arc<Toolbox>) {
    let gate = Arc::new(Semaphore::new(0));
    let toolbox = Toolbox::with("gate", Behaviour::Gate(Arc::clone(&gate)));
    (gate, toolbox)
}

#[tokio::test]
async fn hole_06_a_call_is_aborted_when_its_caller_drops_it() {
    let bus = Bus::start().await;
    let (gate, toolbox) = gated();
    let _host = Host::start(&bus.url(), &toolbox);
    let worker = Arc::new(worker(&bus.url(), "worker-7#mcp", None).await);
    let caller = Arc::clone(&worker);
    let calling = tokio::spawn(async move { caller.execute(&call("gate", "{}")).await });
    eventually("the call runs", async || toolbox.running() == 1).await;
    calling.abort();
    eventually("the call is aborted", async || toolbox.running() == 0).await;
    eventually("an empty mailbox", async || bus.waiting(HOST).await == 0).await;
    gate.add_permits(1);
    let result = soon("the next call", worker.execute(&call("gate", "{}"))).await.expect("a result");
    assert_eq!(result.result, echo("gate", "{}"));
}

#[tokio::test]
async fn hole_06_a_cancelled_call_that_waits_for_a_permit_never_runs() {
    let bus = Bus::start().await;
    let (gate, toolbox) = gated();
    let options = McpProxyHostOptions { max_concurrent_calls: 1, ..Default::default() };
    let _host = Host::start_with(&bus.url(), &toolbox, options);
    let worker = Arc::new(worker(&bus.url(), "worker-7#mcp", None).await);
    let spawn = || {
        let worker = Arc::clone(&worker);
        tokio::spawn(async move { worker.execute(&call("gate", "{}")).await })
    };
    let first = spawn();
    eventually("the call runs", async || toolbox.running() == 1).await;
    let second = spawn();
    eventually("the second call is queued", async || bus.waiting(HOST).await == 2).await;
    second.abort();
    eventually("the second call is settled", async || bus.waiting(HOST).await == 1).await;
    gate.add_permits(2);
    soon("the first", first).await.expect("no panic").expect("a result");
    soon("the third", spawn()).await.expect("no panic").expect("a result");
    assert_eq!(toolbox.started(), 2);
}

/// The caller sends no cancel, so only the deadline ends the call.
#[tokio::test]
async fn hole_06_a_call_is_aborted_when_its_deadline_passes() {
    let bus = Bus::start().await;
    let (_gate, toolbox) = gated();
    let _host = Host::start(&bus.url(), &toolbox);
    let caller = bus.client(AgentRef::new("gone#mcp")).await;
    let operation = McpRequest::Call { tool: "gate".into(), arguments: "{}".into() };
    let request = InboxMessage::new(caller.me(), InboxKind::McpRequest, Body::of(&operation).expect("JSON"));
    let send = SendOptions { deadline: Some(Duration::from_millis(300)) };
    // The receipt arrives at the latest when the message is on disk, which is before its deadline.
    soon("receipt", caller.deliver_with(HOST, request, send)).await.expect("accepted");
    eventually("the call runs", async || toolbox.started() == 1).await;
    eventually("the call is aborted", async || toolbox.running() == 0).await;
    eventually("an empty mailbox", async || bus.waiting(HOST).await == 0).await;
}

#[tokio::test]
async fn a_call_without_a_reply_times_out_and_the_host_goes_on() {
    let bus = Bus::start().await;
    let (gate, toolbox) = gated();
    let _host = Host::start(&bus.url(), &toolbox);
    let (url, timeout) = (bus.url(), Duration::from_millis(300));
    let connecting = McpProxyExecutor::connect(&url, "hasty#mcp", None, TOKEN, HOST, timeout);
    let worker = soon("a worker", connecting).await.expect("a manifest");
    let outcome = soon("the end", worker.execute(&call("gate", "{}"))).await;
    let Err(ToolError::Execution(reason)) = outcome else { panic!("{outcome:?}") };
    assert!(reason.starts_with("mcp proxy: no answer within"), "{reason}");
    eventually("the call is aborted", async || toolbox.running() == 0).await;
    gate.add_permits(1);
    soon("the next call", worker.execute(&call("gate", "{}"))).await.expect("a result");
    assert_eq!(toolbox.started(), 2);
}

#[tokio::test]
async fn a_tool_that_never_ends_is_stopped_by_the_hosts_limit() {
    let bus = Bus::start().await;
    let (_gate, toolbox) = gated();
    let options = McpProxyHostOptions { longest_call: Duration::from_millis(50), ..Default::default() };
    let _host = Host::start_with(&bus.url(), &toolbox, options);
    let worker = worker(&bus.url(), "worker-7#mcp", None).await;
    let outcome = soon("the end", worker.execute(&call("gate", "{}"))).await;
    let reason = "server \"desktop\" did not answer tools/call in time";
    assert_eq!(outcome, Err(ToolError::Execution(reason.into())));
}
