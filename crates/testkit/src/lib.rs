//! What the other crates are tested with.
//!
//! - [`simulation`]: the whole broker without its shell, with clients, a disk and a clock, from one seed.
//! - [`planted`]: known defects that the simulation must find, or it proves nothing.

pub mod planted;
pub mod simulation;
