//! The client against a broker in the same process, over pipes that can be cut.

#![allow(clippy::unwrap_used)]

mod cancels;
mod endings;
mod replies;
mod support;
