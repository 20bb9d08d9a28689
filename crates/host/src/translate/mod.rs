//! Between the eras, as functions on raw JSON without I/O: a modern client in front of a legacy server, and the reverse.
//!
//! Where client and server speak the same era nothing here is used: their messages pass as they are.

pub mod legacy_on_modern;
pub mod listen;
pub mod log_level;
pub mod modern_on_legacy;

use serde_json::value::RawValue;
use toolbus_mcp::{Members, member_text};

pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// Something that a server wants of the client before it goes on.
#[derive(Debug, Clone)]
pub struct InputRequest {
    pub key: String,
    pub method: String,
    pub params: Option<toolbus_mcp::Raw>,
}

/// Whether a client with those capabilities can be asked this.
pub fn client_can(capabilities: &RawValue, method: &str) -> bool {
    let name = match method {
        "elicitation/create" => "elicitation",
        "sampling/createMessage" => "sampling",
        "roots/list" => "roots",
        _ => return false,
    };
    Members::of(Some(capabilities)).is_ok_and(|members| members.contains(name))
}

/// Whether a result asks its client for more.
pub fn is_input_required(result: &RawValue) -> bool {
    member_text(result, "resultType").is_some_and(|kind| kind == "input_required")
}

/// Whether `capabilities.NAME.FLAG` is true in the result of `initialize` or `server/discover`.
pub fn server_flag(result: &RawValue, name: &str, flag: &str) -> bool {
    let look = || {
        let members = Members::of(Some(result)).ok()?;
        let capabilities = Members::of(members.get("capabilities")).ok()?;
        let capability = Members::of(capabilities.get(name)).ok()?;
        Some(capability.get(flag)?.get() == "true")
    };
    look().unwrap_or(false)
}

pub fn server_has(result: &RawValue, name: &str) -> bool {
    let look = || {
        let members = Members::of(Some(result)).ok()?;
        let capabilities = Members::of(members.get("capabilities")).ok()?;
        Some(capabilities.contains(name))
    };
    look().unwrap_or(false)
}
