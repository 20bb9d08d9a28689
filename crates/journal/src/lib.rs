//! The call journal of a host, which gives tool calls at-most-once semantics.
//!
//! A host writes a START before it sends a call to the server, and a RESULT before it sends the answer to the caller.
//! When a call is repeated after a lost connection or a crash, the journal returns its state: still running, answered
//! (with the answer), or started by an earlier process, so that its outcome is unknown.
//!
//! - [`CallIndex`] holds the state of each call; it does no I/O, so that a simulation can compare it with a model.
//! - [`decide`] decides what to do with an incoming call, from its state.
//! - [`JournalLog`] stores the entries on a [`toolbus_wal::Disk`].
//! - [`Compactor`] removes old segments of the log and copies the entries that are still needed.
//! - [`Journal`] combines them for a host, with group commit: one sync serves all waiting writers.

mod call_index;
mod compactor;
mod decide;
mod entry;
mod journal;
mod log;
mod options;
mod payload;
mod record;
mod replay;
mod writer;

pub use call_index::{
    CallIndex, CallSummary, Candidate, CandidateState, DeadLetterRow, Known, Limits, Refused, Sharer, Stage,
    TaskManifest, TaskRow,
};
pub use compactor::{CompactionContext, Compactor, CompactorOptions};
pub use decide::{Decision, Replay, decide};
pub use entry::{CallKey, Dead, End, Entry, Finish, Joined, Start, Task};
pub use journal::{Generation, Journal, Wait};
pub use log::{JournalLog, Location, LogOptions, Reader, Unsynced};
pub use options::{JournalError, JournalOptions};
pub use replay::Recovery;
pub use toolbus_wal::OpenError;
pub use writer::Clock;
