//! The modern era over HTTP: header checks, HTTP statuses, cancellation by closing the stream.

use crate::support::bus::{FakeBus, echo};
use crate::support::http::Endpoint;
use crate::support::{host, modern, server, with};
use hyper::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use toolbus_mcp::{HostReply, ListKind, RpcError};
use toolbus_worker::HttpOptions;

fn bus() -> Arc<FakeBus> {
    let tool = json!({"name": "where", "inputSchema": {"type": "object", "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"}, "count": {"type": "integer", "x-mcp-header": "Count"}}}});
    FakeBus::new(vec![host("h", vec![with(server("files", &[]), ListKind::Tools, &[tool])])])
}

#[tokio::test]
async fn a_response_without_events_is_plain_json() {
    let bus = bus();
    bus.serve(echo);
    let endpoint = Endpoint::start(&bus, HttpOptions::default()).await;
    let answer = endpoint.post_modern(&modern("i", "tools/call", json!({"name": "x"}))).await;
    assert_eq!((answer.status(), answer.header("mcp-session-id")), (StatusCode::OK, None));
    assert_eq!(answer.header("content-type").as_deref(), Some("application/json"));
    let answer = answer.json().await;
    assert_eq!((&answer["id"], &answer["result"]["asked"]), (&json!("i"), &json!("tools/call")));
}

#[tokio::test]
async fn a_call_with_events_becomes_a_stream_that_ends_with_the_response() {
    let bus = bus();
    let endpoint = Endpoint::start(&bus, HttpOptions::default()).await;
    let body = modern(1, "tools/call", json!({"name": "x", "_meta": {"progressToken": 5}}));
    let (mut answer, call) = tokio::join!(endpoint.post_modern(&body), async {
        let call = bus.next_call().await;
        call.notify("notifications/progress", json!({"progressToken": 5, "progress": 50})).await;
        call
    });
    assert!(answer.is_stream());
    assert_eq!(
        answer.event().await.unwrap(),
        (
            None,
            json!({"jsonrpc": "2.0", "method": "notifications/progress",
        "params": {"progressToken": 5, "progress": 50}})
        )
    );
    call.reply(json!({"ok": true})).await;
    assert_eq!(answer.message().await, json!({"jsonrpc": "2.0", "id": 1, "result": {"ok": true}}));
    assert_eq!(answer.block().await, None);
}

#[tokio::test]
async fn a_stopped_service_detaches_from_its_calls_and_cancels_none() {
    let bus = bus();
    let quick = HttpOptions { modern_quiet: Duration::from_millis(5), ..HttpOptions::default() };
    let endpoint = Endpoint::start(&bus, quick).await;
    let body = modern(1, "tools/call", json!({"name": "x"}));
    let (first, call) = tokio::join!(endpoint.post_modern(&body), bus.next_call());
    endpoint.service.detach();
    // The service may still get requests of open connections, also of agents that had no worker yet.
    let headers =
        [("authorization", "Bearer bob"), ("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call")];
    let headers = [&headers[..], &[("mcp-name", "x")]].concat();
    let (second, later) = tokio::join!(endpoint.post(&headers, &body), bus.next_call());
    drop((first, second));
    endpoint.all_disconnected().await;
    let mut detached = bus.detached();
    detached.sort();
    let mut expected = [call.id.clone(), later.id.clone()];
    expected.sort();
    assert_eq!(detached, expected);
}

#[tokio::test]
async fn closing_the_stream_cancels_the_call() {
    let bus = bus();
    let options = HttpOptions {
        modern_quiet: Duration::from_millis(5),
        keepalive: Duration::from_millis(10),
        ..HttpOptions::default()
    };
    let endpoint = Endpoint::start(&bus, options).await;
    let body = modern(1, "tools/call", json!({"name": "x"}));
    let (mut answer, call) = tokio::join!(endpoint.post_modern(&body), bus.next_call());
    assert_eq!(answer.block().await.as_deref(), Some(": ping"));
    drop(answer);
    call.cancelled().await;
}

#[tokio::test]
async fn headers_must_match_the_body() {
    let bus = bus();
    bus.serve(echo);
    let endpoint = Endpoint::start(&bus, HttpOptions::default()).await;
    let good = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", "x")];
    let body = modern(1, "tools/call", json!({"name": "x"}));
    assert_eq!(endpoint.post(&good, &body).await.status(), StatusCode::OK);
    let check = async |headers: &[(&str, &str)]| {
        let answer = endpoint.post(headers, &body).await;
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{headers:?}");
        let answer = answer.json().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32020)), "{headers:?}: {answer}");
    };
    for (at, (name, _)) in good.into_iter().enumerate() {
        let mut wrong = good.to_vec();
        wrong[at] = (name, "");
        check(&wrong).await;
        wrong[at] = (name, "other");
        check(&wrong).await;
        wrong[at] = (name, "2025-11-25");
        check(&wrong).await;
        check(&[&good[..], &[good[at]]].concat()).await;
    }
}

