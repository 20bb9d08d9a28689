//! The audit log: one JSON line for each decision and each call, chained by hash, so that a line that was changed, taken
//! out or moved shows, and so does an end that was cut off.
//!
//! - [`AuditLog`] writes; [`Record`] is what can be written.
//! - [`verify`] checks a folder, [`Tail`] reads its end.
//! - [`canonical`] is the one form of JSON text under which two documents of the same content have the same hash.

pub mod canonical;
mod error;
mod files;
mod line;
mod log;
mod opening;
mod record;
mod refusals;
mod tail;
mod verify;
mod writer;

pub use canonical::{argument_hash, sha256_hex};
pub use error::AuditError;
pub use log::{AuditLog, AuditOptions};
pub use record::{CallEnd, Caller, Record, Subject};
pub use tail::Tail;
pub use verify::{MOST_SCARS, Problem, Report, verify};
