//! Servers and clients that other people wrote, installed by `cargo xtask parts`. First against each other, which shows
//! that the checks themselves are sound; then the same checks with toolbus in between.

mod clients;
mod direct;
mod hosted;
mod installed;
mod through_toolbus;
