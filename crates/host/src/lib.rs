//! The host: runs MCP servers and answers workers' requests as far as the caller's role allows.
//!
//! `service` wires the parts together, `dispatch` reads the mailbox, `admission` consults the call journal, and `calls`
//! runs each request. `catalog` merges the lists of all servers, `calls::authorise` asks the policy, `limits` enforces
//! rates and concurrency, and `translate` converts between the two eras. `server`, `upstream` and `session` manage
//! connections to servers; the connection itself is in `toolbus-upstream`.

mod admin;
mod admission;
mod announce;
mod approvals;
mod caller;
mod callers;
mod calls;
mod catalog;
mod circuit_breaker;
mod dead_letters;
mod dispatch;
mod failure;
mod host;
mod join;
mod journaled;
mod limits;
mod live_policy;
mod original;
mod orphans;
mod outbox;
mod pending_calls;
/// Pins of tool definitions: which definitions are approved, and the files that store them.
pub mod pins;
mod replay;
mod running;
mod server;
mod service;
mod session;
mod session_order;
mod task_owners;
mod tasks;
mod translate;
mod unmatched;
mod upstream;
mod upstream_call;

pub use approvals::Approvals;
pub use callers::Callers;
pub use catalog::names::Owners;
pub use catalog::page::Viewer;
pub use host::{HostLimits, HostOptions};
pub use live_policy::LivePolicy;
pub use pins::{PinOptions, Pins};
pub use service::{HostError, run_host};
