//! The worker through its public API: a client on one side, a fake host on the other.

#![allow(clippy::unwrap_used)]

mod away;
mod batches;
mod http_abandoned;
mod http_input;
mod http_legacy;
mod http_modern;
mod http_restart;
mod kept_routes;
mod listening;
mod merged;
mod merged_unknown;
mod pools;
mod real_bus;
mod stdio;
mod support;
mod tasks;
mod tasks_in_doubt;
mod tasks_modern;
