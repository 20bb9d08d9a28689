//! The call journal of a host: what makes a call's effect happen at most once.
//!
//! A host writes down that it begins a call before the tool is told, and what the tool answered before the caller is told.
//! When a call comes again, after a lost connection or a crash, the journal says what became of it: still running,
//! answered (with the answer), or begun by a process that is gone, so that nobody knows.
//!
//! - [`Book`] is what is known of each call; it has no I/O, so that a simulation can hold it against a model.
//! - [`decide`] says what to do with a call that comes, by what is known of it.
//! - [`JournalLog`] keeps the book's entries on a [`toolbus_wal::Disk`].
//! - [`Tidy`] makes the log smaller without losing what is needed.
//! - [`Journal`] ties them together for a host: what waits for no sync is written at once, and one sync serves all who wait.

mod book;
mod decide;
mod entry;
mod journal;
mod log;
mod options;
mod payload;
mod record;
mod replay;
mod tidy;
mod writer;

pub use book::{
    Book, CallSummary, Candidate, CandidateState, DeadLetterRow, Known, Limits, Refused, Sharer, Stage, TaskManifest,
    TaskRow,
};
pub use decide::{Decision, Replay, decide};
pub use entry::{CallKey, Dead, End, Entry, Finish, Joined, Start, Task};
pub use journal::{Generation, Journal, Wait};
pub use log::{JournalLog, LogOptions, Place, Reader, Unsynced};
pub use options::{JournalError, JournalOptions};
pub use replay::Recovery;
pub use tidy::{Lent, Tidy, TidyOptions};
pub use toolbus_wal::OpenError;
pub use writer::Clock;
