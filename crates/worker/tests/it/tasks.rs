//! Tasks of the bus, for legacy clients; and what the tests of tasks in both eras share.

use crate::support::bus::{AdminCall, FakeBus, HostCall, echo};
use crate::support::stdio::StdioClient;
use crate::support::{away, host, initialize, item, modern, request, server, with_own_tasks};
use serde_json::{Value, json};
use std::sync::Arc;
use toolbus_mcp::{AdminRequest, HostReply, ListKind, RpcError, TaskList, TaskStatus, TaskView, raw};
use toolbus_protocol::ErrorCode;

pub const EXTENSION: &str = "io.modelcontextprotocol/tasks";

pub fn one_server() -> Arc<FakeBus> {
    FakeBus::new(vec![host("attic", vec![server("files", &["read"])])])
}

pub fn absent_host() -> Arc<FakeBus> {
    FakeBus::new(vec![away(host("attic", vec![server("files", &["read"])]))])
}

pub fn view(id: &str, status: TaskStatus) -> TaskView {
    TaskView {
        id: id.into(),
        agent: "w".into(),
        server: "files".into(),
        tool: "read".into(),
        status,
        message: None,
        created_ms: 1_790_000_000_000,
        updated_ms: 1_790_000_001_000,
        ttl_ms: 60_000,
        tool_failed: false,
        result: None,
        error: None,
    }
}

/// A modern request of a client that declares tasks.
pub fn modern_with_tasks(id: u64, method: &str, params: Value) -> Value {
    let mut request = modern(id, method, params);
    request["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({"extensions": {EXTENSION: {}}});
    request
}

/// An initialized legacy client.
pub async fn legacy_client(bus: &Arc<FakeBus>) -> StdioClient {
    let mut client = StdioClient::start(bus);
    initialize_client(bus, &mut client, json!({})).await;
    client
}

/// Sends `initialize` and returns the result.
async fn initialize_client(bus: &Arc<FakeBus>, client: &mut StdioClient, capabilities: Value) -> Value {
    let mut initialize = initialize(0);
    initialize["params"]["capabilities"] = capabilities;
    client.send(&initialize).await;
    let call = bus.next_call().await;
    call.reply(echo(&call).unwrap()).await;
    client.next().await["result"].take()
}

async fn create_task(bus: &Arc<FakeBus>, client: &mut StdioClient) -> (HostCall, Value) {
    client
        .send(&request(1, "tools/call", json!({"name": "read", "arguments": {"a": 1}, "task": {"ttl": 60000}})))
        .await;
    let call = bus.next_call().await;
    call.finish(HostReply::Task(view(&call.id, TaskStatus::Working).into())).await;
    let answer = client.next().await;
    (call, answer)
}

fn check_id(admin: &AdminCall, expected: &str) {
    let (AdminRequest::TaskGet { id } | AdminRequest::TaskWait { id, .. } | AdminRequest::TaskCancel { id }) =
        &admin.request
    else {
        panic!("not a query about a single task")
    };
    assert_eq!((admin.host.as_str(), id.as_str()), ("attic", expected));
}

#[tokio::test]
async fn a_legacy_call_with_a_task_returns_the_accepted_task() {
    let bus = one_server();
    let mut client = legacy_client(&bus).await;
    let (call, answer) = create_task(&bus, &mut client).await;
    assert_eq!(call.rpc.task.unwrap().ttl_ms, Some(60_000));
    assert_eq!(call.params(), json!({"name": "read", "arguments": {"a": 1}}));
    let expected = json!({"taskId": format!("toolbus:attic:{}", call.id), "status": "working", "ttl": 60000,
        "createdAt": "2026-09-21T14:13:20Z", "lastUpdatedAt": "2026-09-21T14:13:21Z", "pollInterval": 1000});
    assert_eq!(answer["result"], json!({"task": expected}));
}

#[tokio::test]
async fn a_legacy_client_can_get_await_and_cancel_a_task() {
    let bus = one_server();
    let mut client = legacy_client(&bus).await;
    client.send(&request(1, "tasks/get", json!({"taskId": "toolbus:attic:t"}))).await;
    let admin = bus.next_admin().await;
    check_id(&admin, "t");
    admin.reply(&TaskView { tool_failed: true, ..view("t", TaskStatus::Completed) }).await;
    let got = client.next().await;
    assert_eq!((&got["result"]["status"], &got["result"]["taskId"]), (&json!("failed"), &json!("toolbus:attic:t")));

    client.send(&request(2, "tasks/result", json!({"taskId": "toolbus:attic:t"}))).await;
    bus.next_admin().await.reply(&view("t", TaskStatus::Working)).await;
    let result = json!({"content": [], "_meta": {"own": 1}});
    let ended = TaskView { result: Some(raw(&result)), ..view("t", TaskStatus::Completed) };
    bus.next_admin().await.reply(&ended).await;
    let related = json!({"own": 1, "io.modelcontextprotocol/related-task": {"taskId": "toolbus:attic:t"}});
    assert_eq!(client.next().await["result"], json!({"content": [], "_meta": related}));

    client.send(&request(3, "tasks/cancel", json!({"taskId": "toolbus:attic:t"}))).await;
    let admin = bus.next_admin().await;
    assert!(matches!(&admin.request, AdminRequest::TaskCancel { id } if id == "t"));
    admin.reply(&view("t", TaskStatus::Cancelled)).await;
    assert_eq!(client.next().await["result"]["status"], "cancelled");
    client.send(&request(4, "tasks/cancel", json!({"taskId": "toolbus:attic:t"}))).await;
    bus.next_admin().await.refuse(ErrorCode::CallEnded).await;
    let refused = client.next().await;
    assert_eq!((&refused["error"]["code"], &refused["error"]["data"]["code"]), (&json!(-32602), &json!("TB0424")));
}

#[tokio::test]
async fn a_failed_task_returns_its_error_and_an_unknown_one_invalid_params() {
    let bus = one_server();
    let mut client = legacy_client(&bus).await;
    client.send(&request(1, "tasks/result", json!({"taskId": "toolbus:attic:t"}))).await;
    let error = raw(&json!({"code": -1, "message": "no", "data": 1.5}));
    bus.next_admin().await.reply(&TaskView { error: Some(error), ..view("t", TaskStatus::Failed) }).await;
    assert_eq!(client.next().await["error"], json!({"code": -1, "message": "no", "data": 1.5}));
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        client.send(&request(2, method, json!({"taskId": "toolbus:attic:u"}))).await;
        bus.next_admin().await.refuse(ErrorCode::UnknownTask).await;
        assert_eq!(client.next().await["error"]["code"], -32602, "{method}");
        client.send(&request(3, method, json!({"taskId": "toolbus:nowhere:u"}))).await;
        assert_eq!(client.next().await["error"]["data"]["code"], "TB0423", "{method}");
    }
}

