//! Translation between the eras, as functions on raw JSON without I/O.
//!
//! Not used if client and server have the same era: then messages pass unchanged.

pub mod legacy_on_modern;
pub mod listen;
pub mod log_level;
pub mod modern_on_legacy;

use toolbus_mcp::{Members, Raw, member_text};

pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// A server's request to its client.
#[derive(Debug, Clone)]
pub struct InputRequest {
    pub key: String,
    pub method: String,
    pub params: Option<Raw>,
}

/// Whether a client with these capabilities accepts that request.
pub fn client_can(capabilities: &Raw, method: &str) -> bool {
    let name = match method {
        "elicitation/create" => "elicitation",
        "sampling/createMessage" => "sampling",
        "roots/list" => "roots",
        _ => return false,
    };
    Members::of(Some(capabilities)).is_ok_and(|members| members.contains(name))
}

/// Whether a result is `input_required`.
pub fn is_input_required(result: &Raw) -> bool {
    member_text(result, "resultType").is_some_and(|kind| kind == "input_required")
}

/// Whether `capabilities.NAME.FLAG` is true in the result of `initialize` or `server/discover`.
pub fn server_flag(result: &Raw, name: &str, flag: &str) -> bool {
    let find = || {
        let members = Members::of(Some(result)).ok()?;
        let capabilities = Members::of(members.get("capabilities")).ok()?;
        let capability = Members::of(capabilities.get(name)).ok()?;
        Some(capability.get(flag)?.get() == "true")
    };
    find().unwrap_or(false)
}

/// Whether `capabilities.NAME` exists in the result of `initialize` or `server/discover`.
pub fn server_has(result: &Raw, name: &str) -> bool {
    let find = || {
        let members = Members::of(Some(result)).ok()?;
        let capabilities = Members::of(members.get("capabilities")).ok()?;
        Some(capabilities.contains(name))
    };
    find().unwrap_or(false)
}
