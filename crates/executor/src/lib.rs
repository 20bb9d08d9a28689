//! Tools over the bus, for programs in Rust: a host serves whatever implements [`ToolExecutor`], a worker uses it through
//! another `ToolExecutor` as if it were local.
//!
//! `tool` and `executor` are the vocabulary, `wire` the two operations that cross the bus, `allowlist` who may use what.
//! The host side is `host` (options, restarts), `serve` (one connection) and `calls` (what outlives a connection). The
//! worker side is `proxy` (the executor) and `link` (its connection and manifest).

mod allowlist;
mod calls;
mod executor;
mod host;
mod link;
mod proxy;
mod restarts;
mod serve;
mod tool;
mod wire;

pub use allowlist::RoleToolAllowlist;
pub use async_trait::async_trait;
pub use executor::{ToolExecutionContext, ToolExecutor};
pub use host::{McpProxyHost, McpProxyHostOptions, serve_mcp_proxy, serve_mcp_proxy_supervised};
pub use proxy::{McpProxyExecutor, McpProxyExecutorOptions};
pub use tokio_util::sync::CancellationToken;
pub use tool::{FunctionCall, FunctionSchema, ToolCall, ToolError, ToolResult, ToolResultImage, ToolSchema};
pub use wire::{McpReply, McpRequest, ProxiedResult};
