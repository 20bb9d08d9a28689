//! Moves the data of a broker from its folder into a cluster on NATS JetStream, and back, while no broker runs.
//!
//! - [`to_cluster`] and [`to_folder`] carry out a move, or go on with one that was interrupted. [`abandon`] gives one up.
//! - A [`MoveReport`] counts what each side has, with a checksum over all of it.
//! - `survey` reads everything that a log has, `plan` decides where each message goes, without I/O, and `copy` writes what is
//!   missing there. `sides` and `cluster_side` open the two places.
//!
//! Both sides carry a [`toolbus_wal::MoveMark`] in the record that no broker starts without. The source is marked before the
//! first byte is copied, and has left before the target can be used. So there is no moment at which two brokers could serve
//! the same mailboxes, or one of them a part of the data.
//!
//! A plan depends only on the source, which does not change. A move that goes on after a crash makes the same plan and writes
//! what the target lacks.

#![warn(missing_docs)]

mod cluster_side;
mod copy;
mod digest;
mod error;
mod hosts;
mod moves;
mod plan;
mod report;
mod sides;
mod survey;

pub use error::MoveError;
pub use moves::{MoveOptions, abandon, to_cluster, to_folder};
pub use report::{MoveReport, Totals};
pub use sides::check_here;
pub use toolbus_wal::{MoveMark, MoveState};
