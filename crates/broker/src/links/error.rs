//! Why a link can't be opened.

use std::io;
use std::time::Duration;
use toolbus_cluster::Partition;

/// Why a link can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer can't be reached.
    #[error("can't connect to {address}: {source}")]
    Connect {
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// A step took too long.
    #[error("timeout: the {step} took longer than {limit:?}")]
    Timeout {
        /// The step.
        step: &'static str,
        /// Its deadline.
        limit: Duration,
    },
    /// The TLS handshake failed.
    #[error("the TLS handshake failed: {source}")]
    Tls {
        /// The cause.
        source: io::Error,
    },
    /// The peer serves no links.
    #[error("the peer answered with HTTP status {status}")]
    Refused {
        /// The status; 0 if the response was not HTTP.
        status: u16,
    },
    /// The peer has another version of the protocol.
    #[error("the peer has another version of links")]
    Version,
    /// Another broker has that address now.
    #[error("the peer is another broker than {owner}")]
    AnotherBroker {
        /// The expected broker.
        owner: String,
    },
    /// One side could not prove that it belongs to the cluster: its secret differs, or there is a man in the middle.
    #[error("authentication failed: the brokers have different secrets, or something in between terminates TLS")]
    Authentication,
    /// The peer does not own the partition in that epoch.
    #[error("the peer does not own partition {} in epoch {epoch}", partition.0)]
    NotOwner {
        /// The partition.
        partition: Partition,
        /// The epoch.
        epoch: u64,
    },
    /// The connection was lost during the handshake, or the peer violated the protocol.
    #[error("the connection was lost during the handshake: {source}")]
    Lost {
        /// The cause.
        source: io::Error,
    },
}

impl From<io::Error> for LinkError {
    fn from(source: io::Error) -> Self {
        Self::Lost { source }
    }
}
