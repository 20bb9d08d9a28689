//! Random numbers from a seed (SplitMix64). The seed fixes the choices of a run; their timing depends on the machine.

use std::time::Duration;

pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A separate generator for a part of the run, so that parts don't affect each other's choices.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// True with a probability of 1 in `count`.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to.saturating_sub(from) + 1))
    }

    /// A number whose logarithm is uniformly distributed.
    pub fn log_uniform(&mut self, from: u64, to: u64) -> u64 {
        let (low, high) = ((from.max(1) as f64).ln(), (to.max(2) as f64).ln());
        let part = self.below(1 << 32) as f64 / (1_u64 << 32) as f64;
        (low + (high - low) * part).exp() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let numbers = |seed| {
            let mut rng = Rng::new(seed);
            (0..8).map(|_| rng.next()).collect::<Vec<_>>()
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
    }

    #[test]
    fn log_uniform_numbers_stay_in_their_range() {
        let mut rng = Rng::new(1);
        assert!((0..1000).map(|_| rng.log_uniform(16, 4096)).all(|size| (15..=4096).contains(&size)));
    }
}
