//! Servers over streamable HTTP, in both eras, on a real socket.

use crate::support::{Server, TIMEOUT, WebScript, json_text, notification, probe_eras, soon, text, value};
use serde_json::{Value, json};
use std::time::Duration;
use toolbus_mcp::{Era, Outcome, raw};
use toolbus_upstream::{
    CallEvent, ConnectionOptions, ServerConfig, ServerConnection, ServerError, ServerEvent, TransportConfig,
};

struct HttpServer(WebScript);

impl HttpServer {
    fn start() -> Self {
        Self(WebScript::start("fake_http.py"))
    }

    fn config(&self, path: &str) -> ServerConfig {
        let mut config = ServerConfig::http("web", format!("http://127.0.0.1:{}{path}", self.0.port));
        let TransportConfig::Http { headers, .. } = &mut config.transport else { unreachable!() };
        headers.insert("Authorization".into(), "Bearer s3cret-token".into());
        config
    }

    async fn modern(&self) -> Server {
        Server::open(&self.config("/mcp"), Era::Modern, &ConnectionOptions::default()).await
    }

    async fn legacy(&self) -> Server {
        let server = Server::open(&self.config("/mcp"), Era::Legacy, &ConnectionOptions::default()).await;
        value(server.request("initialize", json!({"protocolVersion": "2025-11-25"})).await);
        server.connection.notify("notifications/initialized", None).await.expect("accepted");
        server
    }

    /// The requests that the server has recorded, queried on a separate connection.
    async fn state(&self) -> Value {
        let mut config = self.config("/mcp");
        config.secrets.redact_results = false;
        let server = Server::open(&config, Era::Modern, &ConnectionOptions::default()).await;
        value(server.request("state", json!({})).await)
    }

