//! Tasks of the bus, for modern clients.

use crate::support::bus::{FakeBus, echo};
use crate::support::stdio::StdioClient;
use crate::support::{host, modern, server, with_own_tasks};
use crate::tasks::{EXTENSION, absent_host, modern_with_tasks, one_server, view};
use serde_json::{Value, json};
use std::time::Duration;
use toolbus_mcp::{AdminRequest, HostReply, TaskStatus, TaskView, raw};
use toolbus_protocol::ErrorCode;
use toolbus_worker::{StdioOptions, WorkerOptions};

#[tokio::test]
async fn a_modern_call_to_an_absent_host_becomes_a_task() {
    let bus = absent_host();
    let mut client = StdioClient::start(&bus);
    client.send(&modern_with_tasks(1, "server/discover", json!({}))).await;
    assert_eq!(client.next().await["result"]["capabilities"]["extensions"], json!({EXTENSION: {}}));
    client.send(&modern_with_tasks(2, "tools/call", json!({"name": "read"}))).await;
    let created = client.next().await["result"].take();
    assert_eq!((&created["resultType"], &created["status"]), (&json!("task"), &json!("working")));
    assert_eq!((&created["ttlMs"], &created["pollIntervalMs"]), (&json!(86_400_000), &json!(10_000)));
    let message = created["statusMessage"].as_str().unwrap();
    assert!(message.starts_with("queued: host attic has been away since 2026-"), "{message}");
    let detached = bus.detached();
    assert_eq!(created["taskId"], format!("toolbus:attic:{}", detached[0]));

    client.send(&modern_with_tasks(3, "tasks/get", json!({"taskId": created["taskId"]}))).await;
    let got = client.next().await["result"].take();
    assert_eq!((&got["resultType"], &got["status"]), (&json!("complete"), &json!("working")));
    bus.set_hosts(vec![host("attic", vec![server("files", &["read"])])]);
    let call = bus.next_call().await;
    assert!(call.rpc.task.is_some() && call.id == detached[0]);
    client.send(&modern_with_tasks(4, "tasks/get", json!({"taskId": created["taskId"]}))).await;
    let admin = bus.next_admin().await;
    assert_eq!(admin.request, AdminRequest::TaskWait { id: detached[0].clone(), limit_ms: 0 });
    let result = raw(&json!({"resultType": "complete", "content": [], "n": 1.0}));
    admin.reply(&TaskView { result: Some(result), ..view(&detached[0], TaskStatus::Completed) }).await;
    let text = client.next_text().await;
    assert!(text.contains(r#""result":{"content":[],"n":1.0,"resultType":"complete"}"#), "{text}");
    assert!(text.contains(r#""status":"completed""#) && !text.contains("pollIntervalMs"), "{text}");
}

#[tokio::test]
async fn a_modern_client_without_tasks_waits_and_gets_no_task_methods() {
    let bus = absent_host();
    let mut client = StdioClient::start(&bus);
    client.send(&modern(1, "tools/call", json!({"name": "read"}))).await;
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        client.send(&modern(2, method, json!({"taskId": "toolbus:attic:t"}))).await;
        let refused = client.next().await;
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(2), &json!(-32021)));
        assert_eq!(refused["error"]["data"]["requiredCapabilities"], json!({"extensions": {EXTENSION: {}}}));
    }
    bus.set_hosts(vec![host("attic", vec![server("files", &["read"])])]);
    let call = bus.next_call().await;
    assert!(call.rpc.task.is_none());
    call.reply(json!({"here": true})).await;
    assert_eq!(client.next().await["result"], json!({"here": true}));
}

#[tokio::test]
async fn a_modern_client_without_tasks_is_refused_whatever_the_task_is_called() {
    let merged = FakeBus::new(vec![host("attic", vec![server("files", &["read"]), server("time", &["now"])])]);
    for bus in [one_server(), merged] {
        bus.serve(echo);
        let mut client = StdioClient::start(&bus);
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            for params in [json!({"taskId": "none"}), json!({"taskId": 7}), json!({})] {
                client.send(&modern(1, method, params)).await;
                let refused = client.next().await;
                assert_eq!(refused["error"]["code"], -32021, "{method} {refused}");
            }
        }
        client.send(&modern_with_tasks(2, "tasks/get", json!({"taskId": "none"}))).await;
        assert_ne!(client.next().await["error"]["code"], -32021);
    }
    let own = FakeBus::new(vec![host("attic", vec![with_own_tasks(server("files", &["read"]))])]);
    own.serve(echo);
    let mut client = StdioClient::start(&own);
    client.send(&modern(1, "tasks/get", json!({"taskId": "none"}))).await;
    assert_eq!(client.next().await["result"]["server"], "files", "a server with tasks of its own decides itself");
}

