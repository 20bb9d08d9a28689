//! The host: runs MCP servers, and answers the requests of workers for the roles that it allows.
//!
//! `service` is the whole, `dispatch` sorts what arrives, `calls` takes each request its way. `catalog` knows what all
//! servers have, `policy` who may use it, `translate` what the two eras owe each other. `server`, `link` and `session`
//! keep the connections; how one connection works is the business of the crate below.

mod announce;
mod calls;
mod catalog;
mod dispatch;
mod failure;
mod held;
mod host;
mod link;
mod original;
mod outbox;
pub mod pins;
pub mod policy;
mod running;
mod server;
mod service;
mod session;
mod translate;
mod turns;

pub use host::{HostLimits, HostOptions};
pub use pins::{PinOptions, Pins};
pub use policy::{AllowAll, BadPattern, Decision, Item, Policy, RoleRules};
pub use service::{HostError, run_host};
