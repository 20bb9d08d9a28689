//! The host: runs MCP servers, and answers the requests of workers for the roles that it allows.
//!
//! `service` is the whole, `dispatch` sorts what arrives, `calls` takes each request its way. `catalog` knows what all
//! servers have, `calls::authorise` asks the policy who may use it, `gates` counts, `translate` knows what the two eras owe
//! each other. `server`, `link` and `session` keep the connections; how one connection works is the business of the crate
//! below.

mod admin;
mod announce;
mod approvals;
mod arrival;
mod breaker;
mod caller;
mod callers;
mod calls;
mod catalog;
mod dispatch;
mod failure;
mod gates;
mod held;
mod host;
mod join;
mod journaled;
mod letters;
mod link;
mod live_policy;
mod original;
mod orphans;
mod outbox;
pub mod pins;
mod replay;
mod running;
mod server;
mod service;
mod session;
mod task_owners;
mod tasks;
mod translate;
mod turns;
mod unmatched;
mod upstream_call;

pub use approvals::Approvals;
pub use callers::Callers;
pub use catalog::names::Owners;
pub use catalog::page::Viewer;
pub use host::{HostLimits, HostOptions};
pub use live_policy::LivePolicy;
pub use pins::{PinOptions, Pins};
pub use service::{HostError, run_host};
