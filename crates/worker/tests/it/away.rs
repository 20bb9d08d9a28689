//! Absent hosts: their servers are answered from manifests, and calls to them are queued with progress notifications.

use crate::support::bus::{FakeBus, echo};
use crate::support::stdio::StdioClient;
use crate::support::{away, eventually, host, initialize, modern, request, server};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use toolbus_mcp::{HostRequest, ServerState};
use toolbus_worker::{StdioOptions, WorkerOptions};

fn absent_host() -> Arc<FakeBus> {
    FakeBus::new(vec![away(host("attic", vec![server("files", &["read", "write"])]))])
}

#[tokio::test]
async fn a_server_of_an_absent_host_is_answered_from_its_manifest() {
    let bus = absent_host();
    let (mut client, response) = StdioClient::initialized(&bus).await;
    assert_eq!(response["result"]["serverInfo"], json!({"name": "files", "version": "1"}));
    client.send(&request(1, "tools/list", json!({}))).await;
    let list = client.next().await;
    assert_eq!(
        list["result"],
        json!({"tools": [
        {"name": "read", "inputSchema": {"type": "object"}}, {"name": "write", "inputSchema": {"type": "object"}}]})
    );
    client.send(&modern(2, "server/discover", json!({}))).await;
    assert_eq!(client.next().await["result"]["cacheScope"], "public");
    client.send(&modern(3, "tools/list", json!({}))).await;
    let list = client.next().await;
    assert_eq!((&list["result"]["resultType"], &list["result"]["cacheScope"]), (&json!("complete"), &json!("private")));
}

#[tokio::test]
async fn the_protocol_version_is_negotiated_from_the_manifest() {
    let bus = absent_host();
    let mut client = StdioClient::start(&bus);
    let mut initialize = initialize(1);
    initialize["params"]["protocolVersion"] = "2025-06-18".into();
    client.send(&initialize).await;
    assert_eq!(client.next().await["result"]["protocolVersion"], "2025-06-18");
    initialize["params"]["protocolVersion"] = "1999-01-01".into();
    client.send(&initialize).await;
    assert_eq!(client.next().await["result"]["protocolVersion"], "2025-11-25");
}

