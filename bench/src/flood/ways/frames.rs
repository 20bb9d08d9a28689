//! The frames that hostile agents send, in the JSON framing.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::flood::deployment::{HOST, LEGACY_SERVER, LEGACY_TOOL};

/// Messages expire soon after the flood, so that those that outlive their deadline can be seen.
const DEADLINE_MS: u64 = 5_000;
/// Length of an announced manifest.
const MANIFEST: usize = 10_000;

/// Connects as a further mailbox of the agent.
pub fn hello(token: &str) -> String {
    let name = format!("~#{}", unique());
    let agent = json!({"session_id": name});
    json!({"kind": "hello", "agent": agent, "token": token, "version": 2, "framing": "json"}).to_string()
}

/// A call of the legacy tool, which takes this long.
pub fn call(number: u64, session: &str, delay_ms: u64) -> String {
    let mut arguments = json!({"text": format!("{number}")});
    if delay_ms > 0 {
        arguments["delay_ms"] = json!(delay_ms);
    }
    rpc(session, "tools/call", json!({"name": LEGACY_TOOL, "arguments": arguments}))
}

/// One of the requests whose answer is longer than the request.
pub fn list(number: u64) -> String {
    let id = unique();
    match number % 5 {
        0 => rpc("lists", "tools/list", json!({})),
        1 => json!({"kind": "hosts", "request_id": id}).to_string(),
        2 => json!({"kind": "status", "request_id": id}).to_string(),
        3 => json!({"kind": "inspect", "request_id": id, "peers": vec![HOST; 256], "rows_of": HOST}).to_string(),
        _ => json!({"kind": "list_connected", "role": "honest"}).to_string(),
    }
}

pub fn announce(number: u64) -> String {
    let manifest = json!({"tools": [number.to_string()], "text": "x".repeat(MANIFEST)});
    json!({"kind": "announce", "request_id": unique(), "manifests": [{"manifest": manifest}]}).to_string()
}

pub fn cancel(_: u64) -> String {
    json!({"kind": "cancel", "to": HOST, "correlation_id": unique(), "request_id": unique()}).to_string()
}

/// A large message to the host, to the agent's own mailbox, or to an unknown one: what is before and behind its long text.
pub fn around_large(number: u64) -> (String, String) {
    const PLACE: &str = "large";
    let frame = match number % 3 {
        0 => rpc("big", "tools/call", json!({"name": LEGACY_TOOL, "arguments": {"text": PLACE}})),
        1 => deliver("hostile-0", "task", json!(PLACE)),
        _ => deliver(&format!("unknown-{number}"), "task", json!(PLACE)),
    };
    let (before, after) = frame.split_once(PLACE).expect("the frame has the place once");
    (before.to_owned(), after.to_owned())
}

fn rpc(session: &str, method: &str, params: Value) -> String {
    let client = json!({"name": "hostile", "version": "1"});
    let initialize = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
    let client = json!({"era": "legacy", "initialize": initialize});
    let body = json!({
        "op": "rpc", "server": LEGACY_SERVER, "session": session, "client": client, "method": method, "params": params
    });
    deliver(HOST, "mcp_request", body)
}

fn deliver(to: &str, kind: &str, body: Value) -> String {
    let message = json!({"id": unique(), "kind": kind, "body": body, "created_at": "2026-11-15T19:34:13Z"});
    json!({"kind": "deliver", "to": to, "message": message, "deadline_ms": DEADLINE_MS}).to_string()
}

/// A name that no other frame of this run has.
fn unique() -> String {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), NUMBERS.fetch_add(1, Ordering::Relaxed))
}
