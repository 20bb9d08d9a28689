//! Random numbers from a seed (SplitMix64): what happens when is the machine's business, but what is tried is the seed's.

use std::time::Duration;

pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Dice of their own for a part of the run, so that parts don't disturb each other.
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

    /// True once in so many throws.
    pub fn one_in(&mut self, throws: u64) -> bool {
        self.below(throws) == 0
    }

    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to.saturating_sub(from) + 1))
    }

    /// Small numbers as likely as large ones, by their size.
    pub fn of_any_size(&mut self, from: u64, to: u64) -> u64 {
        let (low, high) = ((from.max(1) as f64).ln(), (to.max(2) as f64).ln());
        let part = self.below(1 << 32) as f64 / (1_u64 << 32) as f64;
        (low + (high - low) * part).exp() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_throws_the_same() {
        let throw = |seed| {
            let mut dice = Dice::new(seed);
            (0..8).map(|_| dice.next()).collect::<Vec<_>>()
        };
        assert_eq!(throw(7), throw(7));
        assert_ne!(throw(7), throw(8));
    }

    #[test]
    fn sizes_stay_between_their_ends() {
        let mut dice = Dice::new(1);
        assert!((0..1000).map(|_| dice.of_any_size(16, 4096)).all(|size| (15..=4096).contains(&size)));
    }
}