#[tokio::test]
async fn a_cancelled_tasks_result_stops_waiting_at_the_host() {
    let bus = one_server();
    let mut client = legacy_client(&bus).await;
    client.send(&request(1, "tasks/result", json!({"taskId": "toolbus:attic:t"}))).await;
    let admin = bus.next_admin().await;
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})).await;
    admin.dropped().await;
}

#[tokio::test]
async fn foreign_task_ids_are_forwarded_to_the_server() {
    let bus = one_server();
    let mut client = legacy_client(&bus).await;
    client.send(&request(1, "tasks/get", json!({"taskId": "own-7"}))).await;
    let call = bus.next_call().await;
    assert_eq!((call.rpc.method.as_str(), call.params()), ("tasks/get", json!({"taskId": "own-7"})));
}

#[tokio::test]
async fn a_rejected_task_returns_the_error() {
    let bus = one_server();
    let mut client = legacy_client(&bus).await;
    client.send(&request(1, "tools/call", json!({"name": "read", "task": {}}))).await;
    let call = bus.next_call().await;
    call.finish(HostReply::Rpc(RpcError::bus("TB0403", "no", "ask").into())).await;
    assert_eq!(client.next().await["error"]["data"]["code"], "TB0403");
    client.send(&request(2, "tools/call", json!({"name": "read", "task": {"ttl": "long"}}))).await;
    assert_eq!(client.next().await["error"]["code"], -32602);
}

#[tokio::test]
async fn a_server_with_tasks_of_its_own_gets_task_requests_unchanged() {
    let bus = FakeBus::new(vec![host("attic", vec![with_own_tasks(server("files", &["read"]))])]);
    let mut client = legacy_client(&bus).await;
    client.send(&request(1, "tools/call", json!({"name": "read", "task": {"ttl": 5}}))).await;
    let call = bus.next_call().await;
    assert!(call.rpc.task.is_none());
    assert_eq!(call.params(), json!({"name": "read", "task": {"ttl": 5}}));
    client.send(&request(2, "tasks/list", json!({}))).await;
    assert_eq!(bus.next_call().await.rpc.method, "tasks/list");
}

#[tokio::test]
async fn a_tools_task_support_is_respected() {
    let mut files = server("files", &[]);
    let tool = |name: &str, support: &str| item(json!({"name": name, "execution": {"taskSupport": support}}));
    *files.items_mut(ListKind::Tools) = vec![tool("never", "forbidden"), tool("always", "required")];
    let bus = FakeBus::new(vec![host("attic", vec![files])]);
    let mut client = legacy_client(&bus).await;
    client.send(&request(1, "tools/call", json!({"name": "never", "task": {}}))).await;
    assert_eq!(client.next().await["error"]["code"], -32601);
    client.send(&request(2, "tools/call", json!({"name": "always", "task": {}}))).await;
    assert!(bus.next_call().await.rpc.task.is_none());
}

