//! The logs and leases of a cluster on real NATS servers, which `cargo xtask test` installs (in `TOOLBUS_PARTS`); without
//! them, they do nothing.

#![allow(clippy::unwrap_used)]

mod contract;
mod failover;
mod identity;
mod leases;
mod ownership;
mod servers;
