//! The call journal of a host, which gives tool calls at-most-once semantics.
//!
//! A host writes a START before it sends a call to the server, and a RESULT before it sends the answer to the caller.
//! When a call is repeated after a lost connection or a crash, the journal returns its state: still running, answered
//! (with the answer), or started by an earlier process, so that its outcome is unknown.
//!
//! - [`CallIndex`] holds the state of each call; it does no I/O, so that a simulation can compare it with a model.
//! - [`decide`] decides what to do with an incoming call, from its state.
//! - [`JournalLog`] stores the entries in a [`toolbus_wal::Log`].
//! - [`JournalState`] combines them with group commit, rotation, and compaction, which removes old segments of the log and
//!   copies the entries that are still needed.
//! - [`Journal`] is a [`JournalState`] with a thread that runs its slow operations.

mod call_index;
mod decide;
mod deferral;
mod entry;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod journal;
mod lineage;
mod log;
mod maintenance;
mod options;
mod payload;
mod planted;
mod state;
mod writer;

pub use call_index::{
    CallIndex, CallSummary, Candidate, CandidateState, DeadLetterRow, Known, Limits, Refused, Sharer, Stage,
    TaskManifest, TaskRow,
};
pub use decide::{Decision, Replay, decide};
pub use entry::{CallKey, Dead, End, Entry, Finish, Joined, Start, Task, agent};
pub use journal::{Journal, JournalIdentity};
pub use lineage::lineage;
pub use log::{JournalLog, Location, LogOptions, Reader};
pub use maintenance::{Maintained, Maintenance};
pub use options::{JournalError, JournalOptions};
pub use planted::PlantedBug;
pub use state::{Appended, JournalState, SyncGroup, Synced, Ticket, Wait};
pub use toolbus_wal::{OpenError, Recovery};
pub use writer::{Clock, Listener};
