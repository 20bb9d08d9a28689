//! JSON-RPC batches, which only version 2025-03-26 has.

use crate::support::bus::{FakeBus, HostCall};
use crate::support::http::Endpoint;
use crate::support::stdio::StdioClient;
use crate::support::{host, initialize, request, server};
use hyper::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use toolbus_mcp::{HostRequest, MAX_BATCH, RpcError};
use toolbus_worker::HttpOptions;

/// Two servers, so that the worker itself negotiates the version.
fn bus() -> Arc<FakeBus> {
    FakeBus::new(vec![host("h", vec![server("files", &["read"]), server("time", &["now"])])])
}

fn greeting(version: &str) -> Value {
    let mut initialize = initialize(0);
    initialize["params"]["protocolVersion"] = version.into();
    initialize
}

fn tool_call(id: u64) -> Value {
    request(id, "tools/call", json!({"name": "read", "arguments": {"n": id}}))
}

fn note() -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})
}

fn answer(call: &HostCall) -> Result<Value, RpcError> {
    Ok(json!({"n": call.params()["arguments"]["n"]}))
}

fn sorted(batch: Value) -> Vec<Value> {
    let mut batch = batch.as_array().unwrap_or_else(|| panic!("{batch}")).clone();
    batch.sort_by_key(|response| response["id"].as_u64());
    batch
}

async fn stdio_client(bus: &Arc<FakeBus>, version: &str) -> StdioClient {
    let mut client = StdioClient::start(bus);
    client.send(&greeting(version)).await;
    assert_eq!(client.next().await["result"]["protocolVersion"], version);
    client
}

async fn http_session(endpoint: &Endpoint, version: &str) -> String {
    endpoint.post(&[], &greeting(version)).await.header("mcp-session-id").expect("a session")
}

#[tokio::test]
async fn a_batch_on_stdio_is_answered_by_a_batch() {
    let bus = bus();
    let mut client = stdio_client(&bus, "2025-03-26").await;
    client.send(&json!([tool_call(1), note(), request(2, "ping", json!({})), tool_call(3), 7, greeting("x")])).await;
    let (one, three) = (bus.next_call().await, bus.next_call().await);
    bus.sent(|sent| matches!(sent, HostRequest::Notify(_))).await;
    three.notify("notifications/message", json!({"data": 1})).await;
    assert_eq!(client.next().await["method"], "notifications/message", "sent before the responses");
    three.reply(json!({"n": 3})).await;
    one.reply(json!({"n": 1})).await;
    let responses = sorted(client.next().await);
    let of = |at: usize| (&responses[at]["id"], &responses[at]["result"], &responses[at]["error"]["code"]);
    assert_eq!(of(0), (&Value::Null, &Value::Null, &json!(-32700)), "7 is no message");
    assert_eq!(of(1), (&json!(0), &Value::Null, &json!(-32600)), "initialize is refused");
    assert_eq!(of(2), (&json!(1), &json!({"n": 1}), &Value::Null));
    assert_eq!(of(3), (&json!(2), &json!({}), &Value::Null));
    assert_eq!(of(4), (&json!(3), &json!({"n": 3}), &Value::Null));
    // Without requests there is no answer.
    client.send(&json!([note(), note()])).await;
    client.send(&request(4, "ping", json!({}))).await;
    assert_eq!(client.next().await["id"], 4);
}

#[tokio::test]
async fn a_cancelled_call_is_missing_from_the_answer() {
    let bus = bus();
    let mut client = stdio_client(&bus, "2025-03-26").await;
    client.send(&json!([tool_call(1), tool_call(2)])).await;
    let (one, two) = (bus.next_call().await, bus.next_call().await);
    one.finish(toolbus_mcp::HostReply::Cancelled).await;
    two.reply(json!({})).await;
    assert_eq!(client.next().await, json!([{"jsonrpc": "2.0", "id": 2, "result": {}}]));
}

#[tokio::test]
async fn batches_are_limited_and_only_for_their_version() {
    let bus = bus();
    for version in ["2024-11-05", "2025-06-18", "2025-11-25"] {
        let mut client = stdio_client(&bus, version).await;
        client.send(&json!([request(1, "ping", json!({}))])).await;
        assert_eq!(client.next().await["error"]["code"], -32600, "{version}");
    }
    let mut client = stdio_client(&bus, "2025-03-26").await;
    for batch in [json!([]), vec![request(1, "ping", json!({})); MAX_BATCH + 1].into()] {
        client.send(&batch).await;
        assert_eq!(client.next().await["error"]["code"], -32600);
    }
    client.send(&vec![request(1, "ping", json!({})); MAX_BATCH].into()).await;
    assert_eq!(client.next().await.as_array().map(Vec::len), Some(MAX_BATCH));
}

#[tokio::test]
async fn a_batch_over_http_is_answered_by_a_batch_or_a_stream() {
    let bus = bus();
    let options = HttpOptions { legacy_quiet: Duration::from_millis(500), ..HttpOptions::default() };
    let endpoint = Endpoint::start(&bus, options).await;
    let session = http_session(&endpoint, "2025-03-26").await;
    let headers = [("mcp-session-id", session.as_str())];
    let notes = endpoint.post(&headers, &json!([note(), note()])).await;
    assert_eq!(notes.status(), StatusCode::ACCEPTED);
    let batch = json!([tool_call(1), note(), tool_call(2), 7]);
    let (mut streamed, ()) = tokio::join!(endpoint.post(&headers, &batch), async {
        let (one, two) = (bus.next_call().await, bus.next_call().await);
        one.notify("notifications/message", json!({"data": 1})).await;
        two.reply(json!({"n": 2})).await;
        one.reply(json!({"n": 1})).await;
    });
    assert!(streamed.is_stream());
    let mut seen = Vec::new();
    while let Some((_, message)) = streamed.event().await {
        seen.push(message);
    }
    assert_eq!(seen.iter().filter(|message| message["method"] == "notifications/message").count(), 1);
    let ids: Vec<_> = seen.iter().filter_map(|message| message["result"]["n"].as_u64()).collect();
    assert!(ids.len() == 2 && ids.contains(&1) && ids.contains(&2), "{seen:?}");

    bus.serve(answer);
    let responses = sorted(endpoint.post(&headers, &batch).await.json().await);
    assert_eq!((&responses[1]["result"]["n"], &responses[2]["result"]["n"]), (&json!(1), &json!(2)), "{responses:?}");
    assert_eq!(responses[0]["error"]["code"], -32700);

    let other = http_session(&endpoint, "2025-11-25").await;
    let refused = endpoint.post(&[("mcp-session-id", other.as_str())], &batch).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    assert_eq!(refused.json().await["error"]["code"], -32600);
}
