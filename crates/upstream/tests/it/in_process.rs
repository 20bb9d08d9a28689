//! Servers in this process.

use crate::support::{Server, json_text, probe_eras, soon, text, value};
use serde_json::json;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;
use toolbus_mcp::{Era, Outcome, Raw, raw};
use toolbus_upstream::{
    Caller, ConnectionOptions, InProcessServer, ServerConfig, ServerError, ServerEvent, async_trait,
};

/// Tools that echo their call, wait until they are cancelled, or panic.
#[derive(Default)]
struct Tools {
    names: Mutex<Vec<&'static str>>,
    waiting: AtomicU32,
    changed: Notify,
}

/// Counts a call that waits, until its future is dropped.
struct Waiting<'a>(&'a Tools);

impl<'a> Waiting<'a> {
    fn new(tools: &'a Tools) -> Self {
        tools.waiting.fetch_add(1, Ordering::SeqCst);
        tools.changed.notify_one();
        Self(tools)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_one();
    }
}

#[async_trait]
impl InProcessServer for Tools {
    fn list_tools(&self) -> Vec<Raw> {
        self.names.lock().expect("no panic").iter().map(|name| raw(&json!({"name": name}))).collect()
    }

    async fn call(&self, caller: Caller<'_>, tool: &str, arguments: &Raw) -> Outcome {
        match tool {
            "panic" => panic!("the tool is configured to panic"),
            "wait" => {
                let _waiting = Waiting::new(self);
                std::future::pending().await
            }
            _ => Outcome::Result(raw(&json!([caller.mailbox, caller.role, caller.request, tool, arguments.get()]))),
        }
    }
}

impl Tools {
    async fn until_waiting(&self, count: u32) {
        while self.waiting.load(Ordering::SeqCst) != count {
            soon(self.changed.notified()).await;
        }
    }
}

async fn open() -> (Arc<Tools>, Server) {
    let tools = Arc::new(Tools { names: Mutex::new(vec!["echo"]), ..Tools::default() });
    let config = ServerConfig::in_process("tools", Arc::clone(&tools) as _);
    (tools, Server::open(&config, Era::Modern, &ConnectionOptions::default()).await)
}

#[tokio::test]
async fn it_speaks_the_modern_era_only_and_lists_its_tools() {
    let (tools, server) = open().await;
    let config = ServerConfig::in_process("tools", tools as _);
    let eras = probe_eras(&config, &ConnectionOptions::default()).await.expect("an answer");
    assert_eq!((eras.speaks(Era::Modern), eras.speaks(Era::Legacy)), (true, false));
    assert_eq!(value(server.request("tools/list", json!({})).await)["tools"], json!([{"name": "echo"}]));
    assert!(text(server.request("prompts/list", json!({})).await).contains("-32601"));
}

#[tokio::test]
async fn a_tool_gets_its_caller_and_the_arguments_as_they_were_written() {
    let (_, server) = open().await;
    let caller = Caller { mailbox: "w#mcp", role: Some("reader"), request: "7" };
    let params = json_text("{\"name\": \"echo\", \"arguments\": {\"a\": 1.0,\t\"b\":2}}");
    let call = server.connection.start_for(caller, "tools/call", Some(params)).await.expect("it is open");
    let expected = json!(["w#mcp", "reader", "7", "echo", "{\"a\": 1.0,\t\"b\":2}"]);
    assert_eq!(value(soon(call.outcome()).await), expected);
}

#[tokio::test]
async fn a_panic_is_an_error_of_its_call_only() {
    let (_, server) = open().await;
    assert!(text(server.call("panic", json!({})).await).contains("tool 'panic' panicked"));
    assert!(text(server.call("echo", json!({})).await).contains("echo"));
}

#[tokio::test]
async fn cancelled_and_dropped_calls_and_those_of_a_closed_connection_are_aborted() {
    let (tools, server) = open().await;
    let (cancelled, dropped, closed) = (
        server.start("wait", json!({})).await,
        server.start("wait", json!({})).await,
        server.start("wait", json!({})).await,
    );
    tools.until_waiting(3).await;
    cancelled.cancel(None).await;
    assert!(matches!(soon(cancelled.outcome()).await, Err(ServerError::Cancelled { .. })));
    tools.until_waiting(2).await;
    drop(dropped);
    tools.until_waiting(1).await;
    server.connection.close().await;
    assert!(matches!(soon(closed.outcome()).await, Err(ServerError::Closed { .. })));
    tools.until_waiting(0).await;
    assert!(server.connection.start("tools/list", None).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_changed_list_is_reported_once_it_was_read() {
    let (tools, mut server) = open().await;
    server.request("tools/list", json!({})).await.expect("an answer");
    tools.names.lock().expect("no panic").push("more");
    let ServerEvent::Notification { method, .. } = server.next_event().await else { panic!("not a notification") };
    assert_eq!(method, "notifications/tools/list_changed");
    server.request("tools/list", json!({})).await.expect("an answer");
    let quiet = tokio::time::timeout(std::time::Duration::from_secs(10), server.events.recv()).await;
    assert!(quiet.is_err(), "an unchanged list is not reported: {quiet:?}");
}
