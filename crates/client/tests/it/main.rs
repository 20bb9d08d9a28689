//! The client against a broker in the same process, over pipes that can be cut and over TLS.

#![allow(clippy::unwrap_used)]

mod ask_agent;
mod cancels;
mod endings;
mod follows;
mod inspect;
mod pki;
mod receipts;
mod reconnecting;
mod replies;
mod scripted;
mod scripted_frames;
mod support;
mod tls;
mod unrecorded_replies;
mod withdraw;
