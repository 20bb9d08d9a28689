//! The store through its public face: one contract on every disk, and what the log does about crashes and damage.

#![allow(clippy::unwrap_used)]

mod contract;
mod damage;
mod failures;
mod moving;
mod reclaim;
mod support;
mod torn_end;
