//! Invalid input over HTTP: each request gets a precise error, and the endpoint goes on.

use crate::support::bus::{FakeBus, echo};
use crate::support::http::Endpoint;
use crate::support::{host, initialize, request, server};
use hyper::StatusCode;
use serde_json::{Value, json};
use toolbus_worker::HttpOptions;

async fn endpoint() -> Endpoint {
    let bus = FakeBus::new(vec![host("h", vec![server("files", &["read"])])]);
    bus.serve(echo);
    Endpoint::start(&bus, HttpOptions { max_body_bytes: 5000, ..HttpOptions::default() }).await
}

const JSON: (&str, &str) = ("content-type", "application/json");
const BOTH: (&str, &str) = ("accept", "application/json, text/event-stream");

#[tokio::test]
async fn a_missing_or_invalid_token_gets_401_with_www_authenticate() {
    let endpoint = endpoint().await;
    for token in ["", "Bearer wrong", "Basic x"] {
        let answer = endpoint.post(&[("authorization", token)], &initialize(1)).await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(answer.header("www-authenticate").as_deref(), Some("Bearer"));
    }
}

#[tokio::test]
async fn a_body_that_is_not_a_single_message_is_rejected() {
    let endpoint = endpoint().await;
    let check = async |body: String, status: u16, id: Value, code: i64| {
        let answer = endpoint.send("POST", &[JSON, BOTH], body.clone()).await;
        assert_eq!(answer.status().as_u16(), status, "{body}");
        let answer = answer.json().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&id, &json!(code)), "{answer}");
    };
    check("nonsense".into(), 400, Value::Null, -32700).await;
    check(String::new(), 400, Value::Null, -32700).await;
    check(format!("[{}]", initialize(1)), 400, Value::Null, -32600).await;
    check(r#"{"jsonrpc":"2.0","id":2,"method":3}"#.into(), 400, json!(2), -32600).await;
    check(r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#.into(), 400, Value::Null, -32600).await;
    check(request(1, "tools/list", json!({"x": "y".repeat(6000)})).to_string(), 413, Value::Null, -32600).await;
}

#[tokio::test]
async fn unsupported_content_types_and_accepts_are_rejected() {
    let endpoint = endpoint().await;
    let check = async |headers: &[(&str, &str)], status: u16| {
        let answer = endpoint.send("POST", headers, initialize(1).to_string()).await;
        assert_eq!(answer.status().as_u16(), status, "{headers:?}");
    };
    check(&[BOTH], 415).await;
    check(&[("content-type", "text/plain"), BOTH], 415).await;
    check(&[("content-type", "application/json; charset=utf-8"), BOTH], 200).await;
    check(&[JSON, ("accept", "application/json")], 406).await;
    check(&[JSON, ("accept", "text/html")], 406).await;
    check(&[JSON], 200).await;
    check(&[JSON, ("accept", "*/*")], 200).await;
    let put = endpoint.send("PUT", &[JSON, BOTH], "").await;
    assert_eq!((put.status().as_u16(), put.header("allow").as_deref()), (405, Some("GET, POST, DELETE")));
}

#[tokio::test]
async fn missing_stale_and_foreign_sessions_are_rejected() {
    let endpoint = endpoint().await;
    let session = endpoint.open().await;
    let body = request(3, "tools/list", json!({}));
    let check = async |headers: &[(&str, &str)], status: u16| {
        let answer = endpoint.post(headers, &body).await;
        assert_eq!(answer.status().as_u16(), status, "{headers:?}");
        answer.json().await
    };
    assert_eq!(check(&[], 400).await["id"], 3);
    assert_eq!(check(&[("mcp-session-id", "stale")], 404).await["error"]["data"]["code"], "TB0413");
    check(&[("mcp-session-id", &session), ("authorization", "Bearer eve")], 404).await;
    check(&[("mcp-session-id", &session), ("mcp-protocol-version", "1.0")], 400).await;
    check(&[("mcp-session-id", &session), ("mcp-protocol-version", "2025-06-18")], 200).await;
    check(&[("mcp-session-id", &session)], 200).await;
    let foreign = endpoint.send("DELETE", &[("mcp-session-id", &session), ("authorization", "Bearer eve")], "").await;
    assert_eq!(foreign.status().as_u16(), 404);
    let ended = endpoint.send("DELETE", &[("mcp-session-id", &session)], "").await;
    assert_eq!(ended.status().as_u16(), 200);
    check(&[("mcp-session-id", &session)], 404).await;
}
