//! JSON-RPC errors as they are written by us. Those of servers are passed on as they came.

use crate::{Raw, raw};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Codes of JSON-RPC and MCP.
pub mod codes {
    pub const PARSE_ERROR: i64 = -32700;
    pub const INVALID_REQUEST: i64 = -32600;
    pub const METHOD_NOT_FOUND: i64 = -32601;
    pub const INVALID_PARAMS: i64 = -32602;
    pub const INTERNAL_ERROR: i64 = -32603;
    /// Legacy: no such resource.
    pub const RESOURCE_NOT_FOUND: i64 = -32002;
    /// Modern: a header contradicts the body.
    pub const HEADER_MISMATCH: i64 = -32020;
    /// Modern: the client lacks a capability that the request needs.
    pub const MISSING_CAPABILITY: i64 = -32021;
    /// Modern: the protocol version is not supported.
    pub const UNSUPPORTED_VERSION: i64 = -32022;
    /// The bus could not bring an answer; `data.code` says why.
    pub const BUS: i64 = -32050;
}

/// An error that toolbus itself has to report to an MCP client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} ({code})")]
pub struct RpcError {
    pub code: i64,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl RpcError {
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// With a stable code of toolbus and a hint, where a program and a person look for them.
    pub fn bus(stable_code: &str, message: impl Into<String>, hint: &str) -> Self {
        let data = json!({"code": stable_code, "hint": hint});
        Self { code: codes::BUS, message: message.into(), data: Some(data) }
    }

    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(codes::INVALID_PARAMS, message)
    }

    pub fn method_not_found(method: &str) -> Self {
        Self::new(codes::METHOD_NOT_FOUND, format!("Method not found: {method}"))
    }

    pub fn to_raw(&self) -> Raw {
        raw(self)
    }
}
