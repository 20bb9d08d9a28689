//! Credentials through the public face: what lets somebody in, what doesn't, and for how long it holds.

mod local;
mod registry;
mod support;
