//! Test fixtures for both ends of a worker: clients, and a fake bus with hosts.

pub mod bus;
pub mod http;
pub mod stdio;

use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use toolbus_mcp::{Era, HostManifest, ListKind, Raw, ServerManifest, ServerState, SomeTools, raw};
use toolbus_worker::HostEntry;

/// Upper bound for every wait in a test.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(10);

pub fn host(name: &str, servers: Vec<ServerManifest>) -> HostEntry {
    HostEntry {
        name: name.into(),
        away_since_ms: None,
        manifest: Arc::new(HostManifest { servers, ..HostManifest::default() }),
    }
}

pub fn away(mut host: HostEntry) -> HostEntry {
    host.away_since_ms = Some(1_790_000_000_000);
    host
}

/// The manifest of a server with these tools.
pub fn server(name: &str, tools: &[&str]) -> ServerManifest {
    let capabilities = json!({"tools": {"listChanged": true}, "logging": {}, "resources": {"subscribe": true}});
    ServerManifest {
        name: name.into(),
        state: ServerState::Up,
        down: None,
        eras: vec![Era::Legacy, Era::Modern],
        initialize: Some(raw(&json!({"protocolVersion": "2025-11-25", "capabilities": capabilities,
            "serverInfo": {"name": name, "version": "1"}, "instructions": format!("how to use {name}")}))),
        discover: Some(raw(&json!({"resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 5,
            "cacheScope": "public", "capabilities": capabilities,
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": name, "version": "1"}}}))),
        tools: tools.iter().map(|tool| item(json!({"name": tool, "inputSchema": {"type": "object"}}))).collect(),
        resources: Vec::new(),
        resource_templates: Vec::new(),
        prompts: Vec::new(),
        withheld: Vec::new(),
        fail_fast: SomeTools::default(),
        alone: SomeTools::default(),
        shared: false,
        replay_safe: SomeTools::default(),
    }
}

pub fn with(mut server: ServerManifest, kind: ListKind, items: &[Value]) -> ServerManifest {
    *server.items_mut(kind) = items.iter().cloned().map(item).collect();
    server
}

pub fn item(value: Value) -> Raw {
    raw(&value)
}

pub fn initialize(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": {"protocolVersion": "2025-11-25",
        "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}})
}

pub fn request(id: impl Into<Value>, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params})
}

/// A request of the modern era.
pub fn modern(id: impl Into<Value>, method: &str, mut params: Value) -> Value {
    let meta = params.as_object_mut().unwrap().entry("_meta").or_insert_with(|| json!({}));
    meta["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
    meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
    request(id, method, params)
}

pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, future).await.unwrap_or_else(|_| panic!("timeout: {what}"))
}

/// Polls until the condition holds.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    soon(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Moves the clock forward, so that timeouts don't depend on the speed of the machine. Timers that are due have fired
/// when it returns.
pub async fn skip(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
    tokio::time::sleep(Duration::from_millis(2)).await;
}

/// Adds tasks of its own to the server, in both eras.
pub fn with_own_tasks(mut server: ServerManifest) -> ServerManifest {
    let add = |handshake: &mut Option<Raw>, name: &str, value: Value| {
        let mut result: Value = serde_json::from_str(handshake.as_ref().unwrap().get()).unwrap();
        result["capabilities"][name] = value;
        *handshake = Some(raw(&result));
    };
    add(&mut server.initialize, "tasks", json!({"requests": {"tools": {"call": {}}}}));
    add(&mut server.discover, "extensions", json!({"io.modelcontextprotocol/tasks": {}}));
    server
}