    async fn until(&self, description: &str, condition: impl Fn(&Value) -> bool) {
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        while !condition(&self.state().await) {
            assert!(tokio::time::Instant::now() < deadline, "timed out waiting until {description}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn both_eras_are_detected_and_the_session_of_the_probe_is_deleted() {
    let web = HttpServer::start();
    let eras = probe_eras(&web.config("/mcp"), &ConnectionOptions::default()).await.expect("server answers");
    assert!(eras.speaks(Era::Modern) && eras.speaks(Era::Legacy));
    web.until("the session is deleted", |state| state["deleted"] == json!(["session-1"])).await;
}

#[tokio::test]
async fn a_legacy_session_sends_its_headers_and_is_deleted_on_close() {
    let web = HttpServer::start();
    let server = web.legacy().await;
    let params = r#"{"name":"json","big":12345678901234567890123,"f":1.0}"#;
    let call = server.connection.start("tools/call", Some(json_text(params))).await.expect("sent");
    assert_eq!(text(soon(call.outcome()).await), params);
    soon(server.connection.close()).await;
    let state = web.state().await;
    let headers = |at: usize| state["posts"][at]["headers"].clone();
    assert!(headers(0).get("mcp-session-id").is_none() && headers(0).get("mcp-protocol-version").is_none());
    assert_eq!(headers(0)["authorization"], "Bearer s3cret-token");
    assert_eq!(headers(2)["mcp-session-id"], "session-1");
    assert_eq!(headers(2)["mcp-protocol-version"], "2025-06-18");
    assert_eq!(headers(2)["accept"], "application/json, text/event-stream");
    assert!(headers(2).get("mcp-method").is_none());
    assert_eq!(state["deleted"], json!(["session-1"]));
}

#[tokio::test]
async fn modern_requests_repeat_method_and_name_in_headers() {
    let web = HttpServer::start();
    let server = web.modern().await;
    value(server.request("tools/list", json!({})).await);
    value(server.call("json", json!({"region": "Zürich"})).await);
    let state = web.state().await;
    let headers = &state["posts"][1]["headers"];
    assert_eq!(headers["mcp-protocol-version"], "2026-07-28");
    assert_eq!((&headers["mcp-method"], &headers["mcp-name"]), (&json!("tools/call"), &json!("json")));
    assert_eq!(headers["mcp-param-region"], "=?base64?WsO8cmljaA==?=");
    assert!(headers.get("mcp-session-id").is_none());
}

#[tokio::test]
async fn notifications_on_a_stream_arrive_before_the_result() {
    let web = HttpServer::start();
    for server in [web.legacy().await, web.modern().await] {
        let params = json!({"name": "stream", "_meta": {"progressToken": "t"}});
        let mut call = server.connection.start("tools/call", Some(raw(&params))).await.expect("sent");
        for number in 0..3 {
            let (method, params) = notification(&mut call).await;
            assert_eq!(method, "notifications/progress");
            assert_eq!(params, format!(r#"{{"progressToken": "t", "progress": {number}}}"#));
        }
        let CallEvent::Done(outcome) = soon(call.next()).await else { panic!("not the end of the call") };
        assert_eq!(text(outcome), r#"{"n":1.0}"#);
    }
}

#[tokio::test]
async fn a_server_request_on_a_calls_stream_belongs_to_that_call() {
    let web = HttpServer::start();
    let server = web.legacy().await;
    let mut other = server.start("endless", json!({})).await;
    notification(&mut other).await;
    let mut call = server.start("ask", json!({})).await;
    let CallEvent::Request { id, method, .. } = soon(call.next()).await else { panic!("not a request") };
    assert_eq!(method, "roots/list");
    server.connection.answer(&id, Outcome::Result(raw(&json!({"roots": []})))).await.expect("accepted");
    assert!(matches!(soon(call.next()).await, CallEvent::Done(Ok(_))));
}

#[tokio::test]
async fn the_stream_outside_of_calls_is_resumed_after_its_last_event() {
    let web = HttpServer::start();
    let mut server = web.legacy().await;
    for after in [Value::Null, json!("own-1")] {
        let ServerEvent::Notification { method, params } = server.next_event().await else {
            panic!("not a notification")
        };
        assert_eq!(method, "notifications/tools/list_changed");
        let params: Value = serde_json::from_str(params.expect("params").get()).expect("valid JSON");
        assert_eq!(params, json!({"after": after}));
    }
}

#[tokio::test]
async fn an_interrupted_response_is_resumed_after_its_last_event() {
    let web = HttpServer::start();
    let server = web.legacy().await;
    let mut call = server.start("break", json!({})).await;
    assert_eq!(notification(&mut call).await.1, r#"{"data": "half"}"#);
    let CallEvent::Done(outcome) = soon(call.next()).await else { panic!("not the end of the call") };
    assert_eq!(value(outcome), json!({"resumed": true}));
    let number = call.id().as_u64().expect("a number");
    let resumed = json!([format!("call-{number}-1"), format!("call-{number}-2")]);
    assert_eq!(web.state().await["resumed"], resumed);
}

#[tokio::test]
async fn an_interrupted_response_without_event_ids_is_an_error() {
    let web = HttpServer::start();
    for server in [web.legacy().await, web.modern().await] {
        let error = server.call("break_for_good", json!({})).await.expect_err("no answer");
        assert!(matches!(error, ServerError::BrokenOff { .. }), "{error:?}");
        assert!(!error.was_not_run());
        assert!(server.connection.closed().is_none());
    }
}

#[tokio::test]
async fn a_modern_cancel_closes_the_stream() {
    let web = HttpServer::start();
    let server = web.modern().await;
    let mut call = server.start("endless", json!({})).await;
    notification(&mut call).await;
    call.cancel(None).await;
    assert!(matches!(soon(call.next()).await, CallEvent::Done(Err(ServerError::Cancelled { .. }))));
    web.until("the server sees it", |state| state["closed"] == json!([1])).await;
    let mut call = server.start("endless", json!({})).await;
    notification(&mut call).await;
    drop(call);
    web.until("the server sees it", |state| state["closed"] == json!([1, 2])).await;
}

#[tokio::test]
async fn a_legacy_cancel_sends_a_notification() {
    let web = HttpServer::start();
    let server = web.legacy().await;
    let mut call = server.start("endless", json!({})).await;
    notification(&mut call).await;
    let number = call.id().as_u64().expect("a number");
    drop(call);
    web.until("the server is notified", |state| {
        let posts = state["posts"].as_array().expect("posts");
        posts.iter().any(|post| {
            post["message"]["method"] == "notifications/cancelled"
                && post["message"]["params"] == json!({"requestId": number})
        })
    })
    .await;
}

#[tokio::test]
async fn a_lost_session_closes_the_connection_and_the_call_was_not_run() {
    let web = HttpServer::start();
    let mut server = web.legacy().await;
    value(server.call("forget", json!({})).await);
    // The stream outside of calls may have detected it first.
    let error = server.request("tools/call", json!({"name": "json"})).await.expect_err("no session");
    assert!(matches!(error, ServerError::SessionGone { .. }) && error.was_not_run(), "{error:?}");
    loop {
        match server.next_event().await {
            ServerEvent::Closed(ServerError::SessionGone { .. }) => break,
            ServerEvent::Notification { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(server.connection.start("x", None).await.is_err());
}

#[tokio::test]
async fn a_call_started_before_the_session_was_lost_may_have_run() {
    let web = HttpServer::start();
    let server = web.legacy().await;
    let error = server.call("forget_in_call", json!({})).await.expect_err("interrupted");
    assert_eq!(error.code(), "TB0408", "{error:?}");
    assert!(!error.was_not_run(), "must not be repeated: {error:?}");
}

#[tokio::test]
async fn a_response_over_the_limit_fails_only_its_call() {
    let web = HttpServer::start();
    let server = web.modern().await;
    for tool in ["huge", "huge_json"] {
        let error = server.call(tool, json!({})).await.expect_err("too large");
        assert_eq!(error.code(), "TB0405", "{error}");
    }
    value(server.call("json", json!({})).await);
}

#[tokio::test]
async fn json_rpc_errors_and_http_errors_are_distinguished() {
    let web = HttpServer::start();
    let server = web.legacy().await;
    let expected = r#"{"code":-32021,"message":"m","data":{"x":1.0}}"#;
    assert_eq!(text(server.call("error", json!({})).await), expected);
    assert_eq!(text(server.request("vendor/x", json!({})).await), r#"{"code":-32601,"message":"no vendor/x"}"#);
    let message = |error: ServerError| error.to_string();
    let crash = server.call("crash", json!({})).await.map_err(message);
    assert_eq!(crash.expect_err("500"), "server \"web\" answered with HTTP 500: oops");
    let silent = server.call("silent", json!({})).await.map_err(message).expect_err("202");
    assert!(silent.contains("HTTP 202 without an answer"), "{silent}");
    assert!(matches!(server.call("not_json", json!({})).await, Err(ServerError::BadMessage { .. })));
    assert!(server.connection.closed().is_none());
}

#[tokio::test]
async fn redirects_are_followed_only_within_the_host() {
    let web = HttpServer::start();
    let options = ConnectionOptions::default();
    let server = Server::open(&web.config("/moved"), Era::Modern, &options).await;
    value(server.call("json", json!({})).await);
    let server = Server::open(&web.config("/away"), Era::Modern, &options).await;
    let error = server.call("json", json!({})).await.expect_err("a redirect");
    assert!(error.to_string().contains("followed only within the same host"), "{error}");
}

#[tokio::test]
async fn errors_contain_no_secrets() {
    let web = HttpServer::start();
    let server =
        Server::open(&web.config("/locked?key=s3cret-token"), Era::Modern, &ConnectionOptions::default()).await;
    let error = server.call("json", json!({})).await.expect_err("401");
    assert_eq!(error.hint(), "check the server's headers: it did not accept them");
    assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    let unreachable = ServerConfig::http("web", "http://127.0.0.1:1/mcp?key=s3cret");
    let server = Server::open(&unreachable, Era::Modern, &ConnectionOptions::default()).await;
    let error = server.call("json", json!({})).await.expect_err("connection refused");
    assert!(error.was_not_run() && !format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    assert!(error.to_string().starts_with("server \"web\" could not be reached at http://127.0.0.1:1/mcp: "));
}

#[tokio::test]
async fn dropping_the_last_handle_deletes_the_session() {
    let web = HttpServer::start();
    let Server { connection, events } = web.legacy().await;
    let copy: ServerConnection = connection.clone();
    drop((connection, events));
    value(Ok(soon(copy.start("state", None).await.expect("sent").outcome()).await.expect("an answer")));
    drop(copy);
    web.until("the session is deleted", |state| state["deleted"] == json!(["session-1"])).await;
}