#[tokio::test]
async fn a_queued_call_sends_progress_until_its_host_is_back() {
    let bus = absent_host();
    let options = WorkerOptions { away_progress: Duration::from_millis(20), ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    client.send(&modern(1, "tools/call", json!({"name": "read", "_meta": {"progressToken": 9}}))).await;
    let mut last = -1.0;
    for _ in 0..3 {
        let sent = client.next().await;
        assert_eq!((&sent["method"], &sent["params"]["progressToken"]), (&json!("notifications/progress"), &json!(9)));
        let progress = sent["params"]["progress"].as_f64().unwrap();
        assert!(progress > last && progress < 0.01, "{sent}");
        last = progress;
        let message = sent["params"]["message"].as_str().unwrap();
        assert!(message.starts_with("queued: host attic has been away since 2026-"), "{message}");
        assert!(message.ends_with(", position 1"), "{message}");
    }
    bus.set_hosts(vec![host("attic", vec![server("files", &["read", "write"])])]);
    let call = bus.next_call().await;
    call.reply(json!({"here": true})).await;
    let answer = loop {
        let next = client.next().await;
        if next["id"] == 1 {
            break next;
        }
    };
    assert_eq!(answer["result"], json!({"here": true}));
}

#[tokio::test]
async fn progress_of_a_queued_call_reports_its_current_position() {
    let bus = absent_host();
    let options = WorkerOptions { away_progress: Duration::from_millis(20), ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    for id in [1, 2] {
        client.send(&modern(id, "tools/call", json!({"name": "read", "_meta": {"progressToken": id}}))).await;
    }
    let position = async |client: &mut StdioClient, position: u32| loop {
        let progress = client.next().await;
        let message = progress["params"]["message"].as_str().unwrap();
        if progress["params"]["progressToken"] == 2 && message.ends_with(&format!(", position {position}")) {
            return;
        }
    };
    position(&mut client, 2).await;
    bus.remove_first_waiting();
    position(&mut client, 1).await;
}

fn code(answer: &serde_json::Value) -> &str {
    answer["error"]["data"]["code"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_fail_fast_worker_rejects_calls_to_an_absent_host_without_sending_them() {
    let bus = absent_host();
    let options = WorkerOptions { fail_fast: true, ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    client.send(&modern(1, "tools/call", json!({"name": "read", "_meta": {"progressToken": 1}}))).await;
    let answer = client.next().await;
    assert_eq!((&answer["id"], code(&answer)), (&json!(1), "TB0427"));
    assert!(answer["error"]["message"].as_str().unwrap().contains("attic"), "{answer}");
    assert_eq!(bus.waiting(), 0, "nothing was sent");
    client.send(&modern(2, "tools/list", json!({}))).await;
    assert_eq!(client.next().await["result"]["tools"][0]["name"], "read", "the manifest is still listed");
}

#[tokio::test]
async fn a_fail_fast_tool_is_rejected_while_others_are_queued() {
    let mut files = server("files", &["read", "write"]);
    files.fail_fast.tools = vec!["write".into()];
    let bus = FakeBus::new(vec![away(host("attic", vec![files]))]);
    let mut client = StdioClient::start(&bus);
    client.send(&modern(1, "tools/call", json!({"name": "write"}))).await;
    assert_eq!(code(&client.next().await), "TB0427");
    client.send(&modern(2, "tools/call", json!({"name": "read", "_meta": {"progressToken": 2}}))).await;
    assert_eq!(client.next().await["method"], "notifications/progress");
    assert_eq!(bus.waiting(), 1);
}

#[tokio::test]
async fn an_undelivered_fail_fast_call_is_withdrawn_when_its_host_disconnects() {
    let connected = || host("attic", vec![server("files", &["read"])]);
    let bus = FakeBus::new(vec![connected()]);
    bus.queue_calls_to("attic");
    let options = WorkerOptions { fail_fast: true, ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    client.send(&modern(1, "tools/call", json!({"name": "read"}))).await;
    eventually("the call is queued", || bus.waiting() == 1).await;
    bus.set_hosts(vec![away(connected())]);
    let answer = client.next().await;
    assert_eq!((&answer["id"], code(&answer)), (&json!(1), "TB0427"));
    assert_eq!(bus.withdrawn().len(), 1);
}

/// The broker may have delivered the call before a crash, or may deliver it after one.
#[tokio::test]
async fn a_fail_fast_call_whose_withdrawal_is_not_confirmed_has_an_unknown_outcome() {
    let connected = || host("attic", vec![server("files", &["read"])]);
    let bus = FakeBus::new(vec![connected()]);
    bus.queue_calls_to("attic");
    bus.withdrawals_fail.store(true, std::sync::atomic::Ordering::Relaxed);
    let options = WorkerOptions { fail_fast: true, ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    client.send(&modern(1, "tools/call", json!({"name": "read"}))).await;
    eventually("the call is queued", || bus.waiting() == 1).await;
    bus.set_hosts(vec![away(connected())]);
    let answer = client.next().await;
    assert_eq!(code(&answer), toolbus_protocol::ErrorCode::OutcomeUnknown.code(), "{answer}");
}

#[tokio::test]
async fn a_delivered_fail_fast_call_is_awaited_when_its_host_disconnects() {
    let connected = || host("attic", vec![server("files", &["read"])]);
    let bus = FakeBus::new(vec![connected()]);
    let options = WorkerOptions { fail_fast: true, ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    client.send(&modern(1, "tools/call", json!({"name": "read"}))).await;
    let call = bus.next_call().await;
    bus.set_hosts(vec![away(connected())]);
    eventually("the worker notices it", || bus.queue_queries() == 1).await;
    bus.set_hosts(vec![connected()]);
    call.reply(json!({"here": true})).await;
    assert_eq!(client.next().await["result"], json!({"here": true}));
    assert!(bus.withdrawn().is_empty());
}

/// The host got the call, lost its connection and may have started it: the call is in the queue again.
#[tokio::test]
async fn a_redelivered_fail_fast_call_is_awaited_when_its_host_disconnects() {
    let connected = || host("attic", vec![server("files", &["read"])]);
    let bus = FakeBus::new(vec![connected()]);
    bus.queue_calls_to("attic");
    let options = WorkerOptions { fail_fast: true, ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    client.send(&modern(1, "tools/call", json!({"name": "read"}))).await;
    eventually("the call is queued", || bus.waiting() == 1).await;
    bus.mark_first_delivered();
    bus.set_hosts(vec![away(connected())]);
    eventually("the worker notices it", || bus.queue_queries() == 1).await;
    client.send(&modern(2, "server/discover", json!({}))).await;
    assert_eq!(client.next().await["id"], 2, "the call has no answer yet");
    assert!(bus.withdrawn().is_empty());
}

#[tokio::test]
async fn a_disconnect_during_a_call_is_reported_as_progress() {
    let bus = FakeBus::new(vec![host("attic", vec![server("files", &["read"])])]);
    let mut client = StdioClient::start(&bus);
    client.send(&modern(1, "tools/call", json!({"name": "read", "_meta": {"progressToken": "t"}}))).await;
    let _call = bus.next_call().await;
    bus.set_hosts(vec![away(host("attic", vec![server("files", &["read"])]))]);
    assert_eq!(client.next().await["params"]["progressToken"], "t");
}

#[tokio::test]
async fn a_deadline_error_names_the_absent_host() {
    let bus = absent_host();
    let options = WorkerOptions { call_deadline: Duration::from_millis(20), ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    client.send(&modern(1, "tools/call", json!({"name": "read"}))).await;
    let answer = client.next().await;
    assert_eq!((&answer["id"], &answer["error"]["data"]["code"]), (&json!(1), &json!("TB0401")));
    assert!(answer["error"]["message"].as_str().unwrap().contains("attic"));
}

#[tokio::test]
async fn a_queued_call_can_be_cancelled() {
    let bus = absent_host();
    let mut client = StdioClient::start(&bus);
    client.send(&modern(1, "tools/call", json!({"name": "read", "_meta": {"progressToken": 1}}))).await;
    client.next().await;
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})).await;
    client.send(&modern(2, "server/discover", json!({}))).await;
    assert_eq!(client.next().await["id"], 2);
    bus.set_hosts(vec![host("attic", vec![server("files", &["read"])])]);
    bus.next_call().await.cancelled().await;
    bus.sent(|sent| matches!(sent, HostRequest::Notify(notify) if notify.method == "notifications/cancelled")).await;
}

#[tokio::test]
async fn a_down_server_is_listed_from_its_manifest_and_its_calls_go_to_the_host() {
    let mut down = server("files", &["read"]);
    down.state = ServerState::Down;
    let bus = FakeBus::new(vec![host("attic", vec![down])]);
    let (mut client, response) = StdioClient::initialized(&bus).await;
    assert_eq!(response["result"]["serverInfo"]["name"], "files");
    bus.serve(echo);
    client.send(&request(1, "tools/list", json!({}))).await;
    assert_eq!(client.next().await["result"]["tools"][0]["name"], "read");
    client.send(&request(2, "tools/call", json!({"name": "read"}))).await;
    assert_eq!(client.next().await["result"]["asked"], "tools/call");
}

#[tokio::test]
async fn a_changed_list_is_notified_once_and_an_unchanged_one_never() {
    let bus = FakeBus::new(vec![host("attic", vec![server("files", &["read"])])]);
    bus.serve(echo);
    let (mut client, _) = StdioClient::initialized(&bus).await;
    // The same list after a disconnect and reconnect: no notification.
    bus.set_hosts(vec![away(host("attic", vec![server("files", &["read"])]))]);
    bus.set_hosts(vec![host("attic", vec![server("files", &["read"])])]);
    bus.set_hosts(vec![host("attic", vec![server("files", &["read", "write"])])]);
    assert_eq!(client.next().await, json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}));
    client.send(&request(1, "ping", json!({}))).await;
    assert_eq!(client.next().await["id"], 1);
}
