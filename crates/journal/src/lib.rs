//! The call journal of a host: what makes a call's effect happen at most once.
//!
//! A host writes down that it begins a call before the tool is told, and what the tool answered before the caller is told.
//! When a call comes again, after a lost connection or a crash, the journal says what became of it: still running,
//! answered (with the answer), or begun by a process that is gone, so that nobody knows.
//!
//! - [`Book`] is what is known of each call; it has no I/O, so that a simulation can hold it against a model.
//! - [`JournalLog`] keeps the book's entries on a [`toolbus_store::Disk`].
//! - [`Journal`] ties the two together for a host: one thread writes, and one sync serves all who wait.

mod book;
mod entry;
mod journal;
mod log;
mod record;
mod replay;

pub use book::{Book, Known, Refused};
pub use entry::{CallKey, Entry, Finish, Start};
pub use journal::{Journal, JournalError, JournalOptions};
pub use log::{JournalLog, LogOptions, Place};
pub use replay::Recovery;
