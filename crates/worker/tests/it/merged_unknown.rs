//! Several servers behind one worker: what only one of them knows, methods and members of lists, is kept.

use crate::support::bus::{FakeBus, echo};
use crate::support::stdio::StdioClient;
use crate::support::{host, modern, request, server, with};
use serde_json::{Value, json};
use std::sync::Arc;
use toolbus_mcp::{HostManifest, HostRequest, ListKind, ServerManifest, raw};

/// Adds a capability to the server, in the era of its `initialize`.
fn declaring(mut server: ServerManifest, list: &str, name: &str) -> ServerManifest {
    let mut initialize: Value = serde_json::from_str(server.initialize.unwrap().get()).unwrap();
    initialize["capabilities"][list][name] = json!({});
    server.initialize = Some(raw(&initialize));
    server
}

fn servers() -> Vec<ServerManifest> {
    let notes = declaring(server("notes", &["note"]), "experimental", "acme/search");
    let notes = with(notes, ListKind::Resources, &[json!({"uri": "note://1", "name": "one"})]);
    let time = declaring(server("time", &["now"]), "extensions", "com.example/zones");
    let plain = declaring(server("files", &["read"]), "extensions", "io.modelcontextprotocol/ui");
    vec![plain, notes, time]
}

async fn server_of(bus: &Arc<FakeBus>, client: &mut StdioClient, method: &str, params: Value) -> Option<String> {
    let before = bus.all_sent().len();
    let notification = json!({"jsonrpc": "2.0", "method": format!("notifications/{method}"), "params": params});
    client.send(&notification).await;
    let mut servers = Vec::new();
    for message in [request(1, method, params.clone()), modern(2, method, params.clone())] {
        client.send(&message).await;
        let answer = client.answer().await;
        match answer["result"]["server"].as_str() {
            Some(server) => servers.push(Some(server.to_owned())),
            None => {
                assert_eq!(answer["error"]["code"], -32601, "{answer}");
                servers.push(None);
            }
        }
    }
    let notified = bus.all_sent().into_iter().skip(before).map(|(_, sent)| match sent {
        HostRequest::Notify(notify) => notify.server,
        other => panic!("{other:?}"),
    });
    let notified: Vec<String> = notified.collect();
    assert_eq!(notified.first(), servers[0].as_ref(), "{method}");
    assert!(notified.len() <= 1 && servers[0] == servers[1], "{method} {servers:?}");
    servers.remove(0)
}

#[tokio::test]
async fn an_unknown_method_reaches_the_one_server_that_can_be_meant() {
    let bus = FakeBus::new(vec![host("h", servers())]);
    bus.serve(echo);
    let (mut client, _) = StdioClient::initialized(&bus).await;
    let mut check = async |method: &str, params: Value, expected: Option<&str>| {
        assert_eq!(server_of(&bus, &mut client, method, params).await.as_deref(), expected, "{method}");
    };
    check("acme/search", json!({}), Some("notes")).await;
    check("acme/search/query", json!({"q": 1}), Some("notes")).await;
    check("com.example/zones/list", json!({}), Some("time")).await;
    check("files/watch", json!({}), Some("files")).await;
    check("vendor/describe", json!({"name": "now"}), Some("time")).await;
    check("vendor/describe", json!({"uri": "note://1"}), Some("notes")).await;
    check("acme/searching", json!({}), None).await;
    check("vendor/special", json!({}), None).await;
    check("vendor/describe", json!({"name": "nothing"}), None).await;
}

#[tokio::test]
async fn the_only_server_and_the_only_one_with_extensions_can_be_meant() {
    let mut limited = host("limited", vec![server("time", &["now"])]);
    limited.manifest = Arc::new(HostManifest { listed_only: true, ..(*limited.manifest).clone() });
    let one_with_extensions = host("h", servers().into_iter().take(2).collect());
    for (hosts, expected) in [(vec![limited], "time"), (vec![one_with_extensions], "notes")] {
        let bus = FakeBus::new(hosts);
        bus.serve(echo);
        let (mut client, _) = StdioClient::initialized(&bus).await;
        let reached = server_of(&bus, &mut client, "vendor/special", json!({})).await;
        assert_eq!(reached.as_deref(), Some(expected));
    }
}

#[tokio::test]
async fn meta_and_unknown_members_of_lists_survive_the_merge() {
    let bus = FakeBus::new(vec![host("h", servers())]);
    bus.serve(|call| match call.server() {
        "files" => Ok(json!({"tools": [], "_meta": {"a": 1.0, "b": 1}, "x": [1]})),
        "notes" => Ok(json!({"tools": [{"name": "note"}], "_meta": {"b": 2, "c": {"d": 2}}, "x": [2], "y": null})),
        _ => Ok(json!({"tools": [{"name": "now"}], "_meta": 7})),
    });
    let (mut client, _) = StdioClient::initialized(&bus).await;
    client.send(&request(1, "tools/list", json!({}))).await;
    let meta = json!({"a": 1.0, "b": 1, "c": {"d": 2}});
    let tools = json!([{"name": "note"}, {"name": "now"}]);
    assert_eq!(client.next().await["result"], json!({"tools": tools, "_meta": meta, "x": [1], "y": null}));
    client.send(&modern(2, "tools/list", json!({}))).await;
    let result = client.next().await["result"].take();
    assert_eq!((&result["_meta"]["a"], &result["x"], &result["y"]), (&json!(1.0), &json!([1]), &Value::Null));
    assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "toolbus");
}

#[tokio::test]
async fn a_method_stays_with_its_host() {
    let of_b = || host("bbb", vec![declaring(server("notes", &["note"]), "experimental", "acme")]);
    let bus = FakeBus::new(vec![of_b()]);
    bus.serve(echo);
    let (mut client, _) = StdioClient::initialized(&bus).await;
    let mut check = async |method: &str, expected: Option<&str>| {
        assert_eq!(server_of(&bus, &mut client, method, json!({})).await.as_deref(), expected, "{method}");
    };
    check("vendor/special", Some("notes")).await;
    // Another host declares the same namespace and those that the session used. The broker leaves it those that are free.
    let hostile = ["acme", "notes", "vendor"].into_iter();
    let hostile = hostile.fold(server("hostile", &["x"]), |server, name| declaring(server, "experimental", name));
    let mut of_a = host("aaa", vec![hostile]);
    let held_back_namespaces = vec!["acme".to_owned(), "notes".to_owned()];
    of_a.manifest = Arc::new(HostManifest { held_back_namespaces, ..(*of_a.manifest).clone() });
    bus.set_hosts(vec![of_a, of_b()]);
    check("acme/search", Some("notes")).await;
    check("notes/watch", Some("notes")).await;
    check("vendor/special", Some("notes")).await;
    check("vendor/other", Some("hostile")).await;
}
