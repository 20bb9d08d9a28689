//! Tasks whose hosts are away, slow or at their limit: clients get only states that are certain.

use crate::support::bus::FakeBus;
use crate::support::stdio::StdioClient;
use crate::support::{away, host, initialize, request, server, with_own_tasks};
use crate::tasks::{absent_host, legacy_client, modern_with_tasks, one_server};
use serde_json::json;
use std::time::Duration;
use toolbus_mcp::{AdminRequest, HostReply, HostRequest, RpcError, TaskList};
use toolbus_worker::{StdioOptions, WorkerOptions};

#[tokio::test]
async fn a_queued_task_is_withdrawn_and_stays_cancelled() {
    let bus = absent_host();
    let mut client = StdioClient::start(&bus);
    client.send(&modern_with_tasks(1, "tools/call", json!({"name": "read"}))).await;
    let id = client.next().await["result"]["taskId"].take();
    client.send(&modern_with_tasks(2, "tasks/cancel", json!({"taskId": id}))).await;
    assert_eq!(client.next().await["result"], json!({"resultType": "complete"}));
    assert_eq!(bus.waiting(), 0, "it is no longer queued");
    for _ in 0..2 {
        client.send(&modern_with_tasks(3, "tasks/get", json!({"taskId": id}))).await;
        assert_eq!(client.next().await["result"]["status"], "cancelled");
        bus.set_hosts(vec![host("attic", vec![server("files", &["read"])])]);
    }
}

#[tokio::test]
async fn a_possibly_delivered_task_is_not_reported_as_cancelled_or_queued() {
    let bus = absent_host();
    let (mut client, _) = StdioClient::initialized(&bus).await;
    client.send(&request(1, "tools/call", json!({"name": "read", "task": {}}))).await;
    let id = client.next().await["result"]["task"]["taskId"].take();
    bus.mark_first_delivered();
    client.send(&request(2, "tasks/get", json!({"taskId": id}))).await;
    assert_eq!(client.next().await["error"]["data"]["code"], "TB0401");
    client.send(&request(3, "tasks/cancel", json!({"taskId": id}))).await;
    let answer = client.next().await["result"].take();
    assert_eq!(answer["status"], "working");
    assert!(answer["statusMessage"].as_str().unwrap().starts_with("cancel requested"), "{answer}");
    let detached = bus.detached()[0].clone();
    bus.sent(|sent| matches!(sent, HostRequest::Admin(AdminRequest::TaskCancel { id }) if *id == detached)).await;
    // The host received the task and disconnected again.
    bus.remove_first_waiting();
    for (id, method) in ["tasks/get", "tasks/cancel"].into_iter().enumerate() {
        client.send(&request(id, method, json!({"taskId": format!("toolbus:attic:{detached}")}))).await;
        assert_eq!(client.next().await["error"]["data"]["code"], "TB0401", "{method}");
    }
    client.send(&request(7, "tasks/list", json!({}))).await;
    assert_eq!(client.next().await["result"]["tasks"], json!([]));
}

#[tokio::test]
async fn a_call_beyond_the_task_limit_runs_as_a_plain_call() {
    let bus = one_server();
    let options = WorkerOptions { task_after: Some(Duration::from_secs(2)), ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    client.send(&modern_with_tasks(1, "tools/call", json!({"name": "read", "arguments": {"a": 1}}))).await;
    let call = bus.next_call().await;
    assert_eq!(call.rpc.task.unwrap().ttl_ms, Some(4_200_000), "the call deadline plus ten minutes");
    call.finish(HostReply::Rpc(RpcError::bus("TB0428", "full", "wait").into())).await;
    let again = bus.next_call().await;
    assert!(again.rpc.task.is_none());
    assert_eq!(again.params()["arguments"], json!({"a": 1}));
    again.reply(json!({"content": []})).await;
    assert_eq!(client.next().await["result"], json!({"content": []}));
}

#[tokio::test]
async fn calls_of_clients_that_accept_client_requests_do_not_become_tasks() {
    let bus = one_server();
    let options = WorkerOptions { task_after: Some(Duration::from_secs(2)), ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    for capability in ["elicitation", "sampling"] {
        let mut call = modern_with_tasks(1, "tools/call", json!({"name": "read"}));
        call["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"][capability] = json!({});
        client.send(&call).await;
        assert!(bus.next_call().await.rpc.task.is_none(), "{capability}");
    }
}

#[tokio::test]
async fn tasks_of_a_bus_behind_the_server_are_forwarded_to_it() {
    let bus = FakeBus::new(vec![host("attic", vec![with_own_tasks(server("files", &["read"]))])]);
    let mut client = legacy_client(&bus).await;
    for (id, task) in ["toolbus:elsewhere:t", "toolbus:attic:t"].into_iter().enumerate() {
        client.send(&request(id, "tasks/get", json!({"taskId": task}))).await;
        let call = bus.next_call().await;
        assert_eq!((call.rpc.method.as_str(), call.params()), ("tasks/get", json!({"taskId": task})));
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_host_is_retried_on_the_next_page_of_tasks() {
    let attic = host("attic", vec![server("files", &["read"])]);
    let cellar = host("cellar", vec![server("wine", &["pour"])]);
    let bus = FakeBus::new(vec![attic, cellar]);
    let options = WorkerOptions { gather_patience: Duration::from_secs(1), ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    client.send(&initialize(0)).await;
    client.next().await;
    client.send(&request(1, "tasks/list", json!({}))).await;
    let mut slow = Vec::new();
    for _ in 0..2 {
        let admin = bus.next_admin().await;
        match admin.host.as_str() {
            "attic" => admin.reply(&TaskList::default()).await,
            _ => slow.push(admin),
        }
    }
    let list = client.next().await["result"].take();
    assert!(list["nextCursor"].is_string(), "{list}");
    client.send(&request(2, "tasks/list", json!({"cursor": list["nextCursor"]}))).await;
    let admin = bus.next_admin().await;
    assert_eq!((admin.host.as_str(), &admin.request), ("cellar", &AdminRequest::TaskList { after: None }));
    // A host that never answers does not produce an endless sequence of pages.
    assert_eq!(client.next().await["error"]["data"]["code"], "TB0407");
}

#[tokio::test(start_paused = true)]
async fn a_task_with_a_short_ttl_outlives_a_slow_acceptance() {
    let bus = one_server();
    let mut client = legacy_client(&bus).await;
    client.send(&request(1, "tools/call", json!({"name": "read", "task": {"ttl": 1000}}))).await;
    let call = bus.next_call().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    bus.set_hosts(vec![away(host("attic", vec![server("files", &["read"])]))]);
    let task = loop {
        let mut next = client.next().await;
        if next["id"] == 1 {
            break next["result"]["task"].take();
        }
    };
    assert_eq!((&task["taskId"], &task["ttl"]), (&json!(format!("toolbus:attic:{}", call.id)), &json!(1000)));
}
