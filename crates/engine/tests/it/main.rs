//! Tests of the engine through its public API: commands and time in, effects and batches out.

#![allow(clippy::unwrap_used)]

mod agent_ends;
mod cancel_results;
mod cancels;
mod dead_letters;
mod deadlines;
mod dedup;
mod disk_full;
mod fences;
mod fetches;
mod follows;
mod inspect;
mod interactions;
mod limits;
mod order;
mod presence;
mod receipts;
mod replies;
mod rights;
mod shares;
mod support;
mod window;
