//! The client of the bus: delivers, receives and requests messages, and resumes after reconnects.
//!
//! [`BrokerClient`] is one agent's connection; [`MultiplexedClient`] adds many concurrent requests on it. Both use a
//! `session`, the state that outlives a connection: deliveries without a receipt, pending acknowledgements and pending
//! requests. `connection` establishes connections, `tls` secures them, `driver` reads and writes frames, and
//! `supervisor` reconnects.

mod abort;
mod agent_ends;
mod ask;
mod ask_agent;
mod backlog;
mod call;
mod client;
mod connection;
mod deliver;
mod dial;
mod driver;
mod follow;
mod hosts;
mod inspect;
mod journal_claim;
mod kept_replies;
mod mux;
mod options;
mod outstanding;
mod pending;
mod planted;
mod postponed;
mod queries;
mod received;
mod refusals;
mod reply;
mod reply_guard;
mod session;
#[cfg(test)]
mod session_tests;
mod shared;
mod signals;
#[cfg(feature = "planted")]
#[doc(hidden)]
pub mod simulation;
mod supervisor;
mod terms;
mod tls;
mod withdraw;

pub use ask::{Ask, AskMode, Reply};
pub use ask_agent::ask_agent;
pub use call::{Call, CallItem};
pub use client::{BrokerClient, CLOSE_LIMIT};
pub use follow::{Follow, FollowState};
pub use hosts::{HostsWatch, KnownHosts};
pub use mux::MultiplexedClient;
pub use options::{ClientOptions, Resend, SendOptions, TlsOptions, TokenScope};
pub use reply_guard::{ReplyListener, ReplySettled};
pub use signals::{Cancellation, LiveEvent};
pub use toolbus_protocol::{
    AgentEnd, AgentRef, Body, BodyError, BrokerError, BrokerResult, CancelOutcome, ErrorCode, Framing, HostEntry,
    InboxKind, InboxMessage, Inspect, Inspected, MAX_INSPECTED, MessageRef, MessageRow, MsgId, Status,
};
