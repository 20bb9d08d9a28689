//! The engine through its public face: commands and time in, effects and batches out.

#![allow(clippy::unwrap_used)]

mod cancels;
mod dead_letters;
mod deadlines;
mod dedup;
mod disk_full;
mod entanglements;
mod inspect;
mod limits;
mod order;
mod presence;
mod reading_back;
mod receipts;
mod replies;
mod rights;
mod support;
mod window;
