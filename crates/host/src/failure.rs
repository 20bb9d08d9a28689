//! The errors that the host itself reports to MCP clients, with their stable codes and hints.

use serde_json::json;
use std::time::Duration;
use toolbus_journal::{JournalError, Start};
use toolbus_mcp::{RpcError, codes};
use toolbus_policy::{Item, LimitKind, Rate};
use toolbus_protocol::{ErrorCode, Timestamp};

pub fn bus(code: ErrorCode, message: impl Into<String>) -> RpcError {
    RpcError::bus(code.code(), message, code.hint())
}

/// A request that can't be audited is not run.
pub fn not_audited(error: &toolbus_audit::AuditError) -> RpcError {
    bus(ErrorCode::AuditFailed, format!("{}: {error}", ErrorCode::AuditFailed.meaning()))
}

pub fn unknown_server(server: &str) -> RpcError {
    bus(ErrorCode::UnknownName, format!("this host has no server {server:?}"))
}

pub fn not_allowed(item: Item<'_>, server: &str, role: Option<&str>) -> RpcError {
    let name = item.name().unwrap_or(server);
    let role = role.map_or("clients without a role".to_owned(), |role| format!("role '{role}'"));
    bus(ErrorCode::NotAllowed, format!("{} '{name}' is not allowed for {role}", item.noun()))
}

pub fn held_back(tool: &str, server: &str) -> RpcError {
    let message = format!("tool {tool:?} of server {server:?} is held back: its definition is not approved");
    bus(ErrorCode::HeldBack, message)
}

/// MCP requires the code for invalid params here; the bus code is in the error's data.
pub fn unlisted(tool: &str) -> RpcError {
    let code = ErrorCode::UnknownName;
    RpcError::invalid_params(format!("Unknown tool: {tool}"))
        .with_data(json!({"code": code.code(), "hint": code.hint()}))
}

pub fn method_not_allowed(method: &str, server: &str, role: Option<&str>) -> RpcError {
    let role = role.map_or("clients without a role".to_owned(), |role| format!("role '{role}'"));
    let message = format!("method '{method}' of server '{server}' is not allowed for {role}");
    bus(ErrorCode::NotAllowed, message)
}

pub fn rate_limited(kind: &LimitKind, rate: Rate, wait: Duration) -> RpcError {
    // Rounded up, so that a retry after this time succeeds.
    let millis = wait.as_nanos().div_ceil(1_000_000);
    let seconds = format!("{}.{:03}", millis / 1000, millis % 1000);
    bus(ErrorCode::RateLimited, format!("{kind} allows {rate}; try again in {seconds} s"))
}

/// MCP requires the code for invalid params here; the bus code is in the error's data.
pub fn unknown_state() -> RpcError {
    let code = ErrorCode::SessionUnknown;
    RpcError::new(codes::INVALID_PARAMS, "unknown or expired requestState")
        .with_data(json!({"code": code.code(), "hint": code.hint()}))
}

/// Carries everything that is known of the attempt.
pub fn outcome_unknown(start: &Start) -> RpcError {
    let Start { server, tool, .. } = start;
    if start.at == 0 {
        let message = format!(
            "tool {tool:?} of server {server:?} may have been started before: this host's journal is new, older or \
             damaged, or another host of this name had the call; whether it had an effect is unknown"
        );
        return unknown(start, message);
    }
    let began = Timestamp::from_ms(start.at);
    let message = format!(
        "the host ended while tool {tool:?} of server {server:?} was running (started {began}); \
         whether it had an effect is unknown"
    );
    unknown(start, message)
}

/// A bug of this host ended the call; whether the server received it is unknown.
pub fn panicked(server: &str, method: &str) -> RpcError {
    bus(
        ErrorCode::OutcomeUnknown,
        format!("{method} at server {server:?} ended by a bug of the host; whether it had an effect is unknown"),
    )
}

/// A bug of this host would have broken the rule, so it did not send the call. An earlier attempt may have been sent.
pub fn broken_invariant(server: &str, method: &str, rule: &str) -> RpcError {
    let message = format!(
        "{method} at server {server:?} was not sent because of a bug of the host ({rule}); \
         whether an earlier attempt had an effect is unknown"
    );
    bus(ErrorCode::OutcomeUnknown, message)
}

/// The call was answered, but its answer is unreadable.
pub fn unreadable_answer(tool: &str, why: &str) -> RpcError {
    let message = format!("the call of {tool:?} was answered, but the answer can't be read: {why}");
    bus(ErrorCode::OutcomeUnknown, message)
}

/// For a call that joined another one, which was cancelled while it ran.
pub fn cancelled_elsewhere(start: &Start) -> RpcError {
    let Start { server, tool, .. } = start;
    unknown(
        start,
        format!("the equal call of tool {tool:?} of server {server:?} that this one joined was cancelled while it ran"),
    )
}

fn unknown(start: &Start, message: String) -> RpcError {
    let code = ErrorCode::OutcomeUnknown;
    let Start { server, tool, attempt, .. } = start;
    bus(code, message).with_data(json!({"code": code.code(), "hint": code.hint(), "outcome": "unknown",
        "server": &**server, "tool": &**tool, "attempt": attempt,
        "startedAt": (start.at > 0).then(|| Timestamp::from_ms(start.at).to_string())}))
}

pub fn poison(tool: &str, attempts: u32) -> RpcError {
    let message =
        format!("the call of {tool:?} was started {attempts} times, and its server or its host ended each time");
    bus(ErrorCode::PoisonCall, message)
}

pub fn not_journaled(error: &JournalError) -> RpcError {
    bus(ErrorCode::JournalFailed, format!("{} ({error})", ErrorCode::JournalFailed.meaning()))
}

pub fn tripped(server: &str, wait: Duration) -> RpcError {
    let seconds = wait.as_secs_f64();
    let message = format!("server {server:?} failed several times in a row; try again in {seconds:.1} s");
    bus(ErrorCode::ServerTripped, message)
}

pub fn unsupported_version(requested: &str) -> RpcError {
    RpcError::new(codes::UNSUPPORTED_VERSION, format!("Unsupported protocol version: {requested}"))
        .with_data(json!({"supported": toolbus_mcp::MODERN_VERSIONS, "requested": requested}))
}
