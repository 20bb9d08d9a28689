//! Tasks whose hosts are away, slow or full, and what clients are told of them: only what is certain.

use crate::support::bus::FakeBus;
use crate::support::stdio::StdioClient;
use crate::support::{away, host, initialize, own_tasks, request, server};
use crate::tasks::{absent, knowing, legacy, one_server};
use serde_json::json;
use std::time::Duration;
use toolbus_mcp::{AdminRequest, HostReply, HostRequest, RpcError, TaskList};
use toolbus_worker::{StdioOptions, WorkerOptions};

#[tokio::test]
async fn a_task_whose_host_is_away_is_taken_back_and_stays_cancelled() {
    let bus = absent();
    let mut client = StdioClient::start(&bus);
    client.send(&knowing(1, "tools/call", json!({"name": "read"}))).await;
    let id = client.next().await["result"]["taskId"].take();
    client.send(&knowing(2, "tasks/cancel", json!({"taskId": id}))).await;
    assert_eq!(client.next().await["result"], json!({"resultType": "complete"}));
    assert_eq!(bus.waiting(), 0, "the broker has it no more");
    for _ in 0..2 {
        client.send(&knowing(3, "tasks/get", json!({"taskId": id}))).await;
        assert_eq!(client.next().await["result"]["status"], "cancelled");
        bus.set_hosts(vec![host("attic", vec![server("files", &["read"])])]);
    }
}

#[tokio::test]
async fn a_task_that_its_host_may_have_is_not_said_to_be_cancelled_or_queued() {
    let bus = absent();
    let (mut client, _) = StdioClient::initialized(&bus).await;
    client.send(&request(1, "tools/call", json!({"name": "read", "task": {}}))).await;
    let id = client.next().await["result"]["task"]["taskId"].take();
    bus.touch_first_waiting();
    client.send(&request(2, "tasks/get", json!({"taskId": id}))).await;
    assert_eq!(client.next().await["error"]["data"]["code"], "TB0401");
    client.send(&request(3, "tasks/cancel", json!({"taskId": id}))).await;
    let answer = client.next().await["result"].take();
    assert_eq!(answer["status"], "working");
    assert!(answer["statusMessage"].as_str().unwrap().starts_with("cancel requested"), "{answer}");
    let left = bus.left()[0].clone();
    bus.sent(|sent| matches!(sent, HostRequest::Admin(AdminRequest::TaskCancel { id }) if *id == left)).await;
    // The host got it and left again.
    bus.forget_first_waiting();
    for (id, method) in ["tasks/get", "tasks/cancel"].into_iter().enumerate() {
        client.send(&request(id, method, json!({"taskId": format!("toolbus:attic:{left}")}))).await;
        assert_eq!(client.next().await["error"]["data"]["code"], "TB0401", "{method}");
    }
    client.send(&request(7, "tasks/list", json!({}))).await;
    assert_eq!(client.next().await["result"]["tasks"], json!([]));
}

#[tokio::test]
async fn a_call_for_which_there_is_no_room_as_a_task_is_an_ordinary_one() {
    let bus = one_server();
    let options = WorkerOptions { task_after: Some(Duration::from_secs(2)), ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    client.send(&knowing(1, "tools/call", json!({"name": "read", "arguments": {"a": 1}}))).await;
    let call = bus.next_call().await;
    assert_eq!(call.rpc.task.unwrap().ttl_ms, Some(4_200_000), "the deadline of a call and ten minutes");
    call.finish(HostReply::Rpc(RpcError::bus("TB0428", "full", "wait").into())).await;
    let again = bus.next_call().await;
    assert!(again.rpc.task.is_none());
    assert_eq!(again.params()["arguments"], json!({"a": 1}));
    again.reply(json!({"content": []})).await;
    assert_eq!(client.next().await["result"], json!({"content": []}));
}

#[tokio::test]
async fn whoever_can_be_asked_waits_for_a_host_that_is_there() {
    let bus = one_server();
    let options = WorkerOptions { task_after: Some(Duration::from_secs(2)), ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    for capability in ["elicitation", "sampling"] {
        let mut call = knowing(1, "tools/call", json!({"name": "read"}));
        call["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"][capability] = json!({});
        client.send(&call).await;
        assert!(bus.next_call().await.rpc.task.is_none(), "{capability}");
    }
}

#[tokio::test]
async fn tasks_of_a_bus_behind_the_server_are_asked_of_the_server() {
    let bus = FakeBus::new(vec![host("attic", vec![own_tasks(server("files", &["read"]))])]);
    let mut client = legacy(&bus).await;
    for (id, task) in ["toolbus:elsewhere:t", "toolbus:attic:t"].into_iter().enumerate() {
        client.send(&request(id, "tasks/get", json!({"taskId": task}))).await;
        let call = bus.next_call().await;
        assert_eq!((call.rpc.method.as_str(), call.params()), ("tasks/get", json!({"taskId": task})));
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_host_keeps_its_place_in_the_list_of_tasks() {
    let attic = host("attic", vec![server("files", &["read"])]);
    let cellar = host("cellar", vec![server("wine", &["pour"])]);
    let bus = FakeBus::new(vec![attic, cellar]);
    let options = WorkerOptions { list_patience: Duration::from_secs(1), ..WorkerOptions::default() };
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
    // A host that never answers is no page without end.
    assert_eq!(client.next().await["error"]["data"]["code"], "TB0407");
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_slow_to_say_yes_has_a_task_however_short_its_life() {
    let bus = one_server();
    let mut client = legacy(&bus).await;
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
