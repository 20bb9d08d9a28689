//! Third-party servers, in both eras and over both transports. The tests need the servers that `cargo xtask parts`
//! installs (in `TOOLBUS_PARTS`); without them, they do nothing.

use crate::support::{Server, guarded, notification, probe_eras, soon, value};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use toolbus_mcp::{Era, Outcome, meta, raw};
use toolbus_upstream::{CallEvent, ServerCall, ServerConfig};

fn parts() -> Option<PathBuf> {
    let parts = std::env::var_os("TOOLBUS_PARTS").map(PathBuf::from).filter(|parts| parts.is_dir());
    if parts.is_none() {
        eprintln!("no installed parts: TOOLBUS_PARTS is not set");
    }
    parts
}

fn python() -> Option<String> {
    parts().map(|parts| parts.join("python/bin/python").display().to_string())
}

/// A server that supports both eras.
fn fixture() -> Option<ServerConfig> {
    let program = r#"from mcp_everything_server.server import mcp; mcp.run(transport="stdio")"#;
    python().map(|python| ServerConfig::stdio("fixture", python, &["-c", program]))
}

struct Web(Child, ServerConfig);

impl Web {
    async fn start() -> Option<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).ok()?.port();
        let program = "from mcp_everything_server.server import main; main()";
        let mut command = Command::new(python()?);
        command.args(["-c", program, "--port", &port.to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
        let web = Self(command.spawn().ok()?, ServerConfig::http("web", format!("http://127.0.0.1:{port}/mcp")));
        let up = async {
            while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        soon(up).await;
        Some(web)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn open(config: &ServerConfig, era: Era) -> Server {
    let server = Server::open(config, era, &guarded()).await;
    if era == Era::Legacy {
        let initialize = json!({"protocolVersion": "2025-11-25", "capabilities": {"sampling": {}, "roots": {}},
            "clientInfo": {"name": "t", "version": "1"}});
        value(server.request("initialize", initialize).await);
        server.connection.notify("notifications/initialized", None).await.expect("sent");
    }
    server
}

fn params(era: Era, mut params: Value) -> Value {
    params["_meta"] = json!({"progressToken": "p-1"});
    if era == Era::Modern {
        params["_meta"][meta::PROTOCOL_VERSION] = json!("2026-07-28");
        params["_meta"][meta::CLIENT_CAPABILITIES] = json!({"sampling": {}});
    }
    params
}

async fn call(server: &Server, era: Era, tool: &str, arguments: Value) -> ServerCall {
    let params = raw(&params(era, json!({"name": tool, "arguments": arguments})));
    server.connection.start("tools/call", Some(params)).await.expect("sent")
}

/// The same calls in every era and over every transport.
async fn exercise(config: &ServerConfig, era: Era) {
    let server = open(config, era).await;
    let tools = value(server.request("tools/list", params(era, json!({}))).await);
    assert!(tools["tools"].as_array().is_some_and(|tools| tools.len() > 10), "{tools}");

    let mut progress = call(&server, era, "test_tool_with_progress", json!({})).await;
    for _ in 0..3 {
        let (method, params) = notification(&mut progress).await;
        assert_eq!(method, "notifications/progress");
        assert!(params.contains("\"p-1\""), "{params}");
    }
    assert!(matches!(soon(progress.next()).await, CallEvent::Done(Ok(Outcome::Result(_)))));

    let failing = call(&server, era, "test_error_handling", json!({})).await;
    assert_eq!(value(soon(failing.outcome()).await)["isError"], true);
    soon(server.connection.close()).await;
}

#[tokio::test]
async fn the_fixture_supports_both_eras_over_stdio() {
    let Some(fixture) = fixture() else { return };
    let eras = probe_eras(&fixture, &guarded()).await.expect("server answers");
    assert!(eras.speaks(Era::Modern) && eras.speaks(Era::Legacy), "{eras:?}");
    exercise(&fixture, Era::Legacy).await;
    exercise(&fixture, Era::Modern).await;
}

#[tokio::test]
async fn the_fixture_supports_both_eras_over_http() {
    let Some(web) = Web::start().await else { return };
    let eras = probe_eras(&web.1, &guarded()).await.expect("server answers");
    assert!(eras.speaks(Era::Modern) && eras.speaks(Era::Legacy), "{eras:?}");
    exercise(&web.1, Era::Legacy).await;
    exercise(&web.1, Era::Modern).await;
}

#[tokio::test]
async fn a_real_servers_request_is_answered_over_both_transports() {
    let (Some(fixture), Some(web)) = (fixture(), Web::start().await) else { return };
    for config in [&fixture, &web.1] {
        let server = open(config, Era::Legacy).await;
        let mut asking = call(&server, Era::Legacy, "test_sampling", json!({"prompt": "hi"})).await;
        let CallEvent::Request { id, method, .. } = soon(asking.next()).await else { panic!("not a request") };
        assert_eq!(method, "sampling/createMessage");
        let answer = json!({"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"});
        server.connection.answer(&id, Outcome::Result(raw(&answer))).await.expect("sent");
        let CallEvent::Done(outcome) = soon(asking.next()).await else { panic!("not the end of the call") };
        assert!(value(outcome)["content"][0]["text"].as_str().is_some_and(|text| text.contains("hello")));
    }
}

#[tokio::test]
async fn a_stream_that_the_server_closes_on_purpose_is_resumed() {
    let Some(web) = Web::start().await else { return };
    let server = open(&web.1, Era::Legacy).await;
    let outcome = soon(call(&server, Era::Legacy, "test_reconnection", json!({})).await.outcome()).await;
    assert_eq!(value(outcome).get("isError").unwrap_or(&json!(false)), &json!(false));
}

#[tokio::test]
async fn annotated_arguments_are_sent_as_headers_to_a_modern_server() {
    let Some(web) = Web::start().await else { return };
    let server = open(&web.1, Era::Modern).await;
    value(server.request("tools/list", params(Era::Modern, json!({}))).await);
    let arguments = json!({"region": "Zürich"});
    let answer = value(soon(call(&server, Era::Modern, "test_x_mcp_header", arguments).await.outcome()).await);
    assert!(answer.get("isError").is_none_or(|error| error == false), "{answer}");
}

#[tokio::test]
async fn the_npm_servers_are_legacy_and_leave_no_process() {
    let Some(parts) = parts() else { return };
    let modules = parts.join("node/node_modules");
    let node = modules.join("node/bin/node").display().to_string();
    for (name, argument) in [("everything", "stdio"), ("filesystem", "/tmp"), ("memory", "")] {
        let script = modules.join(format!("@modelcontextprotocol/server-{name}/dist/index.js")).display().to_string();
        let config = ServerConfig::stdio(name, &node, &[&script, argument]);
        let eras = probe_eras(&config, &guarded()).await.expect("server answers");
        assert_eq!((eras.speaks(Era::Legacy), eras.speaks(Era::Modern)), (true, false), "{name}");
        let server = open(&config, Era::Legacy).await;
        let tools = value(server.request("tools/list", json!({})).await);
        assert!(tools["tools"].as_array().is_some_and(|tools| tools.len() > 5), "{tools}");
        soon(server.connection.close()).await;
    }
}
