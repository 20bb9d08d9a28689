//! Hosts that are away: what they left is still shown, calls wait for them and say so.

use crate::support::bus::{FakeBus, echo};
use crate::support::stdio::StdioClient;
use crate::support::{away, eventually, host, initialize, modern, request, server};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use toolbus_mcp::{HostRequest, ServerState};
use toolbus_worker::{StdioOptions, WorkerOptions};

fn absent() -> Arc<FakeBus> {
    FakeBus::new(vec![away(host("attic", vec![server("files", &["read", "write"])]))])
}

#[tokio::test]
async fn a_server_whose_host_is_away_is_shown_from_its_manifest() {
    let bus = absent();
    let (mut client, greeting) = StdioClient::initialized(&bus).await;
    assert_eq!(greeting["result"]["serverInfo"], json!({"name": "files", "version": "1"}));
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
async fn an_older_client_is_greeted_in_its_version() {
    let bus = absent();
    let mut client = StdioClient::start(&bus);
    let mut hello = initialize(1);
    hello["params"]["protocolVersion"] = "2025-06-18".into();
    client.send(&hello).await;
    assert_eq!(client.next().await["result"]["protocolVersion"], "2025-06-18");
    hello["params"]["protocolVersion"] = "1999-01-01".into();
    client.send(&hello).await;
    assert_eq!(client.next().await["result"]["protocolVersion"], "2025-11-25");
}

#[tokio::test]
async fn a_call_waits_for_its_host_and_says_so() {
    let bus = absent();
    let options = WorkerOptions { away_progress: Duration::from_millis(20), ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    client.send(&modern(1, "tools/call", json!({"name": "read", "_meta": {"progressToken": 9}}))).await;
    let mut last = -1.0;
    for _ in 0..3 {
        let told = client.next().await;
        assert_eq!((&told["method"], &told["params"]["progressToken"]), (&json!("notifications/progress"), &json!(9)));
        let progress = told["params"]["progress"].as_f64().unwrap();
        assert!(progress > last && progress < 0.01, "{told}");
        last = progress;
        let message = told["params"]["message"].as_str().unwrap();
        assert!(message.starts_with("queued: host attic is away since 2026-"), "{message}");
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
async fn a_waiting_call_is_told_its_position_anew_with_each_message() {
    let bus = absent();
    let options = WorkerOptions { away_progress: Duration::from_millis(20), ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    for id in [1, 2] {
        client.send(&modern(id, "tools/call", json!({"name": "read", "_meta": {"progressToken": id}}))).await;
    }
    let position = async |client: &mut StdioClient, position: u32| loop {
        let told = client.next().await;
        let message = told["params"]["message"].as_str().unwrap();
        if told["params"]["progressToken"] == 2 && message.ends_with(&format!(", position {position}")) {
            return;
        }
    };
    position(&mut client, 2).await;
    bus.forget_first_waiting();
    position(&mut client, 1).await;
}

fn code(answer: &serde_json::Value) -> &str {
    answer["error"]["data"]["code"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_worker_that_does_not_wait_refuses_calls_to_an_absent_host_without_sending_them() {
    let bus = absent();
    let options = WorkerOptions { fail_fast: true, ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    client.send(&modern(1, "tools/call", json!({"name": "read", "_meta": {"progressToken": 1}}))).await;
    let answer = client.next().await;
    assert_eq!((&answer["id"], code(&answer)), (&json!(1), "TB0427"));
    assert!(answer["error"]["message"].as_str().unwrap().contains("attic"), "{answer}");
    assert_eq!(bus.waiting(), 0, "nothing was sent");
    client.send(&modern(2, "tools/list", json!({}))).await;
    assert_eq!(client.next().await["result"]["tools"][0]["name"], "read", "what is on the manifest is still shown");
}

#[tokio::test]
async fn a_tool_whose_manifest_says_so_is_refused_while_others_wait() {
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
async fn a_call_that_is_not_to_wait_is_taken_back_when_its_host_leaves_before_it_had_it() {
    let there = || host("attic", vec![server("files", &["read"])]);
    let bus = FakeBus::new(vec![there()]);
    bus.lose("attic");
    let options = WorkerOptions { fail_fast: true, ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    client.send(&modern(1, "tools/call", json!({"name": "read"}))).await;
    eventually("the call waits", || bus.waiting() == 1).await;
    bus.set_hosts(vec![away(there())]);
    let answer = client.next().await;
    assert_eq!((&answer["id"], code(&answer)), (&json!(1), "TB0427"));
    assert_eq!(bus.taken_back().len(), 1);
}

#[tokio::test]
async fn a_call_that_reached_its_host_is_waited_for_although_it_was_not_to_wait() {
    let there = || host("attic", vec![server("files", &["read"])]);
    let bus = FakeBus::new(vec![there()]);
    let options = WorkerOptions { fail_fast: true, ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    client.send(&modern(1, "tools/call", json!({"name": "read"}))).await;
    let call = bus.next_call().await;
    bus.set_hosts(vec![away(there())]);
    bus.set_hosts(vec![there()]);
    call.reply(json!({"here": true})).await;
    assert_eq!(client.next().await["result"], json!({"here": true}));
    assert!(bus.taken_back().is_empty());
}

#[tokio::test]
async fn a_host_that_goes_away_during_a_call_is_told_too() {
    let bus = FakeBus::new(vec![host("attic", vec![server("files", &["read"])])]);
    let mut client = StdioClient::start(&bus);
    client.send(&modern(1, "tools/call", json!({"name": "read", "_meta": {"progressToken": "t"}}))).await;
    let _call = bus.next_call().await;
    bus.set_hosts(vec![away(host("attic", vec![server("files", &["read"])]))]);
    assert_eq!(client.next().await["params"]["progressToken"], "t");
}

#[tokio::test]
async fn the_deadline_names_the_absent_host() {
    let bus = absent();
    let options = WorkerOptions { call_deadline: Duration::from_millis(20), ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    client.send(&modern(1, "tools/call", json!({"name": "read"}))).await;
    let answer = client.next().await;
    assert_eq!((&answer["id"], &answer["error"]["data"]["code"]), (&json!(1), &json!("TB0401")));
    assert!(answer["error"]["message"].as_str().unwrap().contains("attic"));
}

#[tokio::test]
async fn a_waiting_call_can_be_cancelled() {
    let bus = absent();
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
async fn a_server_that_is_down_is_listed_from_its_manifest_and_its_error_is_the_hosts() {
    let mut down = server("files", &["read"]);
    down.state = ServerState::Down;
    let bus = FakeBus::new(vec![host("attic", vec![down])]);
    let (mut client, greeting) = StdioClient::initialized(&bus).await;
    assert_eq!(greeting["result"]["serverInfo"]["name"], "files");
    bus.serve(echo);
    client.send(&request(1, "tools/list", json!({}))).await;
    assert_eq!(client.next().await["result"]["tools"][0]["name"], "read");
    client.send(&request(2, "tools/call", json!({"name": "read"}))).await;
    assert_eq!(client.next().await["result"]["asked"], "tools/call");
}

#[tokio::test]
async fn a_changed_manifest_is_told_once_and_only_if_the_list_is_another() {
    let bus = FakeBus::new(vec![host("attic", vec![server("files", &["read"])])]);
    bus.serve(echo);
    let (mut client, _) = StdioClient::initialized(&bus).await;
    // The same list again, away and back: nothing to tell.
    bus.set_hosts(vec![away(host("attic", vec![server("files", &["read"])]))]);
    bus.set_hosts(vec![host("attic", vec![server("files", &["read"])])]);
    bus.set_hosts(vec![host("attic", vec![server("files", &["read", "write"])])]);
    assert_eq!(client.next().await, json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}));
    client.send(&request(1, "ping", json!({}))).await;
    assert_eq!(client.next().await["id"], 1);
}
