//! The replicated logs and leases of a cluster on NATS JetStream.
//!
//! - [`Cluster`] connects, checks that the servers keep what is promised, and creates or checks the streams and the bucket.
//! - [`JetStreamLog`] is the [`toolbus_cluster::ReplicatedLog`] of one partition: a stream with one subject.
//! - [`ClusterIdentity`] is what all brokers of a cluster share from its creation.
//! - [`SharedHosts`] is the directory of hosts that all brokers of a cluster share.
//! - [`SharedAgents`] joins the registries of agents of all brokers.
//! - [`Leases`] is the bucket with the records of who owns which partition.
//!
//! - [`Ownership`] carries out the leases of all partitions for one broker.
//!
//! All decisions are in `toolbus_cluster`; this crate only carries them out.

mod agents;
mod blobs;
mod bucket;
mod cluster;
mod connection;
mod error;
mod hosts;
mod identity;
mod leases;
mod log;
mod members;
mod monitors;
mod ownership;
mod requirements;

pub use agents::SharedAgents;
pub use cluster::{Cluster, ClusterOptions};
pub use connection::NatsTls;
pub use error::ClusterError;
pub use hosts::SharedHosts;
pub use identity::{ClusterIdentity, IdentityError, MarkedIdentity};
pub use leases::{BucketChange, BucketWatch, LeaseChange, Leases};
pub use log::JetStreamLog;
pub use monitors::check_sync;
pub use ownership::{NewMirror, Ownership, OwnershipEvent, OwnershipOptions};
pub use requirements::{OLDEST_SERVER, Unmet};
