//! Tools over the bus, for programs in Rust: a host serves any implementation of [`ToolExecutor`], a worker calls it
//! through another `ToolExecutor` as if it were local.
//!
//! `tool` and `executor` define the types, `wire` the two operations of the protocol, `allowlist` the tools per role.
//! The host side is `host`, which runs a `toolbus_host` with the executor as its only server (`server`). The worker side
//! is `proxy` (the executor) and `connection` (its connection and manifest). The host side needs the feature `host`.

#[cfg(feature = "host")]
mod allowlist;
mod connection;
mod executor;
#[cfg(feature = "host")]
mod host;
mod proxy;
#[cfg(feature = "host")]
mod server;
mod tool;
mod wire;

#[cfg(feature = "host")]
pub use allowlist::RoleToolAllowlist;
pub use async_trait::async_trait;
pub use executor::{ToolExecutionContext, ToolExecutor};
#[cfg(feature = "host")]
pub use host::{McpProxyError, McpProxyHost, McpProxyHostOptions, serve_mcp_proxy, serve_mcp_proxy_supervised};
pub use proxy::{McpProxyExecutor, McpProxyExecutorOptions};
pub use tokio_util::sync::CancellationToken;
pub use tool::{FunctionCall, FunctionSchema, ToolCall, ToolError, ToolResult, ToolResultImage, ToolSchema};
pub use wire::{McpReply, McpRequest, ProxiedResult};

/// The mailbox of the host in the original system, which has one host with a fixed name.
pub const ORCHESTRATOR_ID: &str = "bamboo-orchestrator";
