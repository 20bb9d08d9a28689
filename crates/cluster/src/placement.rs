//! Which broker should own which partition.

use crate::Partition;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The broker that should own a partition: the one with the highest hash of both (rendezvous hashing). If a broker joins or
/// leaves, only the partitions that it gains or had move, and all brokers that know the same members agree.
pub fn preferred<'a>(partition: Partition, members: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let weight = |member: &str| xxh3_64_with_seed(member.as_bytes(), u64::from(partition.0).wrapping_mul(SPREAD));
    members.into_iter().max_by_key(|member| (weight(member), *member))
}

/// Makes the seeds of neighbouring partitions differ in all bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Partitions;
    use std::collections::BTreeMap;

    fn counts(members: &[&str], partitions: u16) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for partition in Partitions::new(partitions).expect("a valid number").all() {
            let owner = preferred(partition, members.iter().copied()).expect("there are members");
            *counts.entry(owner.to_owned()).or_default() += 1;
        }
        counts
    }

    #[test]
    fn partitions_spread_over_the_members() {
        let counts = counts(&["a", "b", "c"], 256);
        assert!(counts.values().all(|count| (60..112).contains(count)), "{counts:?}");
    }

    #[test]
    fn only_the_partitions_of_a_member_that_leaves_move() {
        let (all, left) = (["a", "b", "c"], ["a", "c"]);
        for partition in Partitions::DEFAULT.all() {
            let before = preferred(partition, all).expect("there are members");
            let after = preferred(partition, left).expect("there are members");
            assert!(before == after || before == "b", "{partition:?}");
        }
        assert_eq!(preferred(Partition(0), []), None);
    }

    #[test]
    fn the_order_of_the_members_does_not_matter() {
        for partition in Partitions::DEFAULT.all() {
            assert_eq!(preferred(partition, ["a", "b", "c"]), preferred(partition, ["c", "a", "b"]));
        }
    }
}
