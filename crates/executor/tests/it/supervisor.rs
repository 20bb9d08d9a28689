//! Hosts that lose their broker, are displaced, or are stopped.

use crate::bus::{Bus, TOKEN};
use crate::peers::{HOST, Host, worker};
use crate::tools::{Behaviour, Toolbox, call};
use crate::{eventually, soon};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use toolbus_client::{AgentRef, ErrorCode};
use toolbus_executor::{
    CancellationToken, RoleToolAllowlist, ToolExecutor, serve_mcp_proxy, serve_mcp_proxy_supervised,
};

#[tokio::test]
async fn a_supervised_host_reconnects_after_each_broker_restart() {
    let mut bus = Bus::start().await;
    bus.stop().await;
    let host = Host::start(&bus.url(), &Toolbox::echoing(&["nova_click"]));
    for _ in 0..2 {
        bus.start_again().await;
        let worker = worker(&bus.url(), "worker-7#mcp", None).await;
        soon("a call", worker.execute(&call("nova_click", "{}"))).await.expect("a result");
        bus.stop().await;
        assert!(!host.serving.is_finished());
    }
}

async fn assert_stops_immediately(mut host: Host) {
    let cancelled_at = Instant::now();
    host.shutdown.cancel();
    soon("the end", &mut host.serving).await.expect("no panic");
    assert!(cancelled_at.elapsed() < Duration::from_millis(400), "a host took {:?} to stop", cancelled_at.elapsed());
}

#[tokio::test]
async fn a_serving_host_stops_immediately_and_aborts_its_calls() {
    let bus = Bus::start().await;
    let toolbox = Toolbox::with("gate", Behaviour::Gate(Arc::new(Semaphore::new(0))));
    let host = Host::start(&bus.url(), &toolbox);
    let worker = Arc::new(worker(&bus.url(), "worker-7#mcp", None).await);
    tokio::spawn(async move { worker.execute(&call("gate", "{}")).await });
    eventually("the call runs", async || toolbox.running() == 1).await;
    assert_stops_immediately(host).await;
    eventually("the call is aborted", async || toolbox.running() == 0).await;
}

#[tokio::test]
async fn a_host_in_backoff_stops_immediately() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("ws://{}/bus", listener.local_addr().expect("it is bound"));
    let host = Host::start(&url, &Toolbox::echoing(&[]));
    for _ in 0..2 {
        // The connection is closed immediately.
        drop(soon("an attempt", listener.accept()).await.expect("a connection"));
    }
    // The backoff delay is at least 0.8 s now, longer than the time that the test allows for the stop.
    assert_stops_immediately(host).await;
}

#[tokio::test]
async fn a_host_that_is_stopped_before_it_starts_does_not_start() {
    let bus = Bus::start().await;
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    let (url, list) = (bus.url(), Arc::new(RoleToolAllowlist::unrestricted()));
    let serving = serve_mcp_proxy_supervised(&url, AgentRef::new(HOST), TOKEN, Toolbox::echoing(&[]), list, shutdown);
    soon("the end", serving).await;
}

#[tokio::test]
async fn an_unsupervised_host_ends_with_its_connection() {
    let mut bus = Bus::start().await;
    let url = bus.url();
    let serving = tokio::spawn(async move {
        let list = Arc::new(RoleToolAllowlist::unrestricted());
        serve_mcp_proxy(&url, AgentRef::new(HOST), TOKEN, Toolbox::echoing(&["nova_click"]), list).await
    });
    worker(&bus.url(), "worker-7#mcp", None).await;
    bus.stop().await;
    soon("the end", serving).await.expect("no panic").expect("a lost connection is not an error");
}

#[tokio::test]
async fn a_displaced_host_ends_with_an_error() {
    let bus = Bus::start().await;
    let url = bus.url();
    let serving = tokio::spawn(async move {
        let list = Arc::new(RoleToolAllowlist::unrestricted());
        serve_mcp_proxy(&url, AgentRef::new(HOST), TOKEN, Toolbox::echoing(&["nova_click"]), list).await
    });
    worker(&bus.url(), "worker-7#mcp", None).await;
    let other = bus.client(AgentRef::new(HOST)).await;
    other.subscribe().await.expect("open");
    let end = soon("the end", serving).await.expect("no panic").expect_err("the host was displaced");
    assert_eq!(end.code(), Some(ErrorCode::Displaced), "{end}");
}
