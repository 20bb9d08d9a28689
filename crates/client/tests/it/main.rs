//! The client against a broker in the same process, over pipes that can be cut and over TLS.

#![allow(clippy::unwrap_used)]

mod cancels;
mod endings;
mod follows;
mod inspect;
mod pki;
mod receipts;
mod replies;
mod scripted;
mod support;
mod tls;
mod withdraw;
