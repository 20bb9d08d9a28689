//! What a partition needs of its replicated log. Calls block; they are made on the threads of the store.

use bytes::Bytes;

/// The replicated log of one partition: messages with gapless sequence numbers from 1.
pub trait ReplicatedLog: Send + Sync {
    /// Appends a message at the expected position and returns its sequence number once the log keeps it durably. A
    /// message whose id is known is not appended again; its original number is returned.
    fn append(&self, append: &Append) -> Result<u64, AppendError>;

    /// Waits before an append without an answer is sent again, longer for later attempts. Returns false if it is time to
    /// give up.
    fn wait_to_resend(&self, attempt: u32) -> bool;

    /// The sequence numbers that the log has.
    fn bounds(&self) -> Result<Bounds, LogError>;

    /// Calls `each` for the messages from one sequence number to another, both included, in order. Numbers that the log
    /// does not have are left out; the caller checks for gaps.
    fn read(&self, from: u64, to: u64, each: &mut dyn FnMut(u64, Bytes)) -> Result<(), LogError>;

    /// Removes all messages before a sequence number.
    fn purge_below(&self, sequence: u64) -> Result<(), LogError>;

    /// How many bytes the log can still take.
    fn free_bytes(&self) -> Result<u64, LogError>;

    /// Maximum size of a message in bytes.
    fn max_message(&self) -> usize;
}

/// A message to append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// Deduplicates an append that is sent again.
    pub id: String,
    /// The number of the last message before this one. With another last message the append is rejected.
    pub expected_last: Option<u64>,
    /// The content.
    pub payload: Bytes,
}

/// The sequence numbers of the messages that a log has. `last` is one less than `first` if it is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The first message that was not purged.
    pub first: u64,
    /// The last message that was ever appended, purged or not.
    pub last: u64,
}

/// Why an append failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The log has another last message than expected. It was not appended.
    #[error("the log has another last message than expected")]
    Rejected,
    /// The log has no room. It was not appended.
    #[error("the log is full")]
    Full,
    /// No answer: the message may be appended now, later, or never.
    #[error("no answer from the log: {0}")]
    Unknown(String),
}

/// Why the log could not be read, inspected or purged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("can't {what} the log: {reason}")]
pub struct LogError {
    /// The failed operation, as a verb phrase.
    pub what: &'static str,
    /// The error of the log.
    pub reason: String,
}
