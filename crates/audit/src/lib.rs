//! The audit log: one JSON line for each decision and each call, chained by hash, so that changed, removed or reordered
//! lines and a truncated end are detected.
//!
//! - [`AuditLog`] writes; [`Record`] is an entry.
//! - Seals with a [`VerificationKey`] that is kept elsewhere also detect a log that was rewritten as a whole.
//! - [`verify`] checks a folder, [`Tail`] reads its end, [`read_batch`] reads on from a stored position.
//! - [`canonical`] normalises JSON, so that documents with the same content have the same hash.

pub mod canonical;
mod error;
mod files;
mod key_file;
mod line;
mod log;
mod reader;
mod record;
mod record_text;
mod recovery;
mod refusals;
mod seal;
#[cfg(test)]
mod seal_tests;
mod sealer;
mod tail;
mod time_text;
mod verify;
mod verify_seals;
mod writer;

pub use canonical::{argument_hash, sha256_hex};
pub use error::AuditError;
pub use log::{AuditLog, AuditOptions};
pub use reader::{Batch, Cursor, last_seq, read_batch};
pub use record::{CallEnd, Caller, Record, Subject};
pub use seal::VerificationKey;
pub use tail::Tail;
pub use verify::{MOST_SCARS, Problem, Report, VerifyOptions, verify};
pub use verify_seals::Sealed;
