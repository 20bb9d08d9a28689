//! One file per command.

pub mod agent;
pub mod approvals;
pub mod ask;
pub mod audit;
pub mod bench;
pub mod broker;
pub mod call;
pub mod calls;
pub mod connect;
pub mod dead;
pub mod demo_server;
mod detach;
pub mod guard;
pub mod host;
pub mod init;
pub mod migrate;
mod outcome;
pub mod pin;
pub mod policy;
pub mod ps;
pub mod recv;
pub mod send;
pub mod task;
pub mod tools;
pub mod up;

use std::time::Duration;

/// Parses a duration such as `500ms`, `30s`, `5m`, `2h` or `30d`; a number without a unit is in seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    toolbus_config::parse_duration(text).ok_or_else(|| "a duration looks like 500ms, 30s, 5m, 2h or 30d".to_owned())
}
