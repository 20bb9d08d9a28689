//! Reads one key of a limit, in `[roles.NAME]` or `[limits."PATTERN"]`.

use crate::limits::{Limit, parse_rate};
use std::num::NonZeroU32;
use std::time::Duration;
use toolbus_config::{ConfigError, Setting, parse_size};

pub const KEYS: [&str; 4] = ["rate", "concurrency", "max_result", "deadline"];

/// A longer time is a mistake, and adding it to a clock could overflow.
const MAX_DEADLINE: Duration = Duration::from_secs(366 * 86_400);

/// Returns false if the key doesn't belong to a limit.
pub fn read(limit: &mut Limit, key: &str, value: &Setting) -> Result<bool, ConfigError> {
    match key {
        "rate" => limit.rate = Some(value.parse("a rate such as \"60/min\" or \"10/s\"", parse_rate)?),
        "concurrency" => limit.concurrency = NonZeroU32::new(value.count()?),
        "max_result" => {
            const EXPECTED: &str = "a size such as \"1MiB\" or \"64KiB\"";
            let bytes = value.count().or_else(|_| value.parse(EXPECTED, parse_size))?;
            limit.max_result = Some(bytes);
        }
        "deadline" => {
            const EXPECTED: &str = "a time such as \"30s\" or \"5m\"";
            let time = Some(value.duration(EXPECTED)?).filter(|time| *time <= MAX_DEADLINE);
            limit.deadline = Some(time.ok_or_else(|| value.wrong(EXPECTED))?);
        }
        _ => return Ok(false),
    }
    Ok(true)
}
