//! toolbus as a library: durable mailboxes and the client for them, under the names that users of the original know.

pub use toolbus_broker::{BrokerCore, BrokerServer, CoreOptions, ServerOptions, SharedToken};
pub use toolbus_client::{
    Ask, AskMode, BrokerClient, BrokerError, BrokerResult, Call, CallItem, ClientOptions, HostsWatch, KnownHosts,
    LiveEvent, MultiplexedClient, Reply, SendOptions,
};
pub use toolbus_protocol::{
    AgentRef, Body, BodyError, BrokerFrame, ClientFrame, ErrorCode, HostEntry, InboxKind, InboxMessage, MsgId, Status,
};

#[doc = include_str!("../../../README.md")]
#[cfg(doctest)]
pub struct ReadmeExamples;
