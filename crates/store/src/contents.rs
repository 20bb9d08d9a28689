//! All that a log has, to be copied to another one.

use crate::LogStore;
use std::sync::Arc;
use toolbus_engine::{Seq, Settled};

impl LogStore {
    /// The pending messages: mailbox, sequence number and push attempts, by mailbox and in order.
    pub fn pending(&self) -> Vec<(Arc<str>, Seq, Option<u32>)> {
        self.index().pending()
    }

    /// The ids of settled messages that are remembered for deduplication, oldest settlement first.
    pub fn remembered(&self) -> Vec<Settled> {
        self.index().remembered.iter().map(|id| id.settled()).collect()
    }
}
