//! Partitions on a modelled log.

#![allow(clippy::unwrap_used)]

mod contract;
mod ownership;
mod stream_disk;
mod support;
