//! JSON-RPC errors that toolbus creates. Errors of servers are passed on unchanged.

use crate::{Raw, raw};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Error codes of JSON-RPC and MCP.
pub mod codes {
    /// JSON-RPC: the message is not valid JSON.
    pub const PARSE_ERROR: i64 = -32700;
    /// JSON-RPC: the message is not a valid request.
    pub const INVALID_REQUEST: i64 = -32600;
    /// JSON-RPC: the method is not known.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// JSON-RPC: the params are not valid.
    pub const INVALID_PARAMS: i64 = -32602;
    /// JSON-RPC: internal error.
    pub const INTERNAL_ERROR: i64 = -32603;
    /// Legacy: no such resource.
    pub const RESOURCE_NOT_FOUND: i64 = -32002;
    /// Modern: a header contradicts the body.
    pub const HEADER_MISMATCH: i64 = -32020;
    /// Modern: the client lacks a capability that the request needs.
    pub const MISSING_CAPABILITY: i64 = -32021;
    /// Modern: the protocol version is not supported.
    pub const UNSUPPORTED_VERSION: i64 = -32022;
    /// toolbus could not obtain an answer; `data.code` has the reason.
    pub const BUS: i64 = -32050;
}

/// An error that toolbus itself reports to an MCP client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} ({code})")]
pub struct RpcError {
    /// JSON-RPC error code.
    pub code: i64,
    /// Description of the error.
    pub message: String,
    /// Additional data, such as a stable code and a hint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl RpcError {
    /// An error without data.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// An error of the bus, with a stable toolbus code and a hint in its data.
    pub fn bus(stable_code: &str, message: impl Into<String>, hint: &str) -> Self {
        let data = json!({"code": stable_code, "hint": hint});
        Self { code: codes::BUS, message: message.into(), data: Some(data) }
    }

    /// Adds data to the error.
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    /// An error about invalid params.
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(codes::INVALID_PARAMS, message)
    }

    /// An error about an unknown method.
    pub fn method_not_found(method: &str) -> Self {
        Self::new(codes::METHOD_NOT_FOUND, format!("Method not found: {method}"))
    }

    /// Serializes the error as raw JSON.
    pub fn to_raw(&self) -> Raw {
        raw(self)
    }
}
