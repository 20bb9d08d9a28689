//! A sample that a seed determines.

use std::time::{SystemTime, UNIX_EPOCH};

/// Determines a sample of a list.
#[derive(Debug, Clone, Copy)]
pub struct Seed(pub u64);

impl Seed {
    /// A seed that is short enough to be typed.
    pub fn random() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::from(now.subsec_nanos()) % 1_000_000)
    }

    /// `count` elements of a list, by a partial shuffle.
    pub fn sample<T>(self, mut list: Vec<T>, count: usize) -> Vec<T> {
        let mut state = self.0;
        for position in 0..count.min(list.len()) {
            let rest = (list.len() - position) as u64;
            let other = position + usize::try_from(next(&mut state) % rest).unwrap_or_default();
            list.swap(position, other);
        }
        list.truncate(count);
        list
    }
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_sample_and_elements_are_drawn_once() {
        let list: Vec<u32> = (0..1000).collect();
        let sample = Seed(7).sample(list.clone(), 100);
        assert_eq!(Seed(7).sample(list.clone(), 100), sample);
        assert_ne!(Seed(8).sample(list.clone(), 100), sample);
        let mut all = Seed(7).sample(list.clone(), 2000);
        all.sort_unstable();
        assert_eq!(all, list);
        assert!(sample.iter().any(|element| *element > 900), "from the whole list");
    }
}
