//! The limits of the policy: rate, concurrency, result size and deadline.

use crate::policy::{rig_with, worker};
use crate::support::{Rig, TIMEOUT, Worker, fake, finish, next_event};
use serde_json::json;
use std::time::Duration;
use toolbus_client::{AgentRef, Call, CallItem, InboxKind, InboxMessage};
use toolbus_mcp::HostReply;
use toolbus_protocol::Body;

async fn reader(rules: &str) -> (Rig, Worker) {
    let rig = rig_with(vec![fake("one", "legacy")], rules).await;
    let worker = worker(&rig, Some("reader"), true).await;
    (rig, worker)
}

/// Starts a call of `slow`, and waits until it runs.
async fn start_slow(worker: &Worker) -> Call {
    let params = json!({"name": "slow", "arguments": {}, "_meta": {"progressToken": "p"}});
    let mut call = worker.start("one", "tools/call", params).await;
    next_event(&mut call).await;
    call
}

#[tokio::test]
async fn a_call_over_the_rate_limit_is_refused_with_a_retry_time() {
    let (_rig, worker) = reader("[roles.reader]\nallow = ['**']\nrate = '2/h'").await;
    for _ in 0..2 {
        worker.tool("one", "add", json!({"a": 1, "b": 2})).await.text();
    }
    // Lists don't count against the rate limit.
    worker.rpc("one", "tools/list", json!({})).await.result();
    let error = worker.tool("one", "add", json!({"a": 1, "b": 2})).await.error();
    assert_eq!(error["data"]["code"], "TB0417");
    let message = error["message"].as_str().expect("a message");
    assert!(message.starts_with("[roles.reader] allows 2/h; try again in 17"), "{message}");
}

