//! Credentials through the public API: what is accepted, what is refused, and how long an identity is valid.

mod certificates_and_chain;
mod followed_agents;
mod issuer;
mod jwt;
mod local;
mod names_are_qualified_by_issuer;
mod registry;
mod support;
