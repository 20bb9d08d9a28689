//! toolbus as a library: durable mailboxes, the client for them, and tool calls over the bus. The names are those of
//! the crate `bamboo-broker`, so that its users can switch without changing their code.

pub use toolbus_broker::{BrokerCore, BrokerServer, CoreOptions, ServerOptions, SharedToken};
pub use toolbus_client::{
    Ask, AskMode, BrokerClient, BrokerError, BrokerResult, Call, CallItem, ClientOptions, HostsWatch, KnownHosts,
    LiveEvent, MultiplexedClient, Reply, SendOptions,
};
pub use toolbus_executor::{
    CancellationToken, FunctionCall, FunctionSchema, McpProxyError, McpProxyExecutor, McpProxyExecutorOptions,
    McpProxyHost, McpProxyHostOptions, McpReply, McpRequest, ProxiedResult, RoleToolAllowlist, ToolCall, ToolError,
    ToolExecutionContext, ToolExecutor, ToolResult, ToolResultImage, ToolSchema, async_trait, serve_mcp_proxy,
    serve_mcp_proxy_supervised,
};
pub use toolbus_protocol::{
    AgentRef, Body, BodyError, BrokerFrame, ClientFrame, ErrorCode, HostEntry, InboxKind, InboxMessage, MsgId, Status,
};

#[doc = include_str!("../../../README.md")]
#[cfg(doctest)]
pub struct ReadmeExamples;

#[doc = include_str!("../../../docs/library.md")]
#[cfg(doctest)]
pub struct LibraryExamples;
