//! Roles: an item that is not allowed is not listed, called, read or completed.

use crate::support::{Rig, Worker, fake, finish, next_event, open_host, parts};
use serde_json::{Value, json};
use toolbus_client::AgentRef;
use toolbus_host::LivePolicy;
use toolbus_mcp::{ClientHello, Raw, raw};
use toolbus_policy::PolicySet;
use toolbus_upstream::{HostConfig, ServerConfig};

pub const RULES: &str = "[roles.reader]\nallow = ['add', 'one/echo']\n[roles.locked]\nallow = []";

pub fn set(rules: &str) -> PolicySet {
    PolicySet::read(rules).expect("rules").0
}

pub async fn rig_with(servers: Vec<ServerConfig>, rules: &str) -> Rig {
    let mut options = open_host(HostConfig { servers });
    options.policy = LivePolicy::new(set(rules));
    // No test here approves a call.
    options.limits.approval_time = std::time::Duration::from_millis(300);
    Rig::with(options).await
}

async fn rig(era: &str) -> Rig {
    rig_with(vec![fake("one", era)], RULES).await
}

pub async fn worker(rig: &Rig, role: Option<&str>, legacy: bool) -> Worker {
    let agent = AgentRef::new("w");
    let agent = match role {
        Some(role) => agent.with_role(role),
        None => agent,
    };
    let info = json!({"name": "w", "version": "1"});
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info});
    rig.worker(agent, if legacy { ClientHello::legacy(raw(&hello)) } else { ClientHello::modern() }).await
}

fn names(result: &Value) -> Vec<&str> {
    result["tools"].as_array().expect("tools").iter().map(|tool| tool["name"].as_str().expect("a name")).collect()
}

