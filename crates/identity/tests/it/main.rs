//! Credentials through the public face: what lets somebody in, what doesn't, and for how long it holds.

mod issuer;
mod jwt;
mod local;
mod others;
mod registry;
mod support;
