//! How a host names the journal behind its mailbox, so that a fence is set when another journal takes over.

use bytestring::ByteString;

/// The journal in which a host records the calls of its mailbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalClaim {
    /// Names the journal; a new or damaged one has a new name.
    pub journal: ByteString,
    /// Counts the times that the journal was opened.
    pub epoch: u64,
    /// Names the process that has the journal open.
    pub instance: ByteString,
    /// Names the last processes that had it open before, latest first. An older copy of the journal does not name those
    /// that opened the original since. Empty from a host of an earlier version.
    pub ancestors: Vec<ByteString>,
}

impl JournalClaim {
    /// Whether everything that was pushed under the earlier claim is known to the journal of this one: it is the same
    /// process after a reconnect, or a later process with the same journal.
    pub fn continues(&self, earlier: &Self) -> bool {
        let is_descendant = self.ancestors.is_empty() || self.ancestors.contains(&earlier.instance);
        self.is_same_process(earlier)
            || (self.journal == earlier.journal && self.epoch > earlier.epoch && is_descendant)
    }

    /// Whether the same process made both claims.
    pub fn is_same_process(&self, other: &Self) -> bool {
        self.journal == other.journal && self.epoch == other.epoch && self.instance == other.instance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_process_or_a_later_one_with_the_same_journal_continues() {
        let claim = |journal: &'static str, epoch, instance: &'static str| JournalClaim {
            journal: journal.into(),
            epoch,
            instance: instance.into(),
            ancestors: Vec::new(),
        };
        let earlier = claim("j", 5, "a");
        assert!(claim("j", 5, "a").continues(&earlier), "a reconnect");
        assert!(claim("j", 6, "b").continues(&earlier), "a restart");
        assert!(!claim("k", 6, "b").continues(&earlier), "a new folder");
        assert!(!claim("j", 4, "b").continues(&earlier), "an older copy");
        assert!(!claim("j", 5, "b").continues(&earlier), "a copy that was opened as often");
        assert!(!claim("k", 5, "a").continues(&earlier));
        let with = |ancestors: &[&'static str]| JournalClaim {
            ancestors: ancestors.iter().map(|name| ByteString::from_static(name)).collect(),
            ..claim("j", 7, "c")
        };
        assert!(with(&["b", "a", "0"]).continues(&earlier), "the second restart");
        assert!(!with(&["b", "0"]).continues(&earlier), "an older copy that was opened more often");
    }
}
