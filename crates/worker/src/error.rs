//! The errors that a front itself has to report to an MCP client, each with its stable code and what to do about it.

use serde_json::json;
use std::time::Duration;
use toolbus_client::BrokerError;
use toolbus_mcp::{MODERN_VERSIONS, RpcError, codes, meta};
use toolbus_protocol::ErrorCode;

/// A new attempt with the same credential is useless.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AuthFailure {
    #[error("no bearer token")]
    Missing,
    #[error("the bearer token is not valid here")]
    Invalid,
    #[error("{reason}")]
    Refused { code: ErrorCode, reason: String },
}

impl AuthFailure {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Missing | Self::Invalid => ErrorCode::BadCredentials,
            Self::Refused { code, .. } => *code,
        }
    }

    pub fn hint(&self) -> &'static str {
        match self {
            Self::Missing | Self::Invalid => "send Authorization: Bearer with a token of this broker",
            Self::Refused { code, .. } => code.hint(),
        }
    }
}

pub fn host_away(host: &str, since: &str) -> RpcError {
    let message = format!("host {host} is away since {since}, and the deadline of the call passed");
    RpcError::bus(ErrorCode::HostAway.code(), message, "start the host again, or give the worker a longer --deadline")
}

/// For a call that was not to wait.
pub fn host_offline(host: &str, since: &str) -> RpcError {
    let code = ErrorCode::HostOffline;
    let message = format!("host {host} is away since {since}, and the call was not to wait for it; it was not run");
    RpcError::bus(code.code(), message, code.hint())
}

/// For one that was taken back too late.
pub fn gone_and_back(host: &str) -> RpcError {
    let code = ErrorCode::OutcomeUnknown;
    let message =
        format!("host {host} left and came back while the call was taken back; whether it was begun is unknown");
    RpcError::bus(code.code(), message, code.hint())
}

/// Only the host can tell about its task.
pub fn task_host_away(host: &str, since: &str) -> RpcError {
    let message = format!("host {host} is away since {since}, and only it can tell about its tasks");
    RpcError::bus(ErrorCode::HostAway.code(), message, "ask again when the host is back; its tasks go on then")
}

/// A question about a task changes nothing about it.
pub fn no_word_of_task(host: &str, limit: Duration) -> RpcError {
    let message = format!("host {host} did not answer within {limit:?}; the task is as it was");
    RpcError::bus(ErrorCode::CallTimeout.code(), message, "ask again")
}

pub fn call_timeout(limit: Duration) -> RpcError {
    let message = format!("no answer within {limit:?}; the call was cancelled");
    RpcError::bus(ErrorCode::CallTimeout.code(), message, "give the worker a longer --deadline")
}

pub fn too_many_calls(limit: usize) -> RpcError {
    let message = format!("{limit} calls of this client are under way");
    RpcError::bus(ErrorCode::TooManyCalls.code(), message, "wait until some of them are answered")
}

pub fn too_many_sessions(limit: usize) -> RpcError {
    let message = format!("there are {limit} MCP sessions already");
    RpcError::bus(ErrorCode::TooManySessions.code(), message, "end sessions with DELETE; idle ones end by themselves")
}

pub fn session_unknown() -> RpcError {
    let data =
        json!({"code": ErrorCode::SessionUnknown.code(), "hint": "send initialize again, without the session header"});
    RpcError::new(codes::INVALID_REQUEST, "Session not found").with_data(data)
}

pub fn unknown_name(what: &str, name: &str) -> RpcError {
    let data = json!({"code": ErrorCode::UnknownName.code(), "hint": "list again; the name has to be one of the list"});
    RpcError::invalid_params(format!("Unknown {what}: {name}")).with_data(data)
}

/// The same words whether there never was one, its time is over, or it is another's.
pub fn unknown_task(id: &str) -> RpcError {
    let code = ErrorCode::UnknownTask;
    RpcError::invalid_params(format!("Unknown task: {id}")).with_data(json!({"code": code.code(), "hint": code.hint()}))
}

pub fn task_cancelled() -> RpcError {
    let code = ErrorCode::Cancelled;
    RpcError::bus(code.code(), "the task was cancelled", code.hint())
}

pub fn no_task_of_this_tool() -> RpcError {
    RpcError::new(codes::METHOD_NOT_FOUND, "Method not found: this tool can't be called as a task")
}

/// Who has not said that it knows tasks is not answered about any.
pub fn tasks_not_declared() -> RpcError {
    let data = json!({"requiredCapabilities": {"extensions": {meta::TASKS_EXTENSION: {}}}});
    RpcError::new(codes::MISSING_CAPABILITY, "Missing required client capability").with_data(data)
}

/// The two eras have different codes for it.
pub fn unknown_resource(modern: bool, uri: &str) -> RpcError {
    let code = if modern { codes::INVALID_PARAMS } else { codes::RESOURCE_NOT_FOUND };
    RpcError::new(code, format!("Resource not found: {uri}")).with_data(json!({"uri": uri}))
}

pub fn header_mismatch(message: impl Into<String>) -> RpcError {
    RpcError::new(codes::HEADER_MISMATCH, message)
}

pub fn unsupported_version(requested: &str) -> RpcError {
    RpcError::new(codes::UNSUPPORTED_VERSION, format!("Unsupported protocol version: {requested}"))
        .with_data(json!({"supported": MODERN_VERSIONS, "requested": requested}))
}

pub fn bad_reply(reason: &str) -> RpcError {
    let message = format!("the host's answer can't be read: {reason}");
    RpcError::bus(ErrorCode::BadServerMessage.code(), message, "host and worker may be of different versions")
}

/// What the bus said no to.
pub fn from_bus(error: &BrokerError) -> RpcError {
    let (code, hint) = match error.code() {
        Some(code) => (code.code(), code.hint()),
        None => (ErrorCode::ServerDied.code(), "look at the broker's log; the outcome of the call is unknown"),
    };
    RpcError::bus(code, error.to_string(), hint)
}
