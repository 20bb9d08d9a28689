//! Counts calls against a rate without a list of them: only the time at which the bucket will be empty again is kept
//! (the generic cell rate algorithm). Time is passed in, as what has passed since some beginning.

use crate::limits::Rate;
use std::time::Duration;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bucket {
    empty_at: Duration,
}

impl Bucket {
    /// The bucket with one call more, or how long to wait for room.
    pub fn with_one_more(self, rate: Rate, now: Duration) -> Result<Self, Duration> {
        let drop = rate.per / rate.count.get();
        // A bucket that was filled under another rate is never fuller than full.
        let full = now.saturating_add(rate.per);
        let empty_at = self.empty_at.clamp(now, full).saturating_add(drop);
        // `drop` is rounded down, so that a whole bucket fits.
        if empty_at <= full { Ok(Self { empty_at }) } else { Err(empty_at - full) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::parse_rate;

    #[test]
    fn a_burst_fits_and_then_calls_drip() {
        let rate = parse_rate("60/min").expect("a rate");
        let start = Duration::from_secs(1000);
        let mut bucket = Bucket::default();
        for _ in 0..60 {
            bucket = bucket.with_one_more(rate, start).expect("room");
        }
        assert_eq!(bucket.with_one_more(rate, start), Err(Duration::from_secs(1)));
        let later = start + Duration::from_secs(1);
        bucket = bucket.with_one_more(rate, later).expect("one has dripped out");
        assert!(bucket.with_one_more(rate, later).is_err());
        let much_later = start + Duration::from_secs(3600);
        for _ in 0..60 {
            bucket = bucket.with_one_more(rate, much_later).expect("room");
        }
        assert!(bucket.with_one_more(rate, much_later).is_err());
    }

    #[test]
    fn in_no_window_are_there_more_than_two_buckets_full() {
        let rate = parse_rate("7/s").expect("a rate");
        let (mut bucket, mut passed) = (Bucket::default(), 0);
        for millis in 0..10_000 {
            if let Ok(more) = bucket.with_one_more(rate, Duration::from_millis(millis)) {
                (bucket, passed) = (more, passed + 1);
            }
        }
        assert!((70..=77).contains(&passed), "{passed}");
    }
}
