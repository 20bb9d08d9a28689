//! Several servers behind one worker: lists are merged, requests are routed by name.

use crate::support::bus::{FakeBus, HostCall, echo};
use crate::support::stdio::StdioClient;
use crate::support::{away, eventually, host, initialize, modern, request, server, with, with_own_tasks};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use toolbus_mcp::{HostManifest, HostRequest, ListKind, RpcError, ServerManifest};
use toolbus_worker::{StdioOptions, WorkerOptions};

fn three_servers() -> Arc<FakeBus> {
    let notes = with(server("notes", &["read", "note"]), ListKind::Prompts, &[json!({"name": "sum"})]);
    let notes = with(notes, ListKind::Resources, &[json!({"uri": "note://1", "name": "one"})]);
    let files = with(
        server("files", &["read", "write"]),
        ListKind::ResourceTemplates,
        &[json!({"uriTemplate": "file:///{path}"})],
    );
    FakeBus::new(vec![host("b-host", vec![files, server("time", &["now"])]), host("a-host", vec![notes])])
}

/// Lists the tools with a page size of one, and echoes any other request.
fn paged(call: &HostCall) -> Result<Value, RpcError> {
    if call.rpc.method != "tools/list" {
        return echo(call);
    }
    let names: &[&str] = match call.server() {
        "files" => &["read", "write"],
        "time" => &["now"],
        _ => &["read", "note"],
    };
    let at: usize = call.params()["cursor"].as_str().map_or(0, |cursor| cursor.parse().unwrap());
    let mut page = json!({"tools": [{"name": names[at], "from": call.server(), "n": 1.0}]});
    if at + 1 < names.len() {
        page["nextCursor"] = (at + 1).to_string().into();
    }
    Ok(page)
}

