//! Third-party servers and clients, installed by `cargo xtask parts`: first directly against each other, to validate
//! the checks, then the same checks with toolbus in between.

mod clients;
mod direct;
mod hosted;
mod installed;
mod through_toolbus;
