//! Limits on rate, concurrency, result size and duration: of a role, and of everything that matches a pattern.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;
use toolbus_config::Position;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_parsed() {
        let rate = |text| parse_rate(text).map(|rate| rate.to_string());
        assert_eq!(rate("60/min").as_deref(), Some("60/min"));
        assert_eq!(rate(" 10 / second ").as_deref(), Some("10/s"));
        assert_eq!(rate("0/s"), None);
        assert_eq!(rate("-1/s"), None);
        assert_eq!(rate("60"), None);
        assert_eq!(rate("60/fortnight"), None);
    }
}
