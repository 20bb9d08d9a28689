//! Roles: what is not allowed is not shown, not called, not read and not completed.

use crate::support::{Rig, Worker, fake, finish};
use serde_json::{Value, json};
use std::sync::Arc;
use toolbus_client::AgentRef;
use toolbus_host::{HostOptions, RoleRules};
use toolbus_mcp::{ClientHello, raw};
use toolbus_upstream::HostConfig;

async fn rig(era: &str) -> Rig {
    let mut options = HostOptions::new(HostConfig { servers: vec![fake("one", era)] });
    let rules = [("reader".to_owned(), vec!["add", "one/echo"]), ("locked".to_owned(), vec![])];
    options.policy = Arc::new(RoleRules::new(rules).expect("patterns"));
    Rig::with(options).await
}

async fn worker(rig: &Rig, role: Option<&str>, legacy: bool) -> Worker {
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
async fn a_role_sees_and_calls_what_its_entry_names_in_all_four_meetings_of_the_eras() {
    for (server, legacy) in [("legacy", true), ("legacy", false), ("modern", true), ("modern", false)] {
        let rig = rig(server).await;
        let worker = worker(&rig, Some("reader"), legacy).await;
        let list = worker.rpc("one", "tools/list", json!({})).await.result();
        assert_eq!(names(&list), ["echo", "add"], "{server} {legacy}");
        assert_eq!(list["nextCursor"], "6");
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

/// The name that is decided about has to be the name that the server reads.
#[tokio::test]
async fn what_names_nothing_or_two_things_is_not_passed_on() {
    let rig = rig("legacy").await;
    let worker = worker(&rig, Some("reader"), true).await;
    for (method, params) in [
        ("tools/call", r#"{"name":"add","name":"whoami","arguments":{}}"#),
        ("tools/call", r#"{"n\u0061me":"add","name":"whoami","arguments":{}}"#),
        ("tools/call", r#"{"name":["whoami"]}"#),
        ("tools/call", r#"["whoami"]"#),
        ("resources/read", r#"{"uri":"add","uri":"test://one"}"#),
        ("completion/complete", r#"{"ref":{"type":"ref/prompt","name":"add","name":"greet"}}"#),
        ("subscriptions/listen", r#"{"notifications":{"resourceSubscriptions":["test://one",7]}}"#),
    ] {
        let params = serde_json::value::RawValue::from_string(params.to_owned()).expect("JSON");
        let error = finish(worker.start_raw("one", method, params).await).await.error();
        assert_eq!(error["code"], -32602, "{method}: {error}");
    }
}

#[tokio::test]
async fn empty_entries_and_unknown_roles_are_locked_out() {
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
async fn cards_are_made_for_each_role() {
    let rig = rig("legacy").await;
    let reader = worker(&rig, Some("reader"), true).await;
    let card = rig.card(&reader, |card| card.servers.first().is_some_and(|server| !server.tools.is_empty())).await;
    assert_eq!(card.servers[0].tools.len(), 2);
}
