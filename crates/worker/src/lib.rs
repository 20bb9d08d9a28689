//! The worker side of MCP over the bus: an MCP server for any client, over stdio or streamable HTTP, in both eras of
//! the protocol. It proxies to the servers of all hosts that the worker may use.
//!
//! Start at [`Frontend`], the MCP session of one client. `view` holds the known servers and resolves names to them;
//! `http` and `stdio` are the transports; [`Bus`] is the interface to the bus.

mod bus;
mod bus_client;
mod call_key;
mod envelope;
mod error;
mod frontend;
mod http;
mod options;
mod pools;
#[cfg(feature = "planted")]
#[doc(hidden)]
pub mod simulation;
mod stdio;
mod taken_routes;
mod view;
mod worker;

pub use bus::{BoxFuture, Bus, BusCall, BusItem, HostEntry, Hosts, SessionEvent, Waiting};
pub use bus_client::BusClient;
pub use error::AuthFailure;
pub use frontend::{Frontend, FrontendCall, News};
pub use http::{
    BodyError, BusPool, HttpBody, HttpOptions, HttpService, Principal, Principals, SESSION_HEADER, unauthorized,
};
pub use options::WorkerOptions;
pub use stdio::{Input, Output, StdioError, StdioOptions, serve_streams, stdin, stdout};
pub use view::{Upstream, View};
pub use worker::Worker;
