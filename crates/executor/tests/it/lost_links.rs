//! One end loses its link in mid-call: the call runs once, and its answer arrives.

use crate::bus::{Bus, Detour};
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
async fn an_answer_that_comes_while_the_worker_is_away_reaches_it_later() {
    let bus = Bus::start().await;
    let (gate, toolbox) = gated();
    let _host = Host::start(&bus.url(), &toolbox);
    let detour = Detour::to(bus.address()).await;
    let worker = Arc::new(worker(&detour.url(), "worker-7#mcp", None).await);
    let caller = Arc::clone(&worker);
    let calling = tokio::spawn(async move { caller.execute(&call("gate", "{}")).await });
    eventually("it runs", async || toolbox.running() == 1).await;
    detour.cut();
    eventually("the worker is away", async || !is_connected(&bus, "worker-7#mcp").await).await;
    gate.add_permits(1);
    eventually("the answer waits", async || bus.waiting("worker-7#mcp").await == 1).await;
    detour.mend();
    let result = soon("the answer", calling).await.expect("no panic").expect("a result");
    assert_eq!(result.result, echo("gate", "{}"));
    assert_eq!(toolbox.started(), 1);
}

#[tokio::test]
async fn hole_04_a_call_runs_once_however_often_the_worker_loses_its_link() {
    let bus = Bus::start().await;
    let (gate, toolbox) = gated();
    let _host = Host::start(&bus.url(), &toolbox);
    let detour = Detour::to(bus.address()).await;
    let worker = Arc::new(quick_worker(&detour.url(), "worker-7#mcp").await);
    let caller = Arc::clone(&worker);
    let calling = tokio::spawn(async move { caller.execute(&call("gate", "{}")).await });
    eventually("it runs", async || toolbox.running() == 1).await;
    for _ in 0..3 {
        detour.cut();
        detour.mend();
        eventually("the worker is back", async || is_connected(&bus, "worker-7#mcp").await).await;
    }
    gate.add_permits(8);
    soon("the answer", calling).await.expect("no panic").expect("a result");
    assert_eq!(toolbox.started(), 1);
}

#[tokio::test]
async fn hole_04_a_call_runs_once_however_often_the_host_loses_its_link() {
    let bus = Bus::start().await;
    let (gate, toolbox) = gated();
    let detour = Detour::to(bus.address()).await;
    let _host = Host::start(&detour.url(), &toolbox);
    let worker = Arc::new(worker(&bus.url(), "worker-7#mcp", None).await);
    let caller = Arc::clone(&worker);
    let calling = tokio::spawn(async move { caller.execute(&call("gate", "{}")).await });
    eventually("it runs", async || toolbox.running() == 1).await;
    for round in 0..3 {
        detour.cut();
        eventually("the host is away", async || !is_connected(&bus, HOST).await).await;
        if round == 2 {
            // It ends while there is no connection to send the answer on.
            gate.add_permits(8);
            eventually("it ends", async || toolbox.running() == 0).await;
        }
        detour.mend();
        eventually("the host is back", async || is_connected(&bus, HOST).await).await;
    }
    soon("the answer", calling).await.expect("no panic").expect("a result");
    eventually("an empty mailbox", async || bus.waiting(HOST).await == 0).await;
    assert_eq!(toolbox.started(), 1);
}

#[tokio::test]
async fn hole_05_an_answer_that_was_lost_on_its_way_is_sent_again_and_the_tool_is_not_run_again() {
    let bus = Bus::start().await;
    let (gate, toolbox) = gated();
    let detour = Detour::to(bus.address()).await;
    let _host = Host::start(&detour.url(), &toolbox);
    let worker = Arc::new(worker(&bus.url(), "worker-7#mcp", None).await);
    let caller = Arc::clone(&worker);
    let calling = tokio::spawn(async move { caller.execute(&call("gate", "{}")).await });
    eventually("it runs", async || toolbox.running() == 1).await;
    detour.swallow();
    gate.add_permits(8);
    eventually("it ends", async || toolbox.running() == 0).await;
    detour.swallowed().await;
    detour.cut();
    eventually("the host is away", async || !is_connected(&bus, HOST).await).await;
    detour.mend();
    soon("the answer", calling).await.expect("no panic").expect("a result");
    eventually("an empty mailbox", async || bus.waiting(HOST).await == 0).await;
    assert_eq!(toolbox.started(), 1);
}
