//! The errors that a frontend itself reports to an MCP client, each with its stable code and a hint.

use serde_json::json;
use std::time::Duration;
use toolbus_client::BrokerError;
use toolbus_mcp::{MODERN_VERSIONS, RpcError, codes, meta};
use toolbus_protocol::ErrorCode;

/// Why an HTTP client was not authenticated. A retry with the same credential fails again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AuthFailure {
    /// The request has no credential.
    #[error("no bearer token")]
    Missing,
    /// The `Authorization` header is malformed or its token is unknown.
    #[error("the bearer token is invalid")]
    Invalid,
    /// The broker rejected the credential.
    #[error("{reason}")]
    Refused {
        /// The broker's error code.
        code: ErrorCode,
        /// The broker's error message.
        reason: String,
    },
}

impl AuthFailure {
    /// The stable error code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Missing | Self::Invalid => ErrorCode::BadCredentials,
            Self::Refused { code, .. } => *code,
        }
    }

    /// What the client can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Missing | Self::Invalid => "send Authorization: Bearer with a token of this broker",
            Self::Refused { code, .. } => code.hint(),
        }
    }
}

pub fn host_away(host: &str, since: &str) -> RpcError {
    let message = format!("host {host} has been away since {since} and the call's deadline passed");
    RpcError::bus(
        ErrorCode::HostAway.code(),
        message,
        "start the host again, or set a longer --deadline for the worker",
    )
}

/// For a fail-fast call.
pub fn host_offline(host: &str, since: &str) -> RpcError {
    let code = ErrorCode::HostOffline;
    let message = format!("host {host} has been away since {since} and the call is fail-fast; it was not run");
    RpcError::bus(code.code(), message, code.hint())
}

/// For a fail-fast call whose withdrawal came too late or was not confirmed.
pub fn withdrawn_too_late(host: &str) -> RpcError {
    let code = ErrorCode::OutcomeUnknown;
    let message = format!(
        "host {host} may have received the call before it was withdrawn; whether the call was started is unknown"
    );
    RpcError::bus(code.code(), message, code.hint())
}

pub fn task_host_away(host: &str, since: &str) -> RpcError {
    let message =
        format!("host {host} has been away since {since}; the state of its tasks is unknown until it is back");
    RpcError::bus(ErrorCode::HostAway.code(), message, "retry when the host is back; its tasks continue then")
}

/// For an admin query about a task, which does not change the task.
pub fn task_query_timeout(host: &str, limit: Duration) -> RpcError {
    let message = format!("host {host} did not answer within {limit:?}; the task is unaffected");
    RpcError::bus(ErrorCode::CallTimeout.code(), message, "retry")
}

pub fn call_timeout(limit: Duration) -> RpcError {
    let message = format!("no answer within {limit:?}; the call was cancelled");
    RpcError::bus(ErrorCode::CallTimeout.code(), message, "set a longer --deadline for the worker")
}

pub fn too_many_calls(limit: usize) -> RpcError {
    let message = format!("call limit reached ({limit} concurrent calls of this client)");
    RpcError::bus(ErrorCode::TooManyCalls.code(), message, "wait until some of them are answered")
}

pub fn too_many_sessions(own: usize, limit: usize) -> RpcError {
    let message = format!("session limit reached ({own} MCP sessions of this agent; {limit} of all agents)");
    RpcError::bus(ErrorCode::TooManySessions.code(), message, "end sessions with DELETE; idle sessions expire")
}

pub fn input_share_full() -> RpcError {
    let message = "the unfinished requests of this agent use up its share of the broker's memory";
    RpcError::bus(ErrorCode::ShareFull.code(), message, "send fewer large requests at a time")
}

pub fn message_too_large(limit: usize) -> RpcError {
    let hint = "send less in one message, for example a path or a URI instead of the content";
    let data = json!({"code": ErrorCode::FrameTooLarge.code(), "hint": hint});
    RpcError::new(codes::INVALID_REQUEST, format!("Invalid request: message larger than {limit} bytes")).with_data(data)
}

/// For a call whose response the client can't get any more, because the endpoint was restarted.
pub fn cut_off() -> RpcError {
    let message = "toolbus was restarted while the call ran; whether it has ended is not known here";
    let hint = "repeat the call with the same arguments: it gets the answer of this one, if there is one, and does not run twice";
    RpcError::bus(ErrorCode::OutcomeUnknown.code(), message, hint)
}

pub fn session_unknown() -> RpcError {
    let data =
        json!({"code": ErrorCode::SessionUnknown.code(), "hint": "send initialize again, without the session header"});
    RpcError::new(codes::INVALID_REQUEST, "Session not found").with_data(data)
}

pub fn unknown_name(kind: &str, name: &str) -> RpcError {
    let data = json!({"code": ErrorCode::UnknownName.code(), "hint": "fetch the list again and use a listed name"});
    RpcError::invalid_params(format!("Unknown {kind}: {name}")).with_data(data)
}

/// The same message for a task that never existed, has expired, or belongs to another agent, so that it leaks nothing.
pub fn unknown_task(id: &str) -> RpcError {
    let code = ErrorCode::UnknownTask;
    RpcError::invalid_params(format!("Unknown task: {id}")).with_data(json!({"code": code.code(), "hint": code.hint()}))
}

pub fn task_cancelled() -> RpcError {
    let code = ErrorCode::Cancelled;
    RpcError::bus(code.code(), "the task was cancelled", code.hint())
}

pub fn task_forbidden() -> RpcError {
    RpcError::new(codes::METHOD_NOT_FOUND, "Method not found: this tool can't be called as a task")
}

/// For a request about a task by a client that has not declared the tasks extension.
pub fn tasks_not_declared() -> RpcError {
    let data = json!({"requiredCapabilities": {"extensions": {meta::TASKS_EXTENSION: {}}}});
    RpcError::new(codes::MISSING_CAPABILITY, "Missing required client capability").with_data(data)
}

/// The error code differs between the eras.
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
    let message = format!("invalid reply from the host: {reason}");
    RpcError::bus(ErrorCode::BadServerMessage.code(), message, "check that host and worker run the same version")
}

/// For a request that the bus rejected or lost.
pub fn from_bus(error: &BrokerError) -> RpcError {
    let (code, hint) = match error.code() {
        Some(code) => (code.code(), code.hint()),
        None => (ErrorCode::ServerDied.code(), "check the broker's log; the outcome of the call is unknown"),
    };
    RpcError::bus(code, error.to_string(), hint)
}
