//! Results of `initialize` and `server/discover` that the worker makes itself: from the manifest of a server that is
//! unavailable, or merged from several servers.

use super::tasks::offer;
use crate::view::{Upstream, View};
use serde_json::{Map, Value, json};
use toolbus_mcp::{Era, LATEST_LEGACY, LEGACY_VERSIONS, MODERN_VERSIONS, Members, Raw, raw};

pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

pub fn initialize_from_manifest(upstream: &Upstream, params: Option<&Raw>) -> Option<Raw> {
    let manifest = upstream.manifest();
    if let Some(initialize) = &manifest.initialize {
        let mut result = Members::of(Some(initialize)).ok()?.clone();
        let offered = result.text("protocolVersion");
        let version = negotiated_version(params, offered.as_deref());
        result.set("protocolVersion", raw(&version));
        return Some(offer::in_initialize(result.into_raw()));
    }
    let discover = object(manifest.discover.as_ref()?);
    let info = discover.get("_meta").and_then(|meta| meta.get(SERVER_INFO)).cloned();
    let mut result = json!({
        "protocolVersion": negotiated_version(params, None),
        "capabilities": discover.get("capabilities").cloned().unwrap_or_else(|| json!({})),
        "serverInfo": info.unwrap_or_else(|| json!({"name": upstream.server(), "version": "unknown"})),
    });
    if let Some(instructions) = discover.get("instructions") {
        result["instructions"] = instructions.clone();
    }
    Some(offer::in_initialize(raw(&result)))
}

pub fn discover_from_manifest(upstream: &Upstream) -> Option<Raw> {
    let manifest = upstream.manifest();
    if let Some(discover) = &manifest.discover {
        return Some(offer::in_discover(discover.clone()));
    }
    let initialize = object(manifest.initialize.as_ref()?);
    let mut capabilities = initialize.get("capabilities").cloned().unwrap_or_else(|| json!({}));
    drop_legacy_tasks(&mut capabilities);
    let info = initialize
        .get("serverInfo")
        .cloned()
        .unwrap_or_else(|| json!({"name": upstream.server(), "version": "unknown"}));
    let instructions = initialize.get("instructions").and_then(Value::as_str).map(ToOwned::to_owned);
    Some(offer::in_discover(discover(capabilities, info, instructions)))
}

pub fn merged_initialize(view: &View, params: Option<&Raw>) -> Raw {
    let version = negotiated_version(params, None);
    let mut capabilities = merged_capabilities(view, Era::Legacy);
    if version == LATEST_LEGACY {
        merge(&mut capabilities, offer::legacy_capability());
    }
    let mut result = json!({"protocolVersion": version, "capabilities": capabilities, "serverInfo": own_info()});
    if let Some(instructions) = joined_instructions(view, Era::Legacy) {
        result["instructions"] = instructions.into();
    }
    raw(&result)
}

pub fn merged_discover(view: &View) -> Raw {
    let mut capabilities = merged_capabilities(view, Era::Modern);
    drop_legacy_tasks(&mut capabilities);
    merge(&mut capabilities, offer::modern_capability());
    discover(capabilities, own_info(), joined_instructions(view, Era::Modern))
}

/// Modern clients do not know the legacy `tasks` capability.
fn drop_legacy_tasks(capabilities: &mut Value) {
    capabilities.as_object_mut().map(|capabilities| capabilities.remove("tasks"));
}

pub fn own_info() -> Value {
    json!({"name": "toolbus", "title": "toolbus", "version": env!("CARGO_PKG_VERSION")})
}

fn discover(capabilities: Value, info: Value, instructions: Option<String>) -> Raw {
    let mut result = json!({
        "resultType": "complete",
        "supportedVersions": MODERN_VERSIONS,
        "capabilities": capabilities,
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {SERVER_INFO: info},
    });
    if let Some(instructions) = instructions {
        result["instructions"] = instructions.into();
    }
    raw(&result)
}

/// The client's version, or the highest offered version if the client's is unknown or newer.
fn negotiated_version(params: Option<&Raw>, offered: Option<&str>) -> String {
    let rank = |version: &str| LEGACY_VERSIONS.iter().position(|known| *known == version);
    let requested = Members::of(params).ok().and_then(|params| params.text("protocolVersion"));
    let highest = offered.unwrap_or(LATEST_LEGACY);
    match requested {
        Some(requested) if rank(&requested).is_some() && rank(&requested) <= rank(highest) => requested,
        _ => highest.to_owned(),
    }
}

/// Declares `listChanged` for all kinds of lists, because hosts connect and disconnect at any time.
fn merged_capabilities(view: &View, era: Era) -> Value {
    let changing = json!({"listChanged": true});
    let mut merged = json!({"tools": changing, "resources": changing, "prompts": changing});
    for upstream in view.upstreams() {
        if let Some(capabilities) =
            upstream.greeting(era).and_then(|handshake| object(handshake).remove("capabilities"))
        {
            merge(&mut merged, capabilities);
        }
    }
    merged
}

/// Merges objects recursively and ORs booleans; for any other conflict the first value wins.
fn merge(into: &mut Value, other: Value) {
    match (into, other) {
        (Value::Object(into), Value::Object(other)) => {
            for (name, value) in other {
                match into.get_mut(&name) {
                    Some(known) => merge(known, value),
                    None => drop(into.insert(name, value)),
                }
            }
        }
        (Value::Bool(into), Value::Bool(other)) => *into |= other,
        _ => {}
    }
}

fn joined_instructions(view: &View, era: Era) -> Option<String> {
    let mut joined = String::new();
    for upstream in view.upstreams() {
        let Some(handshake) = upstream.greeting(era) else { continue };
        let Some(instructions) = Members::of(Some(handshake)).ok().and_then(|handshake| handshake.text("instructions"))
        else {
            continue;
        };
        let namesakes = view.upstreams().iter().filter(|other| other.server() == upstream.server()).count();
        let host = if namesakes > 1 { format!("{}/", upstream.host) } else { String::new() };
        let gap = if joined.is_empty() { "" } else { "\n\n" };
        joined.push_str(&format!("{gap}# {host}{}\n\n{}", upstream.server(), instructions.trim()));
    }
    (!joined.is_empty()).then_some(joined)
}

fn object(text: &Raw) -> Map<String, Value> {
    serde_json::from_str(text.get()).unwrap_or_default()
}
