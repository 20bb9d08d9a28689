//! A resource that was read stays with its server, whatever other hosts announce later.

use crate::support::bus::{FakeBus, echo};
use crate::support::stdio::StdioClient;
use crate::support::{away, eventually, host, request, server, with};
use serde_json::{Value, json};
use std::sync::Arc;
use toolbus_mcp::{HostManifest, ListKind, RpcError, ServerManifest};

/// Two hosts that answer every request, the first one under the order of the broker.
fn two_hosts(first: ServerManifest, second: ServerManifest) -> Arc<FakeBus> {
    let bus = FakeBus::new(vec![host("aaa", vec![first]), host("bbb", vec![second])]);
    bus.serve(echo);
    bus
}

fn with_uris(name: &str, uris: &[&str]) -> ServerManifest {
    let items: Vec<Value> = uris.iter().map(|uri| json!({"uri": uri, "name": "n"})).collect();
    with(server(name, &[]), ListKind::Resources, &items)
}

async fn server_of(client: &mut StdioClient, method: &str, params: Value) -> Value {
    client.send(&request(1, method, params)).await;
    client.answer().await["result"]["server"].clone()
}

#[tokio::test]
async fn a_resource_stays_with_the_server_that_was_read() {
    let bus = two_hosts(server("a", &[]), with_uris("b", &["file:///b"]));
    let (mut client, _) = StdioClient::initialized(&bus).await;
    let mut check = async |uri: &str, expected: &str| {
        assert_eq!(server_of(&mut client, "resources/read", json!({"uri": uri})).await, expected, "{uri}");
    };
    check("file:///unlisted", "b").await;
    // The manifest of another host speaks of it now, and the broker, which knows no unlisted resource, lets it.
    let of_a = || host("aaa", vec![with_uris("a", &["file:///unlisted", "file:///a"])]);
    bus.set_hosts(vec![of_a(), host("bbb", vec![with_uris("b", &["file:///b"])])]);
    check("file:///unlisted", "b").await;
    check("file:///another", "b").await;
    check("file:///a", "a").await;
    bus.set_hosts(vec![of_a(), away(host("bbb", vec![with_uris("b", &["file:///b"])]))]);
    // It is queued, and not read from the other host.
    client.send(&request(7, "resources/read", json!({"uri": "file:///unlisted"}))).await;
    eventually("the request is queued", || bus.waiting() > 0 || bus.all_sent().len() > 3).await;
    bus.set_hosts(vec![of_a()]);
    assert_eq!(server_of(&mut client, "resources/read", json!({"uri": "file:///unlisted"})).await, "a");
}

#[tokio::test]
async fn the_operator_gives_a_resource_to_another_host() {
    let bus = two_hosts(server("a", &[]), with_uris("b", &["file:///b"]));
    let (mut client, _) = StdioClient::initialized(&bus).await;
    let params = || json!({"uri": "file:///unlisted"});
    assert_eq!(server_of(&mut client, "resources/read", params()).await, "b");
    let mut of_a = host("aaa", vec![with_uris("a", &["file:///unlisted"])]);
    of_a.manifest = Arc::new(HostManifest { granted: true, listed_only: true, ..(*of_a.manifest).clone() });
    bus.set_hosts(vec![of_a, host("bbb", vec![with_uris("b", &["file:///b"])])]);
    assert_eq!(server_of(&mut client, "resources/read", params()).await, "a");
}

#[tokio::test]
async fn a_resource_that_failed_is_read_where_it_is_listed() {
    let bus = FakeBus::new(vec![host("bbb", vec![with_uris("b", &["file:///b"])])]);
    bus.serve(|call| match call.server() {
        "b" if call.rpc.method == "resources/read" => Err(RpcError::invalid_params("no such file")),
        _ => echo(call),
    });
    let (mut client, _) = StdioClient::initialized(&bus).await;
    let params = || json!({"uri": "file:///x"});
    assert_eq!(server_of(&mut client, "resources/read", params()).await, Value::Null);
    bus.set_hosts(vec![
        host("bbb", vec![with_uris("b", &["file:///b"])]),
        host("aaa", vec![with_uris("a", &["file:///x"])]),
    ]);
    client.send(&request(9, "resources/read", params())).await;
    let answer = client.answer().await;
    assert_eq!(answer["result"]["server"], "a", "{answer}");
}
