//! Which partition a mailbox belongs to.

use toolbus_base::principal_of;
use toolbus_engine::Seq;
use xxhash_rust::xxh3::xxh3_64;

/// The number of a partition, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(pub u16);

/// The sequence numbers of a partition begin with its number, so that tags of pushed messages differ between partitions.
const SEQ_BITS: u32 = 48;

impl Partition {
    /// The first sequence number of the partition's messages.
    pub fn first_seq(self) -> Seq {
        u64::from(self.0) << SEQ_BITS
    }

    /// The partition that assigned a sequence number.
    pub fn of_seq(seq: Seq) -> Self {
        Self((seq >> SEQ_BITS) as u16)
    }
}

/// How many partitions a cluster has. Fixed when the cluster is created, because the mailboxes of a partition are in its
/// log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partitions(u16);

impl Partitions {
    /// The number of partitions of a new cluster.
    pub const DEFAULT: Self = Self(16);
    /// The maximum number of partitions. Each is a stream, which costs its servers memory and idle work.
    pub const MAX: u16 = 256;

    /// Returns `None` if the number is zero or exceeds [`Partitions::MAX`].
    pub fn new(count: u16) -> Option<Self> {
        (1..=Self::MAX).contains(&count).then_some(Self(count))
    }

    /// The number of partitions.
    pub fn count(self) -> u16 {
        self.0
    }

    /// All partitions.
    pub fn all(self) -> impl Iterator<Item = Partition> {
        (0..self.0).map(Partition)
    }

    /// The partition of a mailbox. All mailboxes of one agent share it: a message and its dead letter, which is in
    /// `NAME#dead`, are moved in one batch of one log.
    pub fn of(self, mailbox: &str) -> Partition {
        let hash = xxh3_64(principal_of(mailbox).as_bytes());
        Partition((hash % u64::from(self.0)) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mailboxes_of_one_agent_share_a_partition() {
        let partitions = Partitions::DEFAULT;
        for name in ["bob", "host-7", "jwt:carol"] {
            assert_eq!(partitions.of(name), partitions.of(&format!("{name}#dead")));
            assert_eq!(partitions.of(name), partitions.of(&format!("{name}#mcp")));
        }
    }

    #[test]
    fn agents_spread_evenly() {
        let partitions = Partitions::DEFAULT;
        let mut counts = vec![0; 16];
        (0..16_000).for_each(|n| counts[usize::from(partitions.of(&format!("worker-{n}")).0)] += 1);
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
    }

    /// Other values would strand the mailboxes of existing clusters.
    #[test]
    fn the_partition_of_a_name_never_changes() {
        let of = |name| Partitions::DEFAULT.of(name).0;
        assert_eq!(["bob", "desktop", "worker-7", ""].map(of), GOLDEN);
    }

    const GOLDEN: [u16; 4] = [5, 3, 4, 2];

    #[test]
    fn the_number_of_partitions_is_limited() {
        assert_eq!(Partitions::new(0), None);
        assert_eq!(Partitions::new(257), None);
        assert_eq!(Partitions::new(256).map(Partitions::count), Some(256));
    }
}
