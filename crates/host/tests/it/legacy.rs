//! Legacy clients on a legacy server: pass-through, one session per client, limits, and recovery after a crash.

use crate::support::{Rig, fake, finish, next_event, open_host, parts, within};
use serde_json::json;
use std::time::Duration;
use toolbus_client::AgentRef;
use toolbus_host::{HostLimits, HostOptions};
use toolbus_mcp::{ClientHello, HostEvent, HostReply, HostRequest, raw};
use toolbus_upstream::{HostConfig, SessionMode};

#[tokio::test]
async fn a_call_passes_through_unchanged() {
    let rig = Rig::start(vec![fake("one", "legacy")]).await;
    let worker = rig.legacy("w").await;
    let arguments = json!({"n": 12345678901234567u64, "deep": {"a": [1, null, "x"]}});
    let params = json!({"name": "echo", "arguments": arguments, "_meta": {"x.y/z": 1}});
    let reply = worker.rpc("one", "tools/call", params).await;
    assert_eq!(reply.result()["structuredContent"], arguments);
    assert_eq!(reply.result()["_meta"], json!({"got": {"x.y/z": 1}}));
    let error = worker.tool("one", "add", json!({})).await.error();
    assert_eq!(error, json!({"code": -32602, "message": "Unknown tool: add", "data": 1.0}));
}

#[tokio::test]
async fn each_client_session_has_its_own_server_with_the_clients_initialize_params() {
    let rig = Rig::start(vec![fake("one", "legacy")]).await;
    let (a, b) = (rig.legacy("a").await, rig.legacy("b").await);
    let first = a.tool("one", "whoami", json!({})).await.json();
    let again = a.tool("one", "whoami", json!({})).await.json();
    let other = b.tool("one", "whoami", json!({})).await.json();
    assert_eq!(first["pid"], again["pid"]);
    assert_ne!(first["pid"], other["pid"]);
    assert_eq!(first["hello"]["clientInfo"]["name"], "a");
    assert_eq!(other["hello"]["clientInfo"]["name"], "b");
    assert_eq!(first["hello"]["capabilities"], json!({"elicitation": {}}));
}

