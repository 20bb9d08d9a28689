//! Rate limiting by the generic cell rate algorithm: one timestamp per bucket instead of a list of calls. The caller
//! passes the time in, as a duration since any fixed instant.

use crate::limits::Rate;
use std::time::Duration;

/// The state of one rate limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bucket {
    empty_at: Duration,
}

impl Bucket {
    /// The bucket after one more call, or how long to wait until there is room for it.
    pub fn with_one_more(self, rate: Rate, now: Duration) -> Result<Self, Duration> {
        let interval = rate.per / rate.count.get();
        // A bucket that was filled under another rate counts as full at most.
        let full = now.saturating_add(rate.per);
        let empty_at = self.empty_at.clamp(now, full).saturating_add(interval);
        // `interval` is rounded down, so that a full burst fits.
        if empty_at <= full { Ok(Self { empty_at }) } else { Err(empty_at - full) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::parse_rate;

    #[test]
    fn after_a_burst_calls_are_admitted_at_the_rate() {
        let rate = parse_rate("60/min").expect("valid rate");
        let start = Duration::from_secs(1000);
        let mut bucket = Bucket::default();
        for _ in 0..60 {
            bucket = bucket.with_one_more(rate, start).expect("room");
        }
        assert_eq!(bucket.with_one_more(rate, start), Err(Duration::from_secs(1)));
        let later = start + Duration::from_secs(1);
        bucket = bucket.with_one_more(rate, later).expect("one call per second is admitted");
        assert!(bucket.with_one_more(rate, later).is_err());
        let much_later = start + Duration::from_secs(3600);
        for _ in 0..60 {
            bucket = bucket.with_one_more(rate, much_later).expect("room");
        }
        assert!(bucket.with_one_more(rate, much_later).is_err());
    }

    #[test]
    fn a_bucket_that_was_filled_under_another_rate_is_full_at_most() {
        let (daily, each_second) = (parse_rate("1/day").expect("valid rate"), parse_rate("2/s").expect("valid rate"));
        let now = Duration::from_secs(1000);
        let bucket = Bucket::default().with_one_more(daily, now).expect("room");
        assert_eq!(bucket.with_one_more(each_second, now), Err(Duration::from_millis(500)));
        // Refilled after the period, and by one period at most.
        let later = now + Duration::from_secs(90_000);
        let bucket = bucket.with_one_more(each_second, later).and_then(|one| one.with_one_more(each_second, later));
        assert_eq!(bucket.and_then(|two| two.with_one_more(each_second, later)), Err(Duration::from_millis(500)));
    }

    #[test]
    fn a_call_that_was_not_admitted_takes_no_place() {
        let rate = parse_rate("1/s").expect("valid rate");
        let start = Duration::from_secs(5);
        let full = Bucket::default().with_one_more(rate, start).expect("room");
        for millis in (0..1000).step_by(100) {
            assert!(full.with_one_more(rate, start + Duration::from_millis(millis)).is_err());
        }
        assert!(full.with_one_more(rate, start + Duration::from_secs(1)).is_ok());
    }

    #[test]
    fn over_time_the_rate_is_exceeded_by_one_burst_at_most() {
        let rate = parse_rate("7/s").expect("valid rate");
        let (mut bucket, mut passed) = (Bucket::default(), 0);
        for millis in 0..10_000 {
            if let Ok(more) = bucket.with_one_more(rate, Duration::from_millis(millis)) {
                (bucket, passed) = (more, passed + 1);
            }
        }
        assert!((70..=77).contains(&passed), "{passed}");
    }
}