#[tokio::test]
async fn a_modern_cancel_and_update_return_an_empty_result() {
    let bus = one_server();
    let mut client = StdioClient::start(&bus);
    let empty = json!({"resultType": "complete"});
    client.send(&modern_with_tasks(1, "tasks/cancel", json!({"taskId": "toolbus:attic:t"}))).await;
    bus.next_admin().await.reply(&view("t", TaskStatus::Cancelled)).await;
    assert_eq!(client.next().await["result"], empty);
    client.send(&modern_with_tasks(2, "tasks/cancel", json!({"taskId": "toolbus:attic:t"}))).await;
    bus.next_admin().await.refuse(ErrorCode::CallEnded).await;
    assert_eq!(client.next().await["result"], empty);
    client
        .send(&modern_with_tasks(3, "tasks/update", json!({"taskId": "toolbus:attic:t", "inputResponses": {}})))
        .await;
    bus.next_admin().await.reply(&view("t", TaskStatus::Working)).await;
    assert_eq!(client.next().await["result"], empty);
    client
        .send(&modern_with_tasks(4, "tasks/update", json!({"taskId": "toolbus:attic:u", "inputResponses": {}})))
        .await;
    bus.next_admin().await.refuse(ErrorCode::UnknownTask).await;
    assert_eq!(client.next().await["error"]["code"], -32602);
}

#[tokio::test]
async fn a_modern_call_becomes_a_task_after_task_after() {
    let bus = one_server();
    let options = WorkerOptions { task_after: Some(Duration::from_secs(2)), ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    let result = raw(&json!({"content": []}));
    for (ended, expected) in [(true, Value::Null), (false, json!("task"))] {
        client.send(&modern_with_tasks(1, "tools/call", json!({"name": "read"}))).await;
        let call = bus.next_call().await;
        call.finish(HostReply::Task(view(&call.id, TaskStatus::Working).into())).await;
        let admin = bus.next_admin().await;
        assert_eq!(admin.request, AdminRequest::TaskWait { id: call.id.clone(), limit_ms: 2000 });
        let done = TaskView { result: Some(result.clone()), ..view(&call.id, TaskStatus::Completed) };
        admin.reply(&if ended { done } else { view(&call.id, TaskStatus::Working) }).await;
        assert_eq!(client.next().await["result"]["resultType"], expected);
    }
    // A repetition with the client's answers is a follow-up of the earlier call.
    client
        .send(&modern_with_tasks(2, "tools/call", json!({"name": "read", "requestState": "s", "inputResponses": {}})))
        .await;
    assert!(bus.next_call().await.rpc.task.is_none());
}

#[tokio::test]
async fn another_worker_of_the_agent_finds_a_queued_task() {
    let bus = absent_host();
    let mut client = StdioClient::start(&bus);
    client.send(&modern_with_tasks(1, "tools/call", json!({"name": "read"}))).await;
    let id = client.next().await["result"]["taskId"].take();
    let mut other = StdioClient::start(&bus);
    other.send(&modern_with_tasks(1, "tasks/get", json!({"taskId": id}))).await;
    let got = other.next().await["result"].take();
    assert_eq!(got["status"], "working");
    assert!(got["statusMessage"].as_str().unwrap().starts_with("queued: host attic has been away"), "{got}");
}

#[tokio::test]
async fn a_fail_fast_call_never_becomes_a_task() {
    let bus = absent_host();
    let options = WorkerOptions { fail_fast: true, ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    for (id, method, params) in
        [(1, "tools/call", json!({"name": "read"})), (2, "tasks/get", json!({"taskId": "toolbus:attic:t"}))]
    {
        client.send(&modern_with_tasks(id, method, params)).await;
        assert_eq!(client.next().await["error"]["data"]["code"], "TB0427", "{method}");
    }
}
