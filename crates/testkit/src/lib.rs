//! Test tools for the other crates.
//!
//! - [`simulation`]: deterministic simulation of engine, store and hosts, with clients, disks and a clock, from a seed.
//! - [`planted`]: known defects that the simulation must find.

pub mod planted;
pub mod simulation;
