//! Tests of the store's public API: one contract on every disk, and recovery from crashes and corruption.

#![allow(clippy::unwrap_used)]

mod compaction;
mod contract;
mod corruption;
mod failures;
mod old_format;
mod reclaim;
mod support;
mod torn_writes;
