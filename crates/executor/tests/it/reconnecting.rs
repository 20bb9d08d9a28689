//! The executor when the broker is restarted.

use crate::bus::Bus;
use crate::peers::{Host, RawHost, quick_worker, worker};
use crate::tools::{Behaviour, Toolbox, call, echo, names};
use crate::{eventually, soon};
use futures_util::future::join_all;
use std::sync::atomic::Ordering;
use std::time::Instant;
use toolbus_executor::{ToolError, ToolExecutor};

#[tokio::test]
async fn after_a_broker_restart_calls_work_with_a_new_manifest() {
    let mut bus = Bus::start().await;
    let toolbox = Toolbox::echoing(&["nova_click"]);
    let _host = Host::start(&bus.url(), &toolbox);
    let worker = worker(&bus.url(), "worker-7#mcp", None).await;
    bus.stop().await;
    toolbox.put("nova_type", Behaviour::Echo);
    bus.start_again().await;
    let result = soon("a call", worker.execute(&call("nova_click", "{}"))).await.expect("a result");
    assert_eq!(result.result, echo("nova_click", "{}"));
    eventually("the new manifest", async || names(&worker.list_tools()) == ["nova_click", "nova_type"]).await;
    let result = soon("a call", worker.execute(&call("nova_type", "{}"))).await.expect("a result");
    assert_eq!(result.result, echo("nova_type", "{}"));
}

#[tokio::test]
async fn concurrent_callers_share_one_reconnect_and_one_manifest() {
    let mut bus = Bus::start().await;
    let host = RawHost::serve(&bus).await;
    let worker = &worker(&bus.url(), "worker-7#mcp", None).await;
    assert_eq!(host.manifests.load(Ordering::SeqCst), 1);
    bus.stop().await;
    let calling = join_all((0..8).map(|mark| async move {
        let arguments = mark.to_string();
        let result = worker.execute(&call("nova_click", &arguments)).await.expect("a result");
        assert_eq!(result.result, arguments);
    }));
    tokio::join!(soon("eight calls", calling), bus.start_again());
    eventually("the manifest", async || host.manifests.load(Ordering::SeqCst) == 2).await;
    for _ in 0..4 {
        // The host answers in order, so any pending request is counted before these.
        soon("a call", worker.execute(&call("nova_click", "{}"))).await.expect("a result");
    }
    assert_eq!((host.calls.load(Ordering::SeqCst), host.manifests.load(Ordering::SeqCst)), (12, 2));
}

#[tokio::test]
async fn concurrent_callers_share_a_new_connection_after_the_client_gave_up() {
    let mut bus = Bus::start().await;
    let host = RawHost::serve(&bus).await;
    let worker = &quick_worker(&bus.url(), "worker-7#mcp").await;
    bus.stop().await;
    let error = soon("a failure", worker.execute(&call("nova_click", "{}"))).await.expect_err("no broker");
    assert!(matches!(&error, ToolError::Execution(reason) if reason.starts_with("mcp proxy: ")), "{error}");
    bus.start_again().await;
    let calling = join_all((0..8).map(|mark| async move {
        let arguments = mark.to_string();
        assert_eq!(worker.execute(&call("nova_click", &arguments)).await.expect("a result").result, arguments);
    }));
    soon("eight calls", calling).await;
    eventually("the manifest", async || host.manifests.load(Ordering::SeqCst) == 2).await;
    assert_eq!(host.calls.load(Ordering::SeqCst), 8);
}

/// With the default backoff: 200, 400, 800 and 1,600 ms between the five attempts, or up to a fifth less.
#[tokio::test]
async fn calls_fail_after_five_attempts_and_the_executor_stays_usable() {
    let mut bus = Bus::start().await;
    let _host = RawHost::serve(&bus).await;
    let worker = &worker(&bus.url(), "worker-7#mcp", None).await;
    bus.stop().await;
    // In the first outage the client reconnects, in the second one the executor. Its callers share the failure.
    for outage in 1..=2 {
        let began = Instant::now();
        let calls = join_all((0..3).map(|_| async { worker.execute(&call("nova_click", "{}")).await }));
        let failures = soon("failures", calls).await;
        for failure in failures {
            assert!(matches!(failure, Err(ToolError::Execution(_))), "{failure:?}");
        }
        let took = began.elapsed().as_millis();
        assert!((2_350..8_000).contains(&took), "outage {outage}: five attempts took {took} ms");
    }
    assert_eq!(names(&worker.list_tools()), ["nova_click"], "the last manifest stays in use");
    bus.start_again().await;
    soon("a call", worker.execute(&call("nova_click", "{}"))).await.expect("usable");
}
