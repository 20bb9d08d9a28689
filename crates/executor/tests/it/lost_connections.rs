//! Lost connections of either end during a call: the call runs once, and its reply arrives.

use crate::bus::{Bus, Relay};
use crate::peers::{HOST, Host, quick_worker, worker};
use crate::tools::{Behaviour, Toolbox, call, echo};
use crate::{eventually, soon};
use std::sync::Arc;
use tokio::sync::Semaphore;
use toolbus_client::AgentRef;
use toolbus_executor::ToolExecutor;

fn gated() -> (Arc<Semaphore>, Arc<Toolbox>) {
    let gate = Arc::new(Semaphore::new(0));
    let toolbox = Toolbox::with("gate", Behaviour::Gate(Arc::clone(&gate)));
    (gate, toolbox)
}

async fn is_connected(bus: &Bus, name: &str) -> bool {
    let observer = bus.client(AgentRef::new("observer")).await;
    let status = soon("status", observer.status()).await.expect("version 2");
    status.connections.iter().any(|connection| &*connection.agent.session_id == name && connection.subscribed)
}

#[tokio::test]
async fn a_reply_to_a_disconnected_worker_arrives_after_it_reconnects() {
    let bus = Bus::start().await;
    let (gate, toolbox) = gated();
    let _host = Host::start(&bus.url(), &toolbox);
    let relay = Relay::to(bus.address()).await;
    let worker = Arc::new(worker(&relay.url(), "worker-7#mcp", None).await);
    let caller = Arc::clone(&worker);
    let calling = tokio::spawn(async move { caller.execute(&call("gate", "{}")).await });
    eventually("the call runs", async || toolbox.running() == 1).await;
    relay.cut();
    eventually("the worker is away", async || !is_connected(&bus, "worker-7#mcp").await).await;
    gate.add_permits(1);
    eventually("the reply is queued", async || bus.waiting("worker-7#mcp").await == 1).await;
    relay.restore();
    let result = soon("the answer", calling).await.expect("no panic").expect("a result");
    assert_eq!(result.result, echo("gate", "{}"));
    assert_eq!(toolbox.started(), 1);
}

#[tokio::test]
async fn hole_04_a_call_runs_once_if_the_worker_reconnects() {
    let bus = Bus::start().await;
    let (gate, toolbox) = gated();
    let _host = Host::start(&bus.url(), &toolbox);
    let relay = Relay::to(bus.address()).await;
    let worker = Arc::new(quick_worker(&relay.url(), "worker-7#mcp").await);
    let caller = Arc::clone(&worker);
    let calling = tokio::spawn(async move { caller.execute(&call("gate", "{}")).await });
    eventually("the call runs", async || toolbox.running() == 1).await;
    for _ in 0..3 {
        relay.cut();
        relay.restore();
        eventually("the worker is back", async || is_connected(&bus, "worker-7#mcp").await).await;
    }
    gate.add_permits(8);
    soon("the answer", calling).await.expect("no panic").expect("a result");
    assert_eq!(toolbox.started(), 1);
}

#[tokio::test]
async fn hole_04_a_call_runs_once_if_the_host_reconnects() {
    let bus = Bus::start().await;
    let (gate, toolbox) = gated();
    let relay = Relay::to(bus.address()).await;
    let _host = Host::start(&relay.url(), &toolbox);
    let worker = Arc::new(worker(&bus.url(), "worker-7#mcp", None).await);
    let caller = Arc::clone(&worker);
    let calling = tokio::spawn(async move { caller.execute(&call("gate", "{}")).await });
    eventually("the call runs", async || toolbox.running() == 1).await;
    for round in 0..3 {
        relay.cut();
        eventually("the host is away", async || !is_connected(&bus, HOST).await).await;
        if round == 2 {
            // The call ends while there is no connection to send its reply on.
            gate.add_permits(8);
            eventually("the call ends", async || toolbox.running() == 0).await;
        }
        relay.restore();
        eventually("the host is back", async || is_connected(&bus, HOST).await).await;
    }
    soon("the answer", calling).await.expect("no panic").expect("a result");
    eventually("an empty mailbox", async || bus.waiting(HOST).await == 0).await;
    assert_eq!(toolbox.started(), 1);
}

#[tokio::test]
async fn hole_05_a_lost_reply_is_sent_again_and_the_tool_runs_once() {
    let bus = Bus::start().await;
    let (gate, toolbox) = gated();
    let relay = Relay::to(bus.address()).await;
    let _host = Host::start(&relay.url(), &toolbox);
    let worker = Arc::new(worker(&bus.url(), "worker-7#mcp", None).await);
    let caller = Arc::clone(&worker);
    let calling = tokio::spawn(async move { caller.execute(&call("gate", "{}")).await });
    eventually("the call runs", async || toolbox.running() == 1).await;
    relay.discard();
    gate.add_permits(8);
    eventually("the call ends", async || toolbox.running() == 0).await;
    relay.discarded(1).await;
    relay.cut();
    eventually("the host is away", async || !is_connected(&bus, HOST).await).await;
    relay.restore();
    soon("the answer", calling).await.expect("no panic").expect("a result");
    eventually("an empty mailbox", async || bus.waiting(HOST).await == 0).await;
    assert_eq!(toolbox.started(), 1);
}