#[tokio::test]
async fn a_role_sees_and_calls_only_allowed_items_in_every_combination_of_eras() {
    for (server, legacy) in [("legacy", true), ("legacy", false), ("modern", true), ("modern", false)] {
        let rig = rig(server).await;
        let worker = worker(&rig, Some("reader"), legacy).await;
        let list = worker.rpc("one", "tools/list", json!({})).await.result();
        assert_eq!(names(&list), ["echo", "add"], "{server} {legacy}");
        // The catalog answers for a session that has no process, without pages.
        assert_eq!(list.get("nextCursor").is_some(), server == "modern" && !legacy);
        if !legacy {
            assert_eq!(list["cacheScope"], "private");
        }
        assert_eq!(worker.tool("one", "add", json!({"a": 1, "b": 2})).await.text(), "3");
        let error = worker.tool("one", "whoami", json!({})).await.error();
        assert_eq!(error["data"]["code"], "TB0403");
        assert_eq!(error["message"], "tool 'whoami' is not allowed for role 'reader'");
        let reference = json!({"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "a", "value": ""}});
        for (method, params) in [
            ("resources/read", json!({"uri": "test://one"})),
            ("prompts/get", json!({"name": "greet"})),
            ("completion/complete", reference),
            ("subscriptions/listen", json!({"notifications": {"resourceSubscriptions": ["test://one"]}})),
        ] {
            let error = worker.rpc("one", method, params).await.error();
            assert_eq!(error["data"]["code"], "TB0403", "{method}: {error}");
        }
        assert_eq!(worker.rpc("one", "resources/list", json!({})).await.result()["resources"], json!([]));
    }
}

/// The policy must decide about the same name that the server reads.
#[tokio::test]
async fn a_request_with_a_missing_or_ambiguous_name_is_rejected() {
    let rig = rig("legacy").await;
    let worker = worker(&rig, Some("reader"), true).await;
    for (method, params) in [
        ("tools/call", r#"{"name":"add","name":"whoami","arguments":{}}"#),
        ("tools/call", r#"{"n\u0061me":"add","name":"whoami","arguments":{}}"#),
        ("tools/call", r#"{"name":["whoami"]}"#),
        ("tools/call", r#"["whoami"]"#),
        // A server that ignores case reads the second one.
        ("tools/call", r#"{"name":"add","Name":"whoami","arguments":{}}"#),
        ("tools/call", r#"{"name":"add","arguments":{},"Arguments":{"path":"/etc"}}"#),
        ("resources/read", r#"{"uri":"test://two","URI":"test://one"}"#),
        ("completion/complete", r#"{"ref":{"type":"ref/prompt","name":"add","NAME":"greet"}}"#),
        ("resources/read", r#"{"uri":"add","uri":"test://one"}"#),
        ("completion/complete", r#"{"ref":{"type":"ref/prompt","name":"add","name":"greet"}}"#),
        ("subscriptions/listen", r#"{"notifications":{"resourceSubscriptions":["test://one",7]}}"#),
    ] {
        let params = Raw::parse(params).expect("JSON");
        let error = finish(worker.start_raw("one", method, params).await).await.error();
        assert_eq!(error["code"], -32602, "{method}: {error}");
    }
}

#[tokio::test]
async fn empty_and_unknown_roles_are_denied_everything() {
    let rig = rig("legacy").await;
    for role in [Some("locked"), Some("stranger"), None] {
        let worker = worker(&rig, role, true).await;
        for (method, params) in [("tools/list", json!({})), ("tools/call", json!({"name": "add"}))] {
            let error = worker.rpc("one", method, params).await.error();
            assert_eq!(error["data"]["code"], "TB0403", "{role:?} {method}");
        }
        worker.bus.close().await;
    }
}

#[tokio::test]
async fn manifests_are_filtered_by_role() {
    let rig = rig("legacy").await;
    let reader = worker(&rig, Some("reader"), true).await;
    let manifest =
        rig.manifest(&reader, |manifest| manifest.servers.first().is_some_and(|server| !server.tools.is_empty())).await;
    assert_eq!(manifest.servers[0].tools.len(), 2);
}

#[tokio::test]
async fn a_server_without_a_matching_rule_is_hidden_from_the_role() {
    let rig = rig_with(vec![fake("one", "legacy"), fake("two", "modern")], "[roles.reader]\nallow = ['one/add']").await;
    let reader = worker(&rig, Some("reader"), true).await;
    let manifest =
        rig.manifest(&reader, |manifest| manifest.servers.iter().any(|server| !server.tools.is_empty())).await;
    assert_eq!(manifest.servers.iter().map(|server| server.name.as_str()).collect::<Vec<_>>(), ["one"]);
    for method in ["initialize", "tools/list", "ping", "resources/list", "logging/setLevel"] {
        let error = reader.rpc("two", method, json!({"level": "error"})).await.error();
        assert_eq!(error["data"]["code"], "TB0403", "{method}");
    }
}

#[tokio::test]
async fn a_new_policy_applies_immediately_to_manifests_lists_and_calls() {
    let mut options = open_host(HostConfig { servers: vec![fake("one", "legacy")] });
    let policy = LivePolicy::new(set(RULES));
    options.policy = policy.clone();
    let rig = Rig::with(options).await;
    let reader = worker(&rig, Some("reader"), true).await;
    let tools = |manifest: &toolbus_mcp::HostManifest| manifest.servers.first().map_or(0, |server| server.tools.len());
    rig.manifest(&reader, |manifest| tools(manifest) == 2).await;
    policy.replace(set("[roles.reader]\nallow = ['whoami']"));
    assert_eq!(reader.tool("one", "add", json!({"a": 1, "b": 2})).await.error()["data"]["code"], "TB0403");
    reader.tool("one", "whoami", json!({})).await.text();
    assert_eq!(names(&reader.rpc("one", "tools/list", json!({})).await.result()), ["whoami"]);
    rig.manifest(&reader, |manifest| tools(manifest) == 1).await;
    policy.replace(set("[roles.other]\nallow = ['whoami']"));
    rig.manifest(&reader, |manifest| manifest.servers.is_empty()).await;
}

const CONDITIONS: &str = r#"
[roles.reader]
allow = ["add"]
ask = ["whoami", "greet", "test://one"]
[[roles.reader.rules]]
effect = "allow"
match = ["one/echo"]
when = [{ pointer = "/path", prefix = "/tmp/" }]
"#;

#[tokio::test]
async fn conditions_apply_to_the_arguments_that_the_server_gets() {
    for (server, legacy) in [("legacy", true), ("legacy", false), ("modern", true), ("modern", false)] {
        let rig = rig_with(vec![fake("one", server)], CONDITIONS).await;
        let reader = worker(&rig, Some("reader"), legacy).await;
        assert_eq!(names(&reader.rpc("one", "tools/list", json!({})).await.result()), ["echo", "add", "whoami"]);
        let echoed = reader.tool("one", "echo", json!({"path": "/tmp/a"})).await.json();
        assert_eq!(echoed, json!({"path": "/tmp/a"}));
        for arguments in [json!({"path": "/etc/a"}), json!({"path": "/tmp/../etc"}), json!({})] {
            let error = reader.tool("one", "echo", arguments).await.error();
            assert_eq!(error["data"]["code"], "TB0403", "{error}");
        }
        let none = reader.rpc("one", "tools/call", json!({"name": "echo"})).await.error();
        assert_eq!(none["data"]["code"], "TB0403");
        assert_eq!(reader.tool("one", "echo", json!(["/tmp/a"])).await.error()["data"]["code"], "TB0419");
    }
}

#[tokio::test]
async fn ambiguous_arguments_are_refused() {
    let rig = rig_with(vec![fake("one", "legacy")], CONDITIONS).await;
    let reader = worker(&rig, Some("reader"), true).await;
    let params = r#"{"name":"echo","arguments":{"path":"/tmp/a","path":"/etc/passwd"}}"#;
    let params = Raw::parse(params).expect("JSON");
    let error = finish(reader.start_raw("one", "tools/call", params).await).await.error();
    assert_eq!(error["data"]["code"], "TB0419");
    assert_eq!(error["message"], "tool 'echo': the arguments have a duplicate key");
}

#[tokio::test]
async fn items_under_ask_are_listed_but_not_run() {
    let rig = rig_with(vec![fake("one", "legacy")], CONDITIONS).await;
    let reader = worker(&rig, Some("reader"), true).await;
    for (method, params) in [
        ("tools/call", json!({"name": "whoami"})),
        ("prompts/get", json!({"name": "greet"})),
        ("resources/read", json!({"uri": "test://one"})),
    ] {
        assert_eq!(reader.rpc("one", method, params).await.error()["data"]["code"], "TB0414", "{method}");
    }
    let completion = json!({"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "a", "value": ""}});
    assert_eq!(reader.rpc("one", "completion/complete", completion).await.error()["data"]["code"], "TB0403");
    assert_eq!(names(&reader.rpc("one", "tools/list", json!({})).await.result()), ["echo", "add", "whoami"]);
}

#[tokio::test]
async fn a_task_is_accessible_only_to_the_agent_and_role_of_its_call() {
    let rules = "[roles.maker]\nallow = ['task']\n[roles.reader]\nallow = ['add']";
    let rig = rig_with(vec![fake("one", "legacy")], rules).await;
    let maker =
        rig.worker(AgentRef::new("maker").with_role("maker"), worker(&rig, Some("maker"), true).await.hello).await;
    maker.tool("one", "task", json!({"id": "t1"})).await.result();
    assert_eq!(maker.rpc("one", "tasks/get", json!({"taskId": "t1"})).await.result()["status"], "working");
    let thief = worker(&rig, Some("maker"), true).await;
    assert_eq!(thief.rpc("one", "tasks/get", json!({"taskId": "t1"})).await.error()["data"]["code"], "TB0403");
    thief.bus.close().await;
    let reader = worker(&rig, Some("reader"), true).await;
    for method in ["tasks/get", "tasks/cancel"] {
        assert_eq!(reader.rpc("one", method, json!({"taskId": "t1"})).await.error()["data"]["code"], "TB0403");
    }
}

#[tokio::test]
async fn an_unknown_task_is_denied_to_every_role() {
    let rules = "[roles.maker]\nallow = ['task']\n[roles.all]\nallow = ['**']";
    let mut rig = rig_with(vec![fake("one", "legacy")], rules).await;
    let maker = worker(&rig, Some("maker"), true).await;
    maker.tool("one", "task", json!({"id": "t1"})).await.result();
    rig.restart_host().await;
    assert_eq!(maker.rpc("one", "tasks/get", json!({"taskId": "t1"})).await.result()["status"], "working");
    assert_eq!(maker.rpc("one", "tasks/get", json!({"taskId": "t2"})).await.error()["data"]["code"], "TB0403");
    let all = rig.worker(AgentRef::new("all").with_role("all"), maker.hello.clone()).await;
    for (method, params) in [("tasks/get", json!({"taskId": "t1"})), ("tasks/list", json!({}))] {
        assert_eq!(all.rpc("one", method, params).await.error()["data"]["code"], "TB0403", "{method}");
    }
}

#[tokio::test]
async fn methods_that_no_rule_covers_require_unrestricted_access() {
    let rules = "[roles.reader]\nallow = ['one/*']\ndeny = ['whoami']\n[roles.asker]\nallow = ['**']\nask = ['add']\n\
                 [roles.all]\nallow = ['one/**']\ndeny = ['two/*']";
    let rig = rig_with(vec![fake("one", "legacy"), fake("two", "legacy")], rules).await;
    for role in ["reader", "asker"] {
        let worker = worker(&rig, Some(role), true).await;
        let error = worker.rpc("one", "vendor/call", json!({"tool": "whoami"})).await.error();
        assert_eq!(error["data"]["code"], "TB0403", "{role}: {error}");
        worker.rpc("one", "ping", json!({})).await.result();
        worker.bus.close().await;
    }
    let all = worker(&rig, Some("all"), true).await;
    assert_eq!(all.rpc("one", "vendor/call", json!({})).await.error()["code"], -32601);
    assert_eq!(all.rpc("two", "vendor/call", json!({})).await.error()["data"]["code"], "TB0403");
}

/// The next notification about resources or lists that the client gets, on its listen or in its session.
async fn next_change(worker: &Worker, listen: Option<&mut toolbus_client::Call>) -> String {
    let event = match listen {
        Some(listen) => next_event(listen).await,
        None => worker.next_session_event().await,
    };
    parts(&event).0
}

#[tokio::test]
async fn a_stricter_policy_applies_to_open_listens_and_subscriptions() {
    for (legacy, era) in [(true, "legacy"), (true, "modern"), (false, "legacy"), (false, "modern")] {
        let rules = "[roles.reader]\nallow = ['update', 'change', 'test://one']";
        let rig = rig_with(vec![fake("one", era)], rules).await;
        let worker = worker(&rig, Some("reader"), legacy).await;
        let mut listen = None;
        if legacy {
            worker.rpc("one", "resources/subscribe", json!({"uri": "test://one"})).await.result();
        } else {
            let wanted = json!({"toolsListChanged": true, "resourceSubscriptions": ["test://one"]});
            let mut call = worker.start("one", "subscriptions/listen", json!({"notifications": wanted})).await;
            next_event(&mut call).await;
            listen = Some(call);
        }
        let update =
            || worker.start("one", "tools/call", json!({"name": "update", "arguments": {"uri": "test://one"}}));
        let changed = async |listen: Option<&mut toolbus_client::Call>, name: &str| {
            let call = worker.start("one", "tools/call", json!({"name": "change", "arguments": {"name": name}})).await;
            // On a legacy server's own connection, the running call gets the notification.
            let reply = finish(call).await;
            match reply.events.first() {
                Some(event) => parts(event).0,
                None => next_change(&worker, listen).await,
            }
        };
        let reply = finish(update().await).await;
        let first = match reply.events.first() {
            Some(event) => parts(event).0,
            None => next_change(&worker, listen.as_mut()).await,
        };
        assert_eq!(first, "notifications/resources/updated", "{legacy} {era}");
        rig.policy().replace(set("[roles.reader]\nallow = ['update', 'change', 'test://two']"));
        let reply = finish(update().await).await;
        assert_eq!(reply.events.len(), 0, "{legacy} {era}: {reply:?}");
        assert_eq!(changed(listen.as_mut(), "new").await, "notifications/tools/list_changed", "{legacy} {era}");
    }
}
