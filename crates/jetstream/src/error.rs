//! Errors of connecting to a cluster.

use crate::identity::IdentityError;
use crate::requirements::Unmet;
use std::io;
use std::path::PathBuf;

/// Why a cluster can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// No server could be reached.
    #[error("can't connect to NATS: {0}")]
    Connect(String),
    /// A file of credentials or certificates can't be used.
    #[error("can't use {} to connect to NATS: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A stream or bucket could not be created, read or watched.
    #[error("can't {what}: {reason}")]
    Request {
        /// The failed operation, as a verb phrase.
        what: &'static str,
        /// The error of the client or the server.
        reason: String,
    },
    /// The identity of the cluster can't be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The servers or their settings would not keep what is promised.
    #[error(transparent)]
    Unmet(#[from] Unmet),
}

impl ClusterError {
    pub(crate) fn request<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Request { what, reason: error.to_string() }
    }
}
