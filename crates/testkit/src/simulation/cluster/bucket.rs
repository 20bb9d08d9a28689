//! The key-value bucket with the lease of the partition: one record, changed by compare-and-set.

use toolbus_cluster::LeaseRecord;

/// The record and its revision; revision 0 means that there is none.
pub struct Bucket {
    pub revision: u64,
    pub record: LeaseRecord,
}

impl Default for Bucket {
    fn default() -> Self {
        Self { revision: 0, record: LeaseRecord { owner: None, epoch: 0 } }
    }
}

impl Bucket {
    /// Writes the record if its revision is the expected one. Returns whether it was.
    pub fn write(&mut self, expected: u64, record: LeaseRecord) -> bool {
        let is_current = expected == self.revision;
        if is_current {
            self.revision += 1;
            self.record = record;
        }
        is_current
    }
}
