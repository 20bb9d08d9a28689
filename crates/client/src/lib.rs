//! The client of the bus: delivers, receives, asks, and keeps its promises across reconnects.
//!
//! [`BrokerClient`] is one agent's connection; [`MultiplexedClient`] adds many requests in flight on it. Behind both is
//! a `session`, the part that outlives a connection: what has no receipt yet, what is to be acknowledged, who waits for
//! which reply. `link` makes connections, `tls` secures them, `turn` moves frames, `supervisor` reconnects.

mod ask;
mod asked;
mod call;
mod client;
mod dial;
mod error;
mod hosts;
mod inspect;
mod link;
mod mux;
mod options;
mod outstanding;
mod pending;
mod postponed;
mod session;
mod shared;
mod signals;
mod supervisor;
mod terms;
mod tls;
mod turn;
mod unplaced;

pub use ask::{Ask, AskMode, Reply};
pub use call::{Call, CallItem};
pub use client::{BrokerClient, SendOptions};
pub use error::{BrokerError, BrokerResult};
pub use hosts::{HostsWatch, KnownHosts};
pub use mux::MultiplexedClient;
pub use options::{ClientOptions, TlsOptions, TokenScope};
pub use session::LiveEvent;
pub use toolbus_protocol::{
    AgentRef, Body, BodyError, ErrorCode, Framing, HostEntry, InboxKind, InboxMessage, Inspect, Inspected,
    MAX_INSPECTED, MessageRef, MessageRow, MsgId, Status,
};
