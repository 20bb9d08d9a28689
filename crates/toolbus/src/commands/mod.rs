//! One file per command.

pub mod agent;
pub mod approvals;
pub mod ask;
pub mod audit;
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
mod outcome;
pub mod pin;
pub mod policy;
pub mod ps;
pub mod recv;
pub mod send;
pub mod task;
pub mod tools;
pub mod up;

use crate::failure::Failure;
use std::io::{self, Write};
use std::time::Duration;

/// Prints a line. Returns an error, rather than panicking, if standard output is closed.
pub fn print_line(line: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    // In one write, so that a reader that has seen the first line of a text has been sent all of it.
    out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).map_err(Failure::Stdout)
}

/// Prints the startup text of a service, which must run even if standard output is closed.
pub fn print_startup(line: &str) {
    if let Err(error) = print_line(line) {
        tracing::debug!("{error}");
    }
}

/// Parses a duration such as `500ms`, `30s`, `5m`, `2h` or `30d`; a number without a unit is in seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    toolbus_config::parse_duration(text).ok_or_else(|| "a duration looks like 500ms, 30s, 5m, 2h or 30d".to_owned())
}
