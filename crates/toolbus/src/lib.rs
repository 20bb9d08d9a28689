//! toolbus as a library. The page below is `docs/library.md`.
//!
#![doc = include_str!("../../../docs/library.md")]

#[cfg(feature = "broker")]
pub use toolbus_broker::{
    AuthRefusal, Authenticator, BrokerCore, BrokerError as ServerError, BrokerServer, CoreOptions, Credential,
    Identity, Rights, ServerOptions, SharedToken, TlsSettings,
};
#[cfg(feature = "client")]
pub use toolbus_client::{
    Ask, AskMode, BrokerClient, Call, CallItem, ClientOptions, HostsWatch, KnownHosts, LiveEvent, MultiplexedClient,
    Reply, SendOptions, TlsOptions, TokenScope, ask_agent,
};
#[cfg(feature = "broker")]
pub use toolbus_engine::{EngineOptions, Window};
#[cfg(feature = "client")]
pub use toolbus_executor::{
    CancellationToken, FunctionCall, FunctionSchema, McpProxyExecutor, McpProxyExecutorOptions, McpReply, McpRequest,
    ORCHESTRATOR_ID, ProxiedResult, ToolCall, ToolError, ToolExecutionContext, ToolExecutor, ToolResult,
    ToolResultImage, ToolSchema, async_trait,
};
#[cfg(feature = "host")]
pub use toolbus_executor::{
    McpProxyError, McpProxyHost, McpProxyHostOptions, RoleToolAllowlist, serve_mcp_proxy, serve_mcp_proxy_supervised,
};
pub use toolbus_protocol::{
    AckResult, AgentRef, Announce, Announced, AskHosts, Body, BodyError, BrokerError, BrokerFrame, BrokerResult,
    CancelOutcome, CancelResult, ClientFrame, ClientLink, Connection, Deliver, Envelope, ErrorCode, Event, Follow,
    Followed, Framing, Hello, HostEntry, Hosts, InboxKind, InboxMessage, Inspect, Inspected, JournalClaim, Limits,
    MailboxStatus, MessageRef, MessageRow, MsgId, Push, Refusal, RoleManifest, Status, Timestamp, Welcome,
};

#[doc = include_str!("../../../README.md")]
#[cfg(doctest)]
pub struct ReadmeExamples;
