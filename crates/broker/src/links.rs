//! Links between the brokers of a cluster: connections that carry the frames of [`RemotePartition`] and [`PartitionServer`].
//!
//! A front opens a link for each partition of another broker ([`Links::open`]). The owner serves it on its only port, after
//! an HTTP upgrade and a handshake in which both prove that they know the cluster's secret. Both ends write frames in
//! batches, send keepalives, and close a link that is silent, malformed or overfull. The clients at the front then connect
//! again and repeat what was not confirmed.

mod binding;
mod dial;
mod error;
mod frames;
mod front;
mod handshake;
mod local;
mod owner;
#[cfg(test)]
mod owner_tests;
mod patient;
mod queue;
mod terms;

pub(crate) use binding::Binding;
pub use error::LinkError;
pub use front::Link;
pub use handshake::RefusedLink;
pub use local::{LocalPartition, LocalPartitions};
pub(crate) use owner::ServedLink;

use crate::prefixed::Prefixed;
use ring::hmac;
use std::sync::Arc;
use std::time::Duration;
use terms::Terms;
use toolbus_cluster::Partition;

#[cfg(doc)]
use toolbus_cluster::{PartitionServer, RemotePartition};

/// Path of the HTTP upgrade.
pub(crate) const LINK_PATH: &str = "/link";
/// Protocol of the upgrade. The number changes with the handshake and with any frame, so that brokers of different versions
/// refuse each other.
pub(crate) const LINK_PROTOCOL: &str = "toolbus-link/1";

/// Options of [`Links`]. All brokers of a cluster need the same secret, TLS setting and frame size.
#[derive(Clone)]
pub struct LinkOptions {
    /// Name of this broker, different for each process.
    pub name: String,
    /// The cluster's secret, with which brokers authenticate each other.
    pub secret: [u8; 32],
    /// Whether the brokers' listeners use TLS.
    pub tls: bool,
    /// Timeout of name resolution and TCP connection.
    pub connect_timeout: Duration,
    /// Timeout of everything from there until the link is open.
    pub handshake_timeout: Duration,
    /// Interval of keepalive frames.
    pub keepalive: Duration,
    /// How long nothing may arrive before a link is closed.
    pub silence: Duration,
    /// Maximum size of a frame. One has the commands that a client submits at once, or what the engine pushes to a client in
    /// one step: up to 8 MiB beside a message of the maximum size.
    pub max_frame_bytes: usize,
    /// Bytes of queued frames above which a link is congested.
    pub congested_bytes: usize,
    /// Bytes of queued frames above which a link is closed. Exceeds the window of a host several times: the owner of a
    /// partition pushes up to that much to each of them at once.
    pub max_queued_bytes: usize,
}

impl LinkOptions {
    /// The default options.
    pub fn new(name: &str, secret: [u8; 32]) -> Self {
        Self {
            name: name.to_owned(),
            secret,
            tls: false,
            connect_timeout: Duration::from_secs(1),
            handshake_timeout: Duration::from_secs(2),
            keepalive: Duration::from_secs(1),
            silence: Duration::from_secs(5),
            max_frame_bytes: 64 << 20,
            congested_bytes: 4 << 20,
            max_queued_bytes: 256 << 20,
        }
    }
}

/// The links of a broker, in both directions.
pub struct Links {
    options: LinkOptions,
    key: hmac::Key,
    partitions: Arc<dyn LocalPartitions>,
}

impl Links {
    /// Links of this broker, and to its partitions.
    pub fn new(options: LinkOptions, partitions: Arc<dyn LocalPartitions>) -> Arc<Self> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &options.secret);
        Arc::new(Self { options, key, partitions })
    }

    /// Opens a link to the broker of that name, at `HOST:PORT`, for a partition that it owns in that epoch. Must be called
    /// within a tokio runtime.
    pub async fn open(&self, owner: &str, address: &str, partition: Partition, epoch: u64) -> Result<Link, LinkError> {
        let terms = Terms { front: self.options.name.clone(), owner: owner.to_owned(), partition, epoch };
        let limit = self.options.connect_timeout;
        let connecting = tokio::time::timeout(limit, dial::connect(address));
        let socket = connecting.await.map_err(|_| LinkError::Timeout { step: "connection", limit })??;
        let limit = self.options.handshake_timeout;
        let handshake = async {
            let (mut stream, binding) = dial::upgrade(socket, address, self.options.tls).await?;
            handshake::propose(&mut stream, &self.key, &terms, &binding).await?;
            Ok::<Prefixed, LinkError>(stream)
        };
        let handshake = tokio::time::timeout(limit, handshake);
        let stream = handshake.await.map_err(|_| LinkError::Timeout { step: "handshake", limit })??;
        Ok(front::start(stream, &self.options))
    }

    /// Ends the links that other brokers have to a partition of this one, and refuses new ones until the partition is opened
    /// or resumed again. The fronts notice at once.
    pub fn close(&self, partition: Partition) {
        self.partitions.end_links(partition);
    }

    /// Authenticates another broker that asks for a link. Returns `None` if this broker does not own the partition, which
    /// was answered.
    pub(crate) async fn accept(
        &self,
        mut stream: Prefixed,
        binding: &Binding,
    ) -> Result<Option<ServedLink<Prefixed>>, RefusedLink> {
        let find = |terms: &Terms| self.partitions.local(terms.partition, terms.epoch);
        let (terms, local) = handshake::answer(&mut stream, &self.key, &self.options.name, binding, find).await?;
        match &local {
            Some(_) => tracing::debug!(front = terms.front, partition = terms.partition.0, "serving a link"),
            None => tracing::debug!(front = terms.front, partition = terms.partition.0, "not the owner"),
        }
        Ok(local.map(|local| ServedLink::new(stream, local, self.options.clone())))
    }
}
