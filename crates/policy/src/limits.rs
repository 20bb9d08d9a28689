//! Limits on rate, concurrency, result size and duration: of a role, and of everything that matches a pattern.

use crate::read::Position;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

/// The limits in `[roles.NAME]` or `[limits."PATTERN"]`. If several apply to a call, the strictest counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// Which calls share this limit.
    pub kind: LimitKind,
    /// Maximum number of calls per time.
    pub rate: Option<Rate>,
    /// Maximum number of concurrent calls.
    pub concurrency: Option<NonZeroU32>,
    /// Maximum size of a result, in bytes.
    pub max_result: Option<u64>,
    /// Maximum duration of a call.
    pub deadline: Option<Duration>,
    /// Position of its table in the file.
    pub position: Position,
}

/// Which calls are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LimitKind {
    /// The calls of all agents of the role.
    Role(String),
    /// The calls of all roles that match the pattern.
    Pattern(String),
}

/// A number of calls per period. A burst may use up all of them at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Number of calls.
    pub count: NonZeroU32,
    /// Length of the period.
    pub per: Duration,
}

impl Limit {
    pub(crate) fn none(kind: LimitKind, position: Position) -> Self {
        Self { kind, rate: None, concurrency: None, max_result: None, deadline: None, position }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.rate.is_none() && self.concurrency.is_none() && self.max_result.is_none() && self.deadline.is_none()
    }
}

/// The name of the table in the file.
impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Role(role) => write!(f, "[roles.{role}]"),
            Self::Pattern(pattern) => write!(f, "[limits.{pattern:?}]"),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS_OF_TIME.iter().find(|(_, seconds)| Duration::from_secs(*seconds) == self.per) {
            Some((unit, _)) => write!(f, "{}/{unit}", self.count),
            None => write!(f, "{} in {:?}", self.count, self.per),
        }
    }
}

/// The first name of each unit is the one that `Display` writes.
const UNITS_OF_TIME: [(&str, u64); 11] = [
    ("s", 1),
    ("sec", 1),
    ("second", 1),
    ("min", 60),
    ("m", 60),
    ("minute", 60),
    ("h", 3600),
    ("hour", 3600),
    ("d", 86_400),
    ("day", 86_400),
    ("week", 604_800),
];

/// Parses a rate such as `60/min`.
pub fn parse_rate(text: &str) -> Option<Rate> {
    let (count, unit) = text.split_once('/')?;
    let (_, seconds) = UNITS_OF_TIME.iter().find(|(name, _)| *name == unit.trim())?;
    Some(Rate { count: count.trim().parse().ok()?, per: Duration::from_secs(*seconds) })
}

/// Parses a size in bytes such as `1MiB`, `64KiB`, `500kB` or `100`. `None` if it is zero or not a size.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let unit: u64 = match text[unit_at..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" | "k" => 1 << 10,
        "mib" | "m" => 1 << 20,
        "gib" | "g" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return None,
    };
    let number: u64 = text[..unit_at].trim().parse().ok()?;
    number.checked_mul(unit).filter(|size| *size > 0)
}

/// Parses a duration such as `500ms`, `30s`, `5m` or `1h`.
pub fn parse_time(text: &str) -> Option<Duration> {
    let text = text.trim();
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let number: f64 = text[..unit_at].trim().parse().ok()?;
    let unit = match &text[unit_at..] {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    time_of(number * unit)
}

pub fn time_of(seconds: f64) -> Option<Duration> {
    // A longer time is a mistake, and adding it to a clock could overflow.
    const MAX_SECONDS: f64 = 366.0 * 86_400.0;
    Some(seconds).filter(|s| *s > 0.0 && *s <= MAX_SECONDS).and_then(|s| Duration::try_from_secs_f64(s).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_sizes_and_times_are_parsed() {
        let rate = |text| parse_rate(text).map(|rate| rate.to_string());
        assert_eq!(rate("60/min").as_deref(), Some("60/min"));
        assert_eq!(rate(" 10 / second ").as_deref(), Some("10/s"));
        assert_eq!(rate("0/s"), None);
        assert_eq!(rate("-1/s"), None);
        assert_eq!(rate("60"), None);
        assert_eq!(rate("60/fortnight"), None);
        assert_eq!(parse_size("1MiB"), Some(1 << 20));
        assert_eq!(parse_size("64 KiB"), Some(64 << 10));
        assert_eq!(parse_size("500kB"), Some(500_000));
        assert_eq!(parse_size("100"), Some(100));
        assert_eq!(parse_size("0"), None);
        assert_eq!(parse_size("99999999999GiB"), None);
        assert_eq!(parse_size("1.5MiB"), None);
        assert_eq!(parse_time("5m"), Some(Duration::from_secs(300)));
        assert_eq!(parse_time("0.5s"), Some(Duration::from_millis(500)));
        assert_eq!(parse_time("0s"), None);
        assert_eq!(parse_time("1e300h"), None);
    }
}
