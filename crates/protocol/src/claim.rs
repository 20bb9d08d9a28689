//! How a host names the journal behind its mailbox, so that the broker notices when another journal takes over.

use bytestring::ByteString;

/// Sent by a host before `subscribe` (version 2): the journal in which it records the calls of its mailbox.
///
/// The broker remembers the last claim of each mailbox. Calls that may have been pushed under another claim are preceded by
/// an `unsure` frame: this journal can't tell whether they were started.
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

/// Number of ancestors of a claim; further ones are ignored.
pub const MAX_ANCESTORS: usize = 64;