#[tokio::test]
async fn a_client_gets_the_servers_initialize_result_and_the_server_its_params() {
    let rig = Rig::start(vec![fake("one", "legacy")]).await;
    let hello =
        json!({"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "z", "version": "1"}});
    let worker = rig.worker(AgentRef::new("w"), ClientHello::legacy(raw(&hello))).await;
    let result = worker.rpc("one", "initialize", hello).await.result();
    assert_eq!(result["protocolVersion"], "2025-03-26");
    assert_eq!(result["instructions"], "Be kind.");
    worker.notify("one", "notifications/initialized", json!({})).await;
    assert_eq!(worker.tool("one", "whoami", json!({})).await.json()["hello"]["clientInfo"]["name"], "z");
}

#[tokio::test]
async fn progress_arrives_before_the_reply_with_the_clients_token() {
    let rig = Rig::start(vec![fake("one", "legacy")]).await;
    let worker = rig.legacy("w").await;
    let params = json!({"name": "slow", "arguments": {"steps": 3, "pause": 0.0}, "_meta": {"progressToken": "tök"}});
    let reply = worker.rpc("one", "tools/call", params).await;
    assert_eq!(reply.text(), "done");
    let seen: Vec<_> = reply.events.iter().map(|event| parts(event).1).collect();
    let progress = |n: u64| json!({"progressToken": "tök", "progress": n, "total": 1000});
    assert_eq!(seen, [progress(0), progress(1), progress(2)]);
}

#[tokio::test]
async fn a_cancelled_call_ends_without_a_result() {
    let rig = Rig::start(vec![fake("one", "legacy")]).await;
    let worker = rig.legacy("w").await;
    let params = json!({"name": "slow", "arguments": {}, "_meta": {"progressToken": 1}});
    let mut call = worker.start("one", "tools/call", params).await;
    next_event(&mut call).await;
    worker.cancel("one", &call.id()).await;
    let reply = finish(call).await;
    assert!(matches!(reply.end, HostReply::Cancelled), "{reply:?}");
}

#[tokio::test]
async fn an_elicitation_during_a_call_gets_the_clients_answer() {
    let rig = Rig::start(vec![fake("one", "legacy")]).await;
    let worker = rig.legacy("w").await;
    let mut call = worker.start("one", "tools/call", json!({"name": "ask"})).await;
    let HostEvent::Request { id, method, .. } = next_event(&mut call).await else {
        panic!("expected a client request")
    };
    assert_eq!(method, "elicitation/create");
    worker.answer("one", id, json!({"action": "accept", "content": {"name": "Al"}})).await;
    assert_eq!(finish(call).await.json()["result"]["content"]["name"], "Al");
}

#[tokio::test]
async fn a_server_crash_fails_the_call_and_the_next_call_opens_a_new_session() {
    let rig = Rig::start(vec![fake("one", "legacy")]).await;
    let worker = rig.legacy("w").await;
    let before = worker.tool("one", "whoami", json!({})).await.json();
    worker.rpc("one", "resources/subscribe", json!({"uri": "test://one"})).await.result();
    let error = worker.tool("one", "die", json!({})).await.error();
    assert_eq!(error["data"]["code"], "TB0408");
    assert!(error["message"].as_str().expect("a message").contains("dying as asked"), "{error}");
    let after = worker.tool("one", "whoami", json!({})).await.json();
    assert_ne!(before["pid"], after["pid"]);
    assert_eq!(before["hello"], after["hello"]);
    // The new session has the subscription of the old one.
    let reply = worker.tool("one", "update", json!({"uri": "test://one"})).await;
    assert_eq!(parts(&reply.events[0]).0, "notifications/resources/updated");
}

#[tokio::test]
async fn a_session_continues_after_a_host_restart() {
    let mut rig = Rig::start(vec![fake("one", "legacy")]).await;
    let worker = rig.legacy("w").await;
    let before = worker.tool("one", "whoami", json!({})).await.json();
    rig.restart_host().await;
    let after = worker.tool("one", "whoami", json!({})).await.json();
    assert_ne!(before["pid"], after["pid"]);
    assert_eq!(before["hello"], after["hello"]);
}

#[tokio::test]
async fn an_inactive_session_is_evicted_for_a_new_client() {
    let mut server = fake("one", "legacy");
    server.max_sessions = 1;
    let limits = HostLimits { evicted_after: Duration::ZERO, ..HostLimits::default() };
    let config = HostConfig { servers: vec![server] };
    let rig = Rig::with(HostOptions { limits, ..open_host(config) }).await;
    let (gone, next) = (rig.legacy("gone").await, rig.legacy("next").await);
    let first = gone.tool("one", "whoami", json!({})).await.json();
    let second = next.tool("one", "whoami", json!({})).await.json();
    assert_ne!(first["pid"], second["pid"]);
    // The next call of the evicted client opens a new session.
    gone.tool("one", "whoami", json!({})).await.json();
}

#[tokio::test]
async fn sessions_are_limited_and_closing_one_frees_a_slot() {
    let mut server = fake("one", "legacy");
    server.max_sessions = 1;
    let limits = HostLimits { slot_patience: Duration::from_millis(100), ..HostLimits::default() };
    let rig = Rig::with(HostOptions { limits, ..open_host(HostConfig { servers: vec![server] }) }).await;
    let (a, b) = (rig.legacy("a").await, rig.legacy("b").await);
    a.tool("one", "whoami", json!({})).await.json();
    let error = b.tool("one", "whoami", json!({})).await.error();
    assert_eq!(error["data"]["code"], "TB0406");
    a.send(HostRequest::Close { session: a.session.clone() }).await;
    within("a session of the second client", async {
        while matches!(b.tool("one", "whoami", json!({})).await.end, HostReply::Rpc(toolbus_mcp::Outcome::Error(_))) {}
    })
    .await;
}

#[tokio::test]
async fn more_clients_than_sessions_wait_for_one_of_them() {
    for (agent, is_legacy) in [("w#", true), ("w#", false), ("agent", true), ("agent", false)] {
        let mut server = fake("one", "legacy");
        server.max_sessions = 4;
        let limits = HostLimits { evicted_after: Duration::from_millis(50), ..HostLimits::default() };
        let rig = Rig::with(HostOptions { limits, ..open_host(HostConfig { servers: vec![server] }) }).await;
        let call = |number: usize| {
            let (rig, name) = (&rig, format!("{agent}{number}"));
            async move {
                let client = if is_legacy { rig.legacy(&name).await } else { rig.modern(&name).await };
                // Two at the same time, of which one waits for the slot.
                let sum = || client.tool("one", "add", json!({"a": 1, "b": 2}));
                let (first, second) = tokio::join!(sum(), sum());
                (first.text(), second.text())
            }
        };
        let answers = futures_util::future::join_all((0..12).map(call)).await;
        assert!(answers.iter().all(|(first, second)| first == "3" && second == "3"), "{answers:?}");
    }
}

#[tokio::test]
async fn an_idle_session_ends_and_the_next_call_opens_another() {
    let mut server = fake("one", "legacy");
    server.idle = Duration::from_millis(100);
    server.max_sessions = 1;
    let rig = Rig::start(vec![server]).await;
    let (a, b) = (rig.legacy("a").await, rig.legacy("b").await);
    let before = a.tool("one", "whoami", json!({})).await.json();
    within("a session of the second client", async {
        while matches!(b.tool("one", "whoami", json!({})).await.end, HostReply::Rpc(toolbus_mcp::Outcome::Error(_))) {}
    })
    .await;
    within("a session of the first client", async {
        loop {
            let reply = a.tool("one", "whoami", json!({})).await;
            if matches!(reply.end, HostReply::Rpc(toolbus_mcp::Outcome::Result(_))) {
                break assert_ne!(reply.json()["pid"], before["pid"]);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_shared_server_is_one_process_and_accepts_answers_only_from_the_caller() {
    let mut server = fake("one", "legacy");
    server.session = SessionMode::Shared;
    let rig = Rig::start(vec![server]).await;
    let (a, b) = (rig.legacy("a").await, rig.legacy("b").await);
    let (first, other) =
        (a.tool("one", "whoami", json!({})).await.json(), b.tool("one", "whoami", json!({})).await.json());
    assert_eq!(first["pid"], other["pid"]);

    let mut call = a.start("one", "tools/call", json!({"name": "ask"})).await;
    let HostEvent::Request { id, .. } = next_event(&mut call).await else { panic!("expected a client request") };
    b.answer("one", id.clone(), json!({"action": "accept", "content": {"name": "Mallory"}})).await;
    a.answer("one", id, json!({"action": "accept", "content": {"name": "Al"}})).await;
    assert_eq!(finish(call).await.json()["result"]["content"]["name"], "Al");
}

#[tokio::test]
async fn a_slow_tool_is_stopped_by_its_timeout() {
    let mut server = fake("one", "legacy");
    server.tool_timeouts.insert("slow".to_owned(), Duration::from_millis(200));
    let rig = Rig::start(vec![server]).await;
    let worker = rig.legacy("w").await;
    let error = worker.tool("one", "slow", json!({})).await.error();
    assert_eq!(error["data"]["code"], "TB0407");
    assert_eq!(worker.tool("one", "add", json!({"a": 1, "b": 2})).await.text(), "3");
}

#[tokio::test]
async fn notifications_outside_of_calls_reach_the_session() {
    let rig = Rig::start(vec![fake("one", "legacy")]).await;
    let worker = rig.legacy("w").await;
    worker.rpc("one", "resources/subscribe", json!({"uri": "test://one"})).await.result();
    // With two calls in flight, a notification can't be attributed to one of them.
    let params = json!({"name": "slow", "arguments": {"steps": 100}});
    let (first, second) =
        (worker.start("one", "tools/call", params.clone()).await, worker.start("one", "tools/call", params).await);
    worker.tool("one", "update", json!({"uri": "test://one"})).await.result();
    let (method, params) = parts(&worker.next_session_event().await);
    assert_eq!((method.as_str(), params), ("notifications/resources/updated", json!({"uri": "test://one"})));
    drop((first, second));
}

#[tokio::test]
async fn a_result_that_is_too_large_is_an_error_and_later_calls_succeed() {
    let rig = Rig::start(vec![fake("one", "legacy")]).await;
    let worker = rig.legacy("w").await;
    let error = worker.tool("one", "big", json!({"bytes": 20 << 20})).await.error();
    assert_eq!(error["data"]["code"], "TB0405");
    assert_eq!(worker.tool("one", "add", json!({"a": 1, "b": 2})).await.text(), "3");
    assert_eq!(worker.tool("nowhere", "add", json!({})).await.error()["data"]["code"], "TB0404");
}

#[tokio::test]
async fn calls_over_the_servers_concurrency_limit_wait_in_order() {
    let mut server = fake("one", "legacy");
    server.max_concurrency = 1;
    let rig = Rig::start(vec![server]).await;
    let worker = rig.legacy("w").await;
    worker.tool("one", "add", json!({"a": 1, "b": 1})).await.text();
    let call = |name: &str, arguments| worker.start("one", "tools/call", json!({"name": name, "arguments": arguments}));
    let slow = call("slow", json!({"steps": 20})).await;
    let started = std::time::Instant::now();
    let change = call("change", json!({"name": "brand_new"})).await;
    let cancelled = call("add", json!({"a": 1, "b": 2})).await;
    worker.cancel("one", &cancelled.id()).await;
    // A call cancelled while it waits never reaches the server and ends immediately.
    assert!(matches!(finish(cancelled).await.end, HostReply::Cancelled));
    assert!(started.elapsed() < Duration::from_millis(350), "the cancelled call waited for the others");
    assert_eq!(finish(slow).await.text(), "done");
    assert_eq!(finish(change).await.text(), "changed");
}
