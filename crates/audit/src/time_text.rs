//! The time of a line. Several lines are written within a second, so only its milliseconds are formatted each time.

/// The text of the last time, with milliseconds.
#[derive(Default)]
pub struct TimeText {
    second: Option<i64>,
    text: String,
}

impl TimeText {
    pub fn now(&mut self) -> &str {
        self.of(jiff::Timestamp::now())
    }

    fn of(&mut self, time: jiff::Timestamp) -> &str {
        let second = time.as_second();
        if self.second != Some(second) {
            let whole = jiff::Timestamp::from_second(second).unwrap_or(time);
            (self.second, self.text) = (Some(second), format!("{whole:.3}"));
        }
        let millis = time.subsec_millisecond();
        self.text.truncate(self.text.len() - "000Z".len());
        for unit in [100, 10, 1] {
            self.text.push(char::from(b'0' + (millis / unit % 10).unsigned_abs() as u8));
        }
        self.text.push('Z');
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_that_of_the_timestamp_cut_to_milliseconds() {
        let mut text = TimeText::default();
        for nanoseconds in [0, 999_999, 1_000_000, 7_100_000, 45_999_999, 999_999_999, 1_000_000_000, 60_500_000_000] {
            let time = jiff::Timestamp::from_nanosecond(1_800_000_000_000_000_000 + nanoseconds).expect("a time");
            assert_eq!(text.of(time), format!("{time:.3}"));
        }
    }
}