#[tokio::test]
async fn a_call_over_the_concurrency_limit_waits_for_a_permit() {
    let (_rig, worker) = reader("[roles.reader]\nallow = ['**']\n[limits.'one/*']\nconcurrency = 1").await;
    let slow = start_slow(&worker).await;
    let mut add = worker.start("one", "tools/call", json!({"name": "add", "arguments": {"a": 1, "b": 2}})).await;
    assert!(tokio::time::timeout(Duration::from_millis(300), add.next()).await.is_err(), "there is one permit");
    worker.cancel("one", &slow.id()).await;
    assert!(matches!(finish(slow).await.end, HostReply::Cancelled));
    match tokio::time::timeout(TIMEOUT, add.next()).await.expect("a reply") {
        Some(CallItem::Reply(reply)) => drop(reply.expect("a reply")),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn waiting_for_a_permit_counts_towards_the_deadline() {
    let rules = "[roles.reader]\nallow = ['**']\n[limits.'one/*']\nconcurrency = 1\n[limits.'add']\ndeadline = '300ms'";
    let (_rig, worker) = reader(rules).await;
    let _slow = start_slow(&worker).await;
    let error = worker.tool("one", "add", json!({"a": 1, "b": 2})).await.error();
    assert_eq!(error["data"]["code"], "TB0407");
    assert!(error["message"].as_str().expect("a message").ends_with("[limits.\"add\"] allows 300ms"), "{error}");
}

#[tokio::test]
async fn a_call_is_stopped_at_the_deadline_of_its_rule() {
    for (server, legacy) in [("legacy", true), ("legacy", false), ("modern", true), ("modern", false)] {
        let rules = "[roles.reader]\nallow = ['**']\ndeadline = '400ms'";
        let rig = rig_with(vec![fake("one", server)], rules).await;
        let worker = worker(&rig, Some("reader"), legacy).await;
        let error = worker.tool("one", "slow", json!({})).await.error();
        assert_eq!(error["data"]["code"], "TB0407", "{server} {legacy} {error}");
        assert!(error["message"].as_str().expect("a message").ends_with("[roles.reader] allows 400ms"), "{error}");
    }
}

#[tokio::test]
async fn a_result_over_the_size_limit_of_its_rule_is_an_error() {
    for (server, legacy) in [("legacy", true), ("legacy", false), ("modern", true), ("modern", false)] {
        let rules = "[roles.reader]\nallow = ['**']\nmax_result = '1MiB'\n[limits.'one/big']\nmax_result = '2KiB'";
        let rig = rig_with(vec![fake("one", server)], rules).await;
        let worker = worker(&rig, Some("reader"), legacy).await;
        assert_eq!(worker.tool("one", "big", json!({"bytes": 1000})).await.text().len(), 1000);
        let error = worker.tool("one", "big", json!({"bytes": 3000})).await.error();
        assert_eq!(error["data"]["code"], "TB0405");
        let message = error["message"].as_str().expect("a message");
        assert!(message.ends_with("[limits.\"one/big\"] allows 2048"), "{message}");
    }
}

/// The call that waits for its client and the request with the client's answer must not deadlock.
#[tokio::test]
async fn a_call_that_waits_for_its_client_passes_its_permit_to_the_follow_up() {
    let rig = rig_with(vec![fake("one", "legacy")], "[roles.reader]\nallow = ['**']\nconcurrency = 1").await;
    let worker = worker(&rig, Some("reader"), false).await;
    let asked = worker.tool("one", "ask", json!({})).await.result();
    assert_eq!(asked["resultType"], "input_required");
    let key = asked["inputRequests"].as_object().expect("requests").keys().next().expect("one").clone();
    let answer = json!({"name": "ask", "arguments": {}, "requestState": asked["requestState"],
        "inputResponses": {key: {"action": "accept", "content": {"name": "x"}}}});
    assert!(worker.rpc("one", "tools/call", answer).await.text().contains("accept"));
    worker.tool("one", "add", json!({"a": 1, "b": 2})).await.text();
}

#[tokio::test]
async fn original_workers_are_subject_to_the_same_rules() {
    let rules = "[roles.reader]\nallow = ['add']\nrate = '2/h'\n[[roles.reader.rules]]\neffect = 'allow'\n\
                 match = ['echo']\nwhen = [{ pointer = '/path', prefix = '/tmp/' }]";
    let (rig, worker) = reader(rules).await;
    rig.manifest(&worker, |manifest| manifest.servers.first().is_some_and(|server| !server.tools.is_empty())).await;
    let client = rig.client(AgentRef::new("old").with_role("reader")).await;
    client.subscribe().await.expect("a mailbox");
    let bus = client.into_multiplexed();
    let ask = async |tool: &str, arguments: &str| {
        let body = Body::of(&json!({"op": "call", "tool": tool, "arguments": arguments})).expect("JSON");
        let message = InboxMessage::new(bus.client().me(), InboxKind::McpRequest, body);
        let mut call = bus.start_call("host", message, TIMEOUT).await.expect("a call");
        match tokio::time::timeout(TIMEOUT, call.next()).await.expect("a reply") {
            Some(CallItem::Reply(reply)) => String::from_utf8(reply.expect("a reply").body.as_bytes().to_vec()),
            other => panic!("{other:?}"),
        }
        .expect("UTF-8")
    };
    for (tool, arguments, expected) in [
        ("whoami", "{}", "not allowed for role 'reader'"),
        ("echo", r#"{"path":"/etc/x"}"#, "not allowed for role 'reader'"),
        ("echo", r#"{"path":"/tmp/x","path":"/etc/x"}"#, "a duplicate key"),
        ("echo", r#"{"path":"/tmp/x"}"#, "success"),
        ("add", r#"{"a":1,"b":2}"#, "success"),
        ("add", r#"{"a":1,"b":2}"#, "[roles.reader] allows 2/h"),
    ] {
        let reply = ask(tool, arguments).await;
        assert!(reply.contains(expected), "{tool} {arguments}: {reply}");
    }
}

/// A call that holds a permit must not wait in session order behind a call that waits for that permit.
#[tokio::test]
async fn calls_of_one_session_do_not_deadlock_on_overlapping_limits() {
    let rules = "[roles.reader]\nallow = ['**']\n[limits.'{add,slow}']\nconcurrency = 1\n\
                 [limits.'{echo,add}']\nconcurrency = 1";
    let (rig, worker) = reader(rules).await;
    let hello = worker.hello.clone();
    let other = rig.worker(AgentRef::new("v").with_role("reader"), hello).await;
    let slow = start_slow(&other).await;
    let add = worker.start("one", "tools/call", json!({"name": "add", "arguments": {"a": 1, "b": 2}})).await;
    let mut echo = worker.start("one", "tools/call", json!({"name": "echo", "arguments": {}})).await;
    assert!(tokio::time::timeout(Duration::from_millis(300), echo.next()).await.is_err(), "echo must wait for add");
    other.cancel("one", &slow.id()).await;
    assert_eq!(finish(add).await.text(), "3");
    finish(echo).await.text();
}

#[tokio::test]
async fn completions_and_task_requests_are_rate_limited() {
    let rules = "[roles.reader]\nallow = ['**']\n[limits.'greet']\nrate = '1/h'\n[limits.'task']\nrate = '2/h'";
    let (_rig, worker) = reader(rules).await;
    let completion = json!({"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "a", "value": ""}});
    worker.rpc("one", "completion/complete", completion.clone()).await;
    assert_eq!(worker.rpc("one", "completion/complete", completion).await.error()["data"]["code"], "TB0417");
    worker.tool("one", "task", json!({"id": "t1"})).await.result();
    worker.rpc("one", "tasks/get", json!({"taskId": "t1"})).await.result();
    assert_eq!(worker.rpc("one", "tasks/get", json!({"taskId": "t1"})).await.error()["data"]["code"], "TB0417");
    // Cancellation is not rate-limited.
    worker.rpc("one", "tasks/cancel", json!({"taskId": "t1"})).await.result();
}
