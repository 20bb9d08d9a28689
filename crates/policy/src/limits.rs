//! How often, how many at once, how large and how long: limits of a role, and of everything that matches a pattern.

use crate::read::Position;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

/// `[roles.NAME]` or `[limits."PATTERN"]`. Where several apply to a call, the strictest counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    pub kind: LimitKind,
    pub rate: Option<Rate>,
    pub concurrency: Option<NonZeroU32>,
    /// In bytes.
    pub max_result: Option<u64>,
    pub deadline: Option<Duration>,
    /// Where its table begins.
    pub position: Position,
}

/// Whose calls are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LimitKind {
    /// Those of all agents of the role.
    Role(String),
    /// Those of every role.
    Pattern(String),
}

/// So many in so long; all of them may come at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub count: NonZeroU32,
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

/// As it stands in the file.
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

/// The first name of each is how we write it.
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

/// `60/min`
pub fn parse_rate(text: &str) -> Option<Rate> {
    let (count, unit) = text.split_once('/')?;
    let (_, seconds) = UNITS_OF_TIME.iter().find(|(name, _)| *name == unit.trim())?;
    Some(Rate { count: count.trim().parse().ok()?, per: Duration::from_secs(*seconds) })
}

/// `1MiB`, `64KiB`, `500kB`, `100`
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

/// `500ms`, `30s`, `5m`, `1h`
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
    // Longer than a year is a mistake, and the clock's end is not far.
    const LONGEST: f64 = 366.0 * 86_400.0;
    Some(seconds).filter(|s| *s > 0.0 && *s <= LONGEST).and_then(|s| Duration::try_from_secs_f64(s).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_sizes_and_times_are_read_as_people_write_them() {
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
