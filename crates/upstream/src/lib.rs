//! One MCP server, as seen from its host: its configuration, its process, HTTP endpoint or
//! in-process implementation, and the connection to it.
//!
//! Messages are parsed only as far as necessary (ids, progress tokens). Every misbehaviour of a server ends in a
//! bounded wait and a precise error. Authorization and translation between eras are done elsewhere.

mod call;
mod calls;
pub mod config;
mod connection;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod guard;
mod http;
mod in_process;
mod inbound;
mod options;
mod probe;
mod process;
mod queue;
mod secrets;
mod stdio;

pub use async_trait::async_trait;
pub use call::{CallEvent, ServerCall};
pub use config::{
    CallSettings, Environment, HostConfig, Input, Join, Offline, PinMode, Replay, ServerConfig, ServersRead,
    SessionMode, Surroundings, TransportConfig, TripSettings, UnusableServer, read_mcp_servers, read_servers,
};
pub use connection::{ServerConnection, ServerEvent};
pub use error::{ExitReason, ServerError};
pub use guard::guard_main;
pub use in_process::{Caller, InProcessServer};
pub use inbound::Oddities;
pub use options::{ConnectionOptions, GuardCommand};
pub use probe::{Eras, Probed, ProbedConnection, probe};
pub use secrets::{Redactor, SecretSettings, Source};
