//! The logs and leases of a cluster on real NATS servers, which `cargo xtask test` installs (in `TOOLBUS_PARTS`); without
//! them, they do nothing.

#![allow(clippy::unwrap_used)]

mod agents;
mod contract;
mod failover;
mod hosts;
mod identity;
mod leases;
mod ownership;
mod servers;
