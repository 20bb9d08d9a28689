//! The host: runs MCP servers and answers workers' requests as far as the caller's role allows.
//!
//! `service` wires the parts together and `dispatch` reads the mailbox. What a call does next is decided by the call
//! machine (`toolbus-call`); `calls` feeds it and carries out its effects. `catalog` merges the lists of all servers,
//! `calls::authorise` asks the policy, and `translate` converts between the two eras. `server`, `upstream` and `session`
//! manage connections to servers; the connection itself is in `toolbus-upstream`.

mod admin;
mod agent_ends;
mod announce;
mod approvals;
mod callers;
mod calls;
mod catalog;
mod dead_letters;
mod dispatch;
mod eviction;
mod failure;
mod host;
mod lanes;
mod live_policy;
mod open_error;
mod original;
mod outbox;

/// Pins of tool definitions: which definitions are approved, and the files that store them.
pub mod pins;
mod processes;
mod replay;
mod server;
mod service;
mod session;
mod session_setup;
mod session_table;
mod slots;
mod spare;
mod task_owners;
mod tasks;
mod translate;
mod unmatched;
mod upstream;

pub use approvals::Approvals;
pub use callers::Callers;
pub use catalog::CATALOG_FILE;
pub use catalog::names::Owners;
pub use catalog::page::Viewer;
pub use host::{HostLimits, HostOptions};
pub use live_policy::LivePolicy;
pub use pins::{PinOptions, Pins};
pub use service::{HostError, run_host};