#[tokio::test]
async fn tasks_are_offered_only_in_the_latest_legacy_version() {
    let bus = absent_host();
    let (mut client, response) = StdioClient::initialized(&bus).await;
    let tasks = json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
    assert_eq!(response["result"]["capabilities"]["tasks"], tasks);
    let mut older = initialize(1);
    older["params"]["protocolVersion"] = "2025-06-18".into();
    client.send(&older).await;
    assert_eq!(client.next().await["result"]["capabilities"].get("tasks"), None);
    // In a version without tasks, `task` is ignored.
    bus.set_hosts(vec![host("attic", vec![server("files", &["read"])])]);
    client.send(&request(2, "tools/call", json!({"name": "read", "task": {"ttl": 5}}))).await;
    assert!(bus.next_call().await.rpc.task.is_none());
}

#[tokio::test]
async fn tools_are_marked_only_for_clients_that_declare_tasks() {
    for (capabilities, marked) in [(json!({}), false), (json!({"tasks": {"cancel": {}}}), true)] {
        let bus = one_server();
        let mut client = StdioClient::start(&bus);
        let response = initialize_client(&bus, &mut client, capabilities).await;
        assert!(response["capabilities"]["tasks"].is_object());
        client.send(&request(1, "tools/list", json!({}))).await;
        bus.next_call().await.reply(json!({"tools": [{"name": "read"}], "nextCursor": "c"})).await;
        let expected = match marked {
            true => json!({"name": "read", "execution": {"taskSupport": "optional"}}),
            false => json!({"name": "read"}),
        };
        assert_eq!(client.next().await["result"], json!({"tools": [expected], "nextCursor": "c"}));
    }
}

#[tokio::test]
async fn tasks_of_all_hosts_are_listed_page_by_page() {
    let attic = host("attic", vec![server("files", &["read"])]);
    let cellar = host("cellar", vec![with_own_tasks(server("wine", &["pour"]))]);
    let gone = away(host("gone", vec![server("lost", &["find"])]));
    let bus = FakeBus::new(vec![attic, cellar, gone]);
    let (mut client, response) = StdioClient::initialized(&bus).await;
    assert!(response["result"]["capabilities"]["tasks"]["list"].is_object());
    client.send(&request(1, "tasks/list", json!({}))).await;
    let own = bus.next_call().await;
    assert_eq!((own.server(), own.rpc.method.as_str()), ("wine", "tasks/list"));
    own.reply(json!({"tasks": [{"taskId": "w1", "status": "working"}]})).await;
    for _ in 0..2 {
        let admin = bus.next_admin().await;
        assert_eq!(admin.request, AdminRequest::TaskList { after: None });
        let next = (admin.host == "attic").then(|| "a1".to_owned());
        let tasks = vec![view(&format!("{}-1", admin.host), TaskStatus::Working)];
        admin.reply(&TaskList { tasks, next }).await;
    }
    let list = client.next().await;
    let ids = |list: &Value| -> Vec<String> {
        let tasks = list["result"]["tasks"].as_array().unwrap();
        tasks.iter().map(|task| task["taskId"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&list), ["toolbus:attic:attic-1", "toolbus:cellar:cellar-1", "w1"]);
    client.send(&request(2, "tasks/list", json!({"cursor": list["result"]["nextCursor"]}))).await;
    let admin = bus.next_admin().await;
    assert_eq!((admin.host.as_str(), &admin.request), ("attic", &AdminRequest::TaskList { after: Some("a1".into()) }));
    admin.reply(&TaskList { tasks: vec![view("a2", TaskStatus::Completed)], next: None }).await;
    let rest = client.next().await;
    assert_eq!((ids(&rest), rest["result"].get("nextCursor")), (vec!["toolbus:attic:a2".to_owned()], None));
    client.send(&request(3, "tasks/list", json!({"cursor": "nonsense"}))).await;
    assert_eq!(client.next().await["error"]["code"], -32602);
}

#[tokio::test]
async fn a_task_stays_queued_if_its_host_disconnects_before_accepting_it() {
    let bus = one_server();
    let mut client = legacy_client(&bus).await;
    client.send(&request(1, "tools/call", json!({"name": "read", "task": {}}))).await;
    let call = bus.next_call().await;
    bus.set_hosts(vec![away(host("attic", vec![server("files", &["read"])]))]);
    let answer = loop {
        let next = client.next().await;
        if next["id"] == 1 {
            break next;
        }
    };
    assert_eq!(answer["result"]["task"]["taskId"], format!("toolbus:attic:{}", call.id));
    assert_eq!(bus.detached(), std::slice::from_ref(&call.id));
}