#[tokio::test]
async fn annotated_arguments_are_checked_against_their_headers() {
    let bus = bus();
    bus.serve(echo);
    let endpoint = Endpoint::start(&bus, HttpOptions::default()).await;
    let check = async |arguments: Value, headers: &[(&str, &str)], code: Option<i64>| {
        let mut all = vec![("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", "where")];
        all.extend_from_slice(headers);
        let body = modern(1, "tools/call", json!({"name": "where", "arguments": arguments}));
        let answer = endpoint.post(&all, &body).await.json().await;
        assert_eq!(answer["error"]["code"].as_i64(), code, "{headers:?}: {answer}");
    };
    check(json!({"region": "us", "count": 42}), &[("mcp-param-region", "us"), ("mcp-param-count", "42.0")], None).await;
    check(json!({"region": "über"}), &[("mcp-param-region", "=?base64?w7xiZXI=?=")], None).await;
    check(json!({"region": null}), &[], None).await;
    check(json!({"region": "us"}), &[("mcp-param-region", "eu")], Some(-32020)).await;
    check(json!({"region": "us"}), &[], Some(-32020)).await;
    check(json!({}), &[("mcp-param-region", "us")], Some(-32020)).await;
    check(json!({"region": "us"}), &[("mcp-param-region", "=?base64?%?=")], Some(-32020)).await;
}

#[tokio::test]
async fn errors_determine_the_status() {
    let bus = bus();
    let endpoint = Endpoint::start(&bus, HttpOptions::default()).await;
    for (code, status) in [(-32601, 404), (-32602, 400), (-32021, 400), (-32603, 200), (-32050, 200)] {
        let body = modern(1, "vendor/x", json!({}));
        let (answer, ()) = tokio::join!(endpoint.post_modern(&body), async {
            bus.next_call().await.finish(HostReply::Rpc(RpcError::new(code, "no").into())).await;
        });
        assert_eq!(answer.status().as_u16(), status, "{code}");
        assert_eq!(answer.json().await["error"]["code"], code);
    }
}

#[tokio::test]
async fn missing_meta_unknown_versions_and_removed_methods_are_rejected() {
    let bus = bus();
    let endpoint = Endpoint::start(&bus, HttpOptions::default()).await;
    let check = async |body: Value, version: &str, status: u16, code: i64| {
        let method = body["method"].as_str().unwrap();
        let answer = endpoint.post(&[("mcp-protocol-version", version), ("mcp-method", method)], &body).await;
        assert_eq!(answer.status().as_u16(), status, "{body}");
        let answer = answer.json().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(code)), "{answer}");
    };
    let mut bare = modern(1, "tools/list", json!({}));
    bare["params"]["_meta"].as_object_mut().unwrap().remove("io.modelcontextprotocol/clientCapabilities");
    check(bare, "2026-07-28", 400, -32602).await;
    check(json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}), "2026-07-28", 400, -32602).await;
    let mut future = modern(1, "tools/list", json!({}));
    future["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01".into();
    check(future, "2099-01-01", 400, -32022).await;
    for method in ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"] {
        check(modern(1, method, json!({})), "2026-07-28", 404, -32601).await;
    }
}

#[tokio::test]
async fn only_post_is_allowed_and_notifications_are_dropped() {
    let bus = bus();
    let endpoint = Endpoint::start(&bus, HttpOptions::default()).await;
    for method in ["GET", "DELETE"] {
        let answer = endpoint.send(method, &[("mcp-protocol-version", "2026-07-28")], "").await;
        assert_eq!(
            (answer.status(), answer.header("allow").as_deref()),
            (StatusCode::METHOD_NOT_ALLOWED, Some("POST"))
        );
    }
    let note = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    assert_eq!(endpoint.post(&[("mcp-protocol-version", "2026-07-28")], &note).await.status(), StatusCode::ACCEPTED);
    assert!(bus.all_sent().is_empty());
}

#[tokio::test]
async fn the_same_client_has_the_same_session_at_the_host() {
    let bus = bus();
    let endpoint = Endpoint::start(&bus, HttpOptions::default()).await;
    let session = async |body: Value, token: &str| {
        let headers = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/list"), ("authorization", token)];
        let (_, call) = tokio::join!(endpoint.post(&headers, &body), async {
            let call = bus.next_call().await;
            call.reply(json!({})).await;
            call
        });
        call.rpc.session
    };
    let body = modern(1, "tools/list", json!({}));
    let first = session(body.clone(), "Bearer ann").await;
    assert_eq!(first, session(modern(2, "tools/list", json!({"cursor": "c"})), "Bearer ann").await);
    assert_ne!(first, session(body.clone(), "Bearer bob").await);
    let named = modern(1, "tools/list", json!({"_meta": {"io.modelcontextprotocol/clientInfo": {"name": "x"}}}));
    assert_ne!(first, session(named, "Bearer ann").await);
}

#[tokio::test]
async fn listening_is_a_stream_immediately() {
    let bus = bus();
    let endpoint = Endpoint::start(&bus, HttpOptions::default()).await;
    let body = modern("L", "subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    let (mut answer, call) = tokio::join!(endpoint.post_modern(&body), bus.next_call());
    assert!(answer.is_stream());
    call.notify("notifications/subscriptions/acknowledged", json!({"notifications": {}})).await;
    assert_eq!(answer.message().await["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "L");
    drop(answer);
    call.cancelled().await;
}
