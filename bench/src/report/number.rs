//! Formats numbers for reports.

/// A whole number with thousands separators: `12,345`.
pub fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A duration given in microseconds, in the unit that fits: `171 µs`, `2.0 ms`.
pub fn duration(microseconds: f64) -> String {
    match microseconds {
        us if us < 1_000.0 => format!("{us:.0} µs"),
        us if us < 10_000.0 => format!("{:.1} ms", us / 1_000.0),
        us if us < 1_000_000.0 => format!("{:.0} ms", us / 1_000.0),
        us => format!("{:.1} s", us / 1_000_000.0),
    }
}

/// A power of ten on an axis: `100`, `1 k`, `10 k`, `1 M`.
pub fn axis(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.0} M", v / 1e6),
        v if v >= 1e3 => format!("{:.0} k", v / 1e3),
        v => format!("{v:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted() {
        assert_eq!(grouped(999.6), "1,000");
        assert_eq!(grouped(1_234_567.0), "1,234,567");
        assert_eq!(grouped(7.0), "7");
        assert_eq!(duration(171.2), "171 µs");
        assert_eq!(duration(2_003.0), "2.0 ms");
        assert_eq!(duration(44_008.0), "44 ms");
        assert_eq!(axis(10_000.0), "10 k");
    }
}
