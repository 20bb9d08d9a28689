//! Servers over the HTTP transport before streamable HTTP, on a real socket.

use crate::support::{Server, WebScript, notification, probe_eras, soon, value};
use serde_json::json;
use std::time::Duration;
use toolbus_mcp::Era;
use toolbus_upstream::{CallEvent, ConnectionOptions, ServerConfig, ServerError, ServerEvent, TransportConfig};

struct EventServer(WebScript);

impl EventServer {
    fn start() -> Self {
        Self(WebScript::start("fake_event_stream.py"))
    }

    fn config(&self, path: &str) -> ServerConfig {
        let mut config = ServerConfig::sse("old", format!("http://127.0.0.1:{}{path}", self.0.port));
        let TransportConfig::Sse { headers, .. } = &mut config.transport else { unreachable!() };
        headers.insert("Authorization".into(), "Bearer s3cret-token".into());
        config
    }

    async fn open(&self) -> Server {
        let server = Server::open(&self.config("/sse"), Era::Legacy, &ConnectionOptions::default()).await;
        value(server.request("initialize", json!({"protocolVersion": "2024-11-05"})).await);
        server.connection.notify("notifications/initialized", None).await.expect("accepted");
        server
    }
}

#[tokio::test]
async fn a_server_with_an_event_stream_is_probed_and_keeps_its_connection() {
    let old = EventServer::start();
    let eras = probe_eras(&old.config("/sse"), &ConnectionOptions::default()).await.expect("server answers");
    assert!(eras.speaks(Era::Legacy) && !eras.speaks(Era::Modern));
}

#[tokio::test]
async fn calls_are_answered_on_the_stream_with_their_progress_in_any_order() {
    let old = EventServer::start();
    let server = old.open().await;
    let slow = server.start("slow", json!({})).await;
    assert_eq!(value(server.call("echo", json!({"a": 1})).await), json!({"a": 1}));
    assert_eq!(value(soon(slow.outcome()).await), json!({"slow": true}));
    let params = json!({"name": "progress", "_meta": {"progressToken": "mine"}});
    let mut call = server.connection.start("tools/call", Some(toolbus_mcp::raw(&params))).await.expect("sent");
    let (_, progress) = notification(&mut call).await;
    assert!(progress.contains(r#""progressToken": "mine""#), "{progress}");
    value(soon(call.outcome()).await);
    // As on a pipe, a message during the only call counts as a part of it.
    let mut call = server.start("change", json!({})).await;
    assert_eq!(notification(&mut call).await.0, "notifications/tools/list_changed");
    value(soon(call.outcome()).await);
}

#[tokio::test]
async fn the_headers_are_sent_to_the_endpoint_and_a_request_of_the_server_is_answered() {
    let old = EventServer::start();
    let mut server = old.open().await;
    assert_eq!(value(server.call("authorised", json!({})).await), json!({"get": true, "post": true}));
    let mut asking = server.start("ask", json!({})).await;
    let (id, method) = match soon(asking.next()).await {
        CallEvent::Request { id, method, .. } => (id, method),
        _ => match server.next_event().await {
            ServerEvent::Request { id, method, .. } => (id, method),
            other => panic!("{other:?}"),
        },
    };
    assert_eq!(method, "roots/list");
    let roots = toolbus_mcp::Outcome::Result(toolbus_mcp::raw(&json!({"roots": []})));
    server.connection.answer(&id, roots).await.expect("accepted");
    assert_eq!(value(soon(asking.outcome()).await), json!({"roots": []}));
}

#[tokio::test]
async fn an_endpoint_of_another_origin_gets_nothing() {
    let old = EventServer::start();
    let options = ConnectionOptions { start_timeout: Duration::from_secs(10), ..ConnectionOptions::default() };
    let error = probe_eras(&old.config("/foreign"), &options).await.expect_err("refused");
    let expected =
        "server \"old\" sent an invalid message: its endpoint for messages is not of the same origin as its url";
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn what_is_not_an_event_stream_is_reported() {
    let old = EventServer::start();
    let error = probe_eras(&old.config("/missing"), &ConnectionOptions::default()).await.expect_err("404");
    assert!(matches!(error, ServerError::HttpStatus { status: 404, .. }), "{error:?}");
    assert!(error.to_string().ends_with("(for a server that speaks streamable HTTP, the type is \"http\")"), "{error}");
    let error = probe_eras(&old.config("/page"), &ConnectionOptions::default()).await.expect_err("a page");
    assert!(error.to_string().contains("is not an event stream"), "{error}");
}

#[tokio::test]
async fn the_end_of_the_stream_ends_open_calls() {
    let old = EventServer::start();
    let server = old.open().await;
    let error = server.call("hang up", json!({})).await.expect_err("the stream ended");
    assert!(matches!(error, ServerError::BrokenOff { .. }), "{error:?}");
    assert!(server.connection.closed().is_some());
    let again = old.open().await;
    soon(again.connection.close()).await;
    assert!(matches!(again.connection.closed(), Some(ServerError::Closed { .. })));
}
