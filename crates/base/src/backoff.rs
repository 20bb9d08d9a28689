//! The delay between attempts: doubles up to a maximum, with jitter, so that peers that lost the same broker don't all
//! return in the same moment.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::time::Duration;

/// Delays for repeated attempts.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Starts with `first` and doubles up to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// The delay before the next attempt: up to a fifth shorter than the doubled one, by chance.
    pub fn next_delay(&mut self) -> Duration {
        // The hasher's random key is the only source of randomness in the standard library; quality doesn't matter here.
        self.next_delay_by(RandomState::new().hash_one(()))
    }

    /// Like [`Backoff::next_delay`], with the jitter of something that differs between peers, for code without randomness
    /// of its own.
    pub fn next_delay_for(&mut self, item: &impl Hash) -> Duration {
        let mut hasher = DefaultHasher::new();
        item.hash(&mut hasher);
        self.next_delay_by(hasher.finish())
    }

    fn next_delay_by(&mut self, random: u64) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(self.longest);
        let percent = 80 + random % 21;
        delay * percent as u32 / 100
    }

    /// Starts over, after an attempt that succeeded for long enough.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_with_jitter_and_start_over_after_a_reset() {
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
        let check = |backoff: &mut Backoff, full: u128| {
            let delay = backoff.next_delay().as_millis();
            assert!((full * 4 / 5..=full).contains(&delay), "{delay} of {full} ms");
        };
        for full in [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
            check(&mut backoff, full);
        }
        let of_one = |item: &str| Backoff::new(Duration::from_secs(1), Duration::from_secs(1)).next_delay_for(&item);
        assert_eq!(of_one("a"), of_one("a"), "the same jitter for the same item");
        let different: std::collections::HashSet<_> = (0..100).map(|_| backoff.next_delay()).collect();
        assert!(different.len() > 1, "delays are not all equal");
        backoff.reset();
        check(&mut backoff, 500);
        check(&mut backoff, 1_000);
    }
}