fn names(list: &Value) -> Vec<String> {
    let tools = list["result"]["tools"].as_array().unwrap_or_else(|| panic!("{list}"));
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn initialize_merges_the_capabilities_and_instructions_of_all_servers() {
    let bus = three_servers();
    let (_client, response) = StdioClient::initialized(&bus).await;
    let result = &response["result"];
    assert_eq!(result["serverInfo"]["name"], "toolbus");
    assert_eq!(result["protocolVersion"], "2025-11-25");
    assert_eq!(result["capabilities"]["resources"], json!({"listChanged": true, "subscribe": true}));
    assert_eq!(result["capabilities"]["logging"], json!({}));
    assert_eq!(
        result["instructions"],
        "# files\n\nhow to use files\n\n# time\n\nhow to use time\n\n# notes\n\nhow to use notes"
    );
}

#[tokio::test]
async fn lists_are_merged_page_by_page_and_the_first_host_owns_a_name() {
    let bus = three_servers();
    bus.serve(paged);
    let (mut client, _) = StdioClient::initialized(&bus).await;
    client.send(&request(1, "tools/list", json!({}))).await;
    let first = client.next().await;
    // The broker lists b-host first, so it owns the name "read", and that of a-host is hidden.
    assert_eq!(names(&first), ["read", "now"]);
    assert_eq!(first["result"]["tools"][0]["from"], "files");
    let cursor = first["result"]["nextCursor"].as_str().unwrap();
    client.send(&request(2, "tools/list", json!({"cursor": cursor}))).await;
    let second = client.next().await;
    assert_eq!(names(&second), ["write", "note"]);
    assert_eq!(second["result"].get("nextCursor"), None);
    client.send(&request(3, "tools/list", json!({"cursor": "made up"}))).await;
    assert_eq!(client.next().await["error"]["code"], -32602);
}

#[tokio::test]
async fn a_merged_modern_list_has_the_shortest_ttl() {
    let bus = three_servers();
    bus.serve(|call| {
        let ttl = if call.server() == "time" { 100 } else { 900 };
        Ok(json!({"tools": [], "resultType": "complete", "ttlMs": ttl, "cacheScope": "public"}))
    });
    let mut client = StdioClient::start(&bus);
    client.send(&modern(1, "tools/list", json!({}))).await;
    let result = client.next().await["result"].clone();
    assert_eq!(
        (&result["ttlMs"], &result["cacheScope"], &result["resultType"]),
        (&json!(100), &json!("private"), &json!("complete"))
    );
}

#[tokio::test]
async fn names_and_uris_are_routed_to_their_server() {
    let bus = three_servers();
    bus.serve(echo);
    let (mut client, _) = StdioClient::initialized(&bus).await;
    let mut check = async |method: &str, params: Value, server: &str| {
        client.send(&request(1, method, params)).await;
        assert_eq!(client.next().await["result"]["server"], server, "{method}");
    };
    check("tools/call", json!({"name": "read"}), "files").await;
    check("tools/call", json!({"name": "note"}), "notes").await;
    check("tools/call", json!({"name": "now"}), "time").await;
    check("prompts/get", json!({"name": "sum"}), "notes").await;
    check("resources/read", json!({"uri": "note://1"}), "notes").await;
    check("resources/read", json!({"uri": "file:///etc/motd"}), "files").await;
    check("resources/subscribe", json!({"uri": "note://2"}), "notes").await;
    check("completion/complete", json!({"ref": {"type": "ref/prompt", "name": "sum"}}), "notes").await;
    check("completion/complete", json!({"ref": {"type": "ref/resource", "uri": "file:///{path}"}}), "files").await;
}

#[tokio::test]
async fn unknown_names_and_methods_get_precise_errors() {
    let bus = three_servers();
    bus.serve(echo);
    let (mut client, _) = StdioClient::initialized(&bus).await;
    let mut check = async |method: &str, params: Value, code: i64| {
        client.send(&request(1, method, params)).await;
        let answer = client.next().await;
        assert_eq!(answer["error"]["code"], code, "{answer}");
    };
    check("tools/call", json!({"name": "nothing"}), -32602).await;
    check("tools/call", json!({"name": 7}), -32602).await;
    check("tools/call", json!({}), -32602).await;
    check("resources/read", json!({"uri": "ftp://x"}), -32002).await;
    check("tasks/get", json!({"taskId": "none"}), -32602).await;
    check("vendor/special", json!({}), -32601).await;
    client.send(&modern(2, "resources/read", json!({"uri": "ftp://x"}))).await;
    assert_eq!(client.next().await["error"]["code"], -32602);
}

#[tokio::test]
async fn tools_in_no_manifest_are_routed_once_they_were_listed() {
    let bus = three_servers();
    bus.serve(|call| match call.rpc.method.as_str() {
        "tools/list" if call.server() == "time" => Ok(json!({"tools": [{"name": "secret"}]})),
        "tools/list" => Ok(json!({"tools": []})),
        _ => echo(call),
    });
    let (mut client, _) = StdioClient::initialized(&bus).await;
    client.send(&request(1, "tools/list", json!({}))).await;
    assert_eq!(names(&client.next().await), ["secret"]);
    client.send(&request(2, "tools/call", json!({"name": "secret"}))).await;
    assert_eq!(client.next().await["result"]["server"], "time");
}

#[tokio::test]
async fn names_that_the_broker_holds_back_are_neither_listed_nor_called() {
    let limited = |held_back: &[&str], listed_only| {
        let mut host = host("limited", vec![server("time", &["now"])]);
        let held_back = held_back.iter().map(|name| (*name).to_owned()).collect();
        host.manifest = Arc::new(HostManifest { held_back, listed_only, ..(*host.manifest).clone() });
        FakeBus::new(vec![host])
    };
    for (bus, expected) in [(limited(&["echo"], false), vec!["now", "new"]), (limited(&[], true), vec!["now"])] {
        bus.serve(|call| match call.rpc.method.as_str() {
            "tools/list" => Ok(json!({"tools": [{"name": "now"}, {"name": "echo"}, {"name": "new"}]})),
            _ => echo(call),
        });
        let (mut client, _) = StdioClient::initialized(&bus).await;
        client.send(&request(1, "tools/list", json!({}))).await;
        assert_eq!(names(&client.next().await), expected);
        client.send(&request(2, "tools/call", json!({"name": "echo"}))).await;
        assert_eq!(client.next().await["error"]["code"], -32602);
    }
}

#[tokio::test]
async fn a_call_of_a_tool_whose_definition_is_held_back_gets_the_answer_of_its_host() {
    let mut held = server("notes", &["note"]);
    held.withheld = vec!["wipe".to_owned()];
    let bus = FakeBus::new(vec![host("a-host", vec![server("time", &["now"]), held])]);
    bus.serve(|call| match call.rpc.method.as_str() {
        "tools/list" => Ok(json!({"tools": []})),
        _ => echo(call),
    });
    let (mut client, _) = StdioClient::initialized(&bus).await;
    client.send(&request(1, "tools/call", json!({"name": "wipe"}))).await;
    assert_eq!(client.next().await["result"]["server"], "notes");
    client.send(&request(2, "tools/call", json!({"name": "Wipe"}))).await;
    assert_eq!(client.next().await["error"]["data"]["code"], "TB0404");
    client.send(&request(3, "tools/list", json!({}))).await;
    assert!(names(&client.next().await).iter().all(|name| name != "wipe"));
}

#[tokio::test]
async fn a_worker_for_one_host_alone_sees_names_that_belong_to_another_host_but_not_what_rules_forbid() {
    for (listed_only, expected) in [(false, vec!["now", "echo"]), (true, vec!["now"])] {
        let mut host = host("second", vec![server("time", &["now"]), server("more", &[])]);
        let held_back = vec!["echo".to_owned()];
        host.manifest = Arc::new(HostManifest { held_back, listed_only, ..(*host.manifest).clone() });
        let bus = FakeBus::new(vec![host]);
        bus.serve(|call| match (call.rpc.method.as_str(), call.server()) {
            ("tools/list", "time") => Ok(json!({"tools": [{"name": "now"}, {"name": "echo"}]})),
            ("tools/list", _) => Ok(json!({"tools": []})),
            _ => echo(call),
        });
        let options = WorkerOptions { host: Some("second".into()), ..WorkerOptions::default() };
        let mut client = StdioClient::with(&bus, options, StdioOptions::default());
        client.send(&initialize(0)).await;
        client.next().await;
        client.send(&request(1, "tools/list", json!({}))).await;
        assert_eq!(names(&client.next().await), expected);
    }
}

#[tokio::test]
async fn a_task_stays_with_the_server_that_had_its_id_first() {
    let with_tasks = |name, tool| with_own_tasks(server(name, &[tool]));
    let hosts =
        vec![host("a-host", vec![with_tasks("notes", "note")]), host("b-host", vec![with_tasks("time", "now")])];
    let bus = FakeBus::new(hosts);
    bus.serve(|call| match call.rpc.method.as_str() {
        "tools/call" => Ok(json!({"resultType": "task", "taskId": "same"})),
        _ => echo(call),
    });
    let (mut client, _) = StdioClient::initialized(&bus).await;
    for (id, tool) in [(1, "note"), (2, "now")] {
        client.send(&modern(id, "tools/call", json!({"name": tool}))).await;
        client.next().await;
    }
    client.send(&modern(3, "tasks/get", json!({"taskId": "same"}))).await;
    assert_eq!(client.next().await["result"]["server"], "notes");
}

#[tokio::test]
async fn an_absent_or_silent_host_is_listed_from_its_manifest() {
    let slow = host("slow", vec![server("slow", &["sleep"])]);
    let gone = away(host("gone", vec![server("gone", &["vanish"])]));
    let bus = FakeBus::new(vec![gone, host("here", vec![server("here", &["work"])]), slow]);
    let options = WorkerOptions { list_patience: Duration::from_millis(30), ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    client.send(&initialize(0)).await;
    client.next().await;
    client.send(&request(1, "tools/list", json!({}))).await;
    let (one, two) = (bus.next_call().await, bus.next_call().await);
    let (here, slow) = if one.server() == "here" { (one, two) } else { (two, one) };
    here.reply(json!({"tools": [{"name": "work"}]})).await;
    assert_eq!(names(&client.next().await), ["vanish", "work", "sleep"]);
    slow.cancelled().await;
}

#[tokio::test]
async fn task_requests_are_routed_to_the_server_that_created_the_task() {
    let with_tasks = |name, tool| with_own_tasks(server(name, &[tool]));
    let hosts =
        vec![host("a-host", vec![with_tasks("notes", "note")]), host("b-host", vec![with_tasks("time", "now")])];
    let bus = FakeBus::new(hosts);
    bus.serve(|call| match call.rpc.method.as_str() {
        "tools/call" if call.params()["task"].is_object() => {
            Ok(json!({"task": {"taskId": "t-1", "status": "working"}}))
        }
        "tools/call" => Ok(json!({"resultType": "task", "taskId": "t-2"})),
        "tasks/list" => Ok(json!({"tasks": [{"taskId": format!("of-{}", call.server())}]})),
        _ => echo(call),
    });
    let (mut client, _) = StdioClient::initialized(&bus).await;
    client.send(&request(1, "tools/call", json!({"name": "note", "task": {"ttl": 1}}))).await;
    client.next().await;
    client.send(&request(2, "tasks/get", json!({"taskId": "t-1"}))).await;
    assert_eq!(client.next().await["result"]["server"], "notes");
    client.send(&modern(3, "tools/call", json!({"name": "now"}))).await;
    client.next().await;
    client.send(&modern(4, "tasks/get", json!({"taskId": "t-2"}))).await;
    assert_eq!(client.next().await["result"]["server"], "time");
}

#[tokio::test]
async fn the_log_level_is_set_at_all_servers() {
    let bus = three_servers();
    let (mut client, _) = StdioClient::initialized(&bus).await;
    client.send(&request(1, "logging/setLevel", json!({"level": "debug"}))).await;
    let mut servers = Vec::new();
    for _ in 0..3 {
        let call = bus.next_call().await;
        servers.push(call.server().to_owned());
        call.reply(json!({})).await;
    }
    servers.sort();
    assert_eq!(servers, ["files", "notes", "time"]);
    assert_eq!(client.next().await, json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
}

#[tokio::test]
async fn roots_changes_go_to_all_servers_and_progress_to_its_requester() {
    let bus = three_servers();
    let (mut client, _) = StdioClient::initialized(&bus).await;
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})).await;
    eventually("three messages", || bus.all_sent().len() == 3).await;
    client.send(&request(1, "tools/call", json!({"name": "note"}))).await;
    let call = bus.next_call().await;
    call.request_client("q", "sampling/createMessage", json!({"_meta": {"progressToken": "p"}})).await;
    client.next().await;
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": "p", "progress": 1}})).await;
    let sent =
        bus.sent(|sent| matches!(sent, HostRequest::Notify(notify) if notify.method == "notifications/progress")).await;
    assert!(matches!(sent, HostRequest::Notify(notify) if notify.server == "notes"));
}

