//! Durations and sizes as text.

use std::time::Duration;

/// Parses a duration such as `500ms`, `30s`, `5m`, `1.5h` or `30d`. A number without a unit is in seconds.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split_unit(text);
    let number: f64 = number.parse().ok()?;
    let seconds = match unit {
        "ms" => return Duration::try_from_secs_f64(number / 1000.0).ok(),
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * seconds).ok()
}

/// Parses a size in bytes such as `1MiB`, `64KiB`, `500kB` or `100`. `None` if it is zero or not a size.
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text);
    let unit: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" | "k" => 1 << 10,
        "mib" | "m" => 1 << 20,
        "gib" | "g" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit).filter(|size| *size > 0)
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    (number.trim(), unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_with_their_units() {
        let check = |text, millis: Option<u64>| assert_eq!(parse_duration(text), millis.map(Duration::from_millis));
        check("500ms", Some(500));
        check("2", Some(2000));
        check("0.5s", Some(500));
        check(" 5 m ", Some(300_000));
        check("5min", Some(300_000));
        check("30d", Some(30 * 86_400_000));
        check("0s", Some(0));
        for wrong in ["", "s", "-1s", "5 apples", "1e300h", "inf", "99999999999999999999h"] {
            check(wrong, None);
        }
    }

    #[test]
    fn sizes_are_parsed_with_their_units() {
        let check = |text, size| assert_eq!(parse_size(text), size, "{text}");
        check("1MiB", Some(1 << 20));
        check("64 KiB", Some(64 << 10));
        check("500kB", Some(500_000));
        check("100", Some(100));
        for wrong in ["0", "99999999999GiB", "1.5MiB", "-1", "MiB"] {
            check(wrong, None);
        }
    }
}
