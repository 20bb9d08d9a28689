//! All targets, by name.

mod config;
mod damage;
mod framings;
mod handshake;
mod http;
mod journal;
mod link;
mod mcp;
mod names;
mod policy;
mod redaction;
mod sse;
mod store;

use crate::Target;

/// Every target and its name, which is also the name of its folder in `corpus`.
pub const TARGETS: &[(&str, Target)] = &[
    ("client_json", framings::client_json),
    ("broker_json", framings::broker_json),
    ("client_compact", framings::client_compact),
    ("broker_compact", framings::broker_compact),
    ("handshake", handshake::handshake),
    ("http", http::http),
    ("sse", sse::sse),
    ("policy", policy::policy),
    ("config", config::config),
    ("store", store::store),
    ("journal", journal::journal),
    ("link", link::link),
    ("mcp", mcp::mcp),
    ("names", names::names),
    ("redaction", redaction::redaction),
];
