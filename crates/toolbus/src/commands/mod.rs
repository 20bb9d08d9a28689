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
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| "a duration looks like 500ms, 30s, 5m, 2h or 30d".to_owned())?;
    let millis = match &text[digits.len()..] {
        "ms" => Some(number),
        "" | "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        "d" => number.checked_mul(86_400_000),
        unit => return Err(format!("unknown unit '{unit}': use ms, s, m, h or d")),
    };
    millis.map(Duration::from_millis).ok_or_else(|| "the duration is too long".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_with_their_units() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(parse_duration("30d"), Ok(Duration::from_secs(30 * 86_400)));
        assert!(parse_duration("5 apples").is_err());
        assert!(parse_duration("99999999999999999999h").is_err());
    }
}