#[tokio::test]
async fn a_client_request_during_a_fanout_reaches_the_client() {
    let bus = three_servers();
    let (mut client, _) = StdioClient::initialized(&bus).await;
    client.send(&request(7, "logging/setLevel", json!({"level": "debug"}))).await;
    let call = bus.next_call().await;
    call.request_client("q", "roots/list", json!({})).await;
    let client_request = client.next().await;
    assert_eq!(client_request["method"], "roots/list");
    client.send(&json!({"jsonrpc": "2.0", "id": client_request["id"], "result": {"roots": []}})).await;
    bus.sent(|sent| matches!(sent, HostRequest::Answer(_))).await;
}

#[tokio::test]
async fn without_hosts_lists_are_empty_and_new_hosts_are_notified() {
    let bus = FakeBus::new(Vec::new());
    let (mut client, response) = StdioClient::initialized(&bus).await;
    assert_eq!(response["result"]["serverInfo"]["name"], "toolbus");
    client.send(&request(1, "tools/list", json!({}))).await;
    assert_eq!(client.next().await["result"], json!({"tools": []}));
    bus.set_hosts(vec![host("new", vec![server("files", &["read"])])]);
    assert_eq!(client.next().await["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn only_the_configured_host_is_visible() {
    let bus = three_servers();
    bus.serve(echo);
    let options = WorkerOptions { host: Some("a-host".into()), ..WorkerOptions::default() };
    let mut client = StdioClient::with(&bus, options, StdioOptions::default());
    client.send(&initialize(0)).await;
    assert_eq!(client.next().await["result"]["serverInfo"]["name"], "notes");
}

/// A server that is being started; nothing is known about it.
fn starting(name: &str) -> ServerManifest {
    let manifest = json!({"name": name, "state": "starting"});
    serde_json::from_value(manifest).expect("a manifest")
}

#[tokio::test]
async fn a_server_that_starts_slowly_delays_no_list_and_is_announced_later() {
    let fast = server("fast", &["work"]);
    let bus = FakeBus::new(vec![host("h", vec![starting("slow"), fast.clone()])]);
    bus.serve(|call| Ok(json!({"tools": [{"name": format!("{}_tool", call.server())}]})));
    let (mut client, _) = StdioClient::initialized(&bus).await;
    client.send(&request(1, "tools/list", json!({}))).await;
    assert_eq!(names(&client.next().await), ["fast_tool"]);
    bus.set_hosts(vec![host("h", vec![server("slow", &["slow_tool"]), fast])]);
    assert_eq!(client.next().await["method"], "notifications/tools/list_changed");
    client.send(&request(2, "tools/list", json!({}))).await;
    assert_eq!(names(&client.next().await), ["slow_tool", "fast_tool"]);
}

#[tokio::test]
async fn a_client_does_not_wait_for_the_only_server_while_it_starts() {
    let bus = FakeBus::new(vec![host("h", vec![starting("slow")])]);
    let (mut client, response) = StdioClient::initialized(&bus).await;
    assert_eq!(response["result"]["serverInfo"]["name"], "toolbus");
    client.send(&request(1, "tools/list", json!({}))).await;
    assert_eq!(client.next().await["result"], json!({"tools": []}));
    bus.set_hosts(vec![host("h", vec![server("slow", &["work"])])]);
    assert_eq!(client.next().await["method"], "notifications/tools/list_changed");
    bus.serve(echo);
    client.send(&request(2, "tools/call", json!({"name": "work"}))).await;
    assert_eq!(client.next().await["result"]["server"], "slow");
}

#[tokio::test]
async fn a_server_that_arrives_right_after_the_list_change_of_another_is_announced() {
    let fast = server("fast", &["work"]);
    let bus = FakeBus::new(vec![host("h", vec![starting("slow"), fast.clone()])]);
    let (mut client, _) = StdioClient::initialized(&bus).await;
    let changed = "notifications/tools/list_changed";
    bus.notify_session("h", "fast", changed).await;
    assert_eq!(client.next().await["method"], changed);
    bus.set_hosts(vec![host("h", vec![server("slow", &["slow_tool"]), fast])]);
    assert_eq!(client.next().await["method"], changed);
}
