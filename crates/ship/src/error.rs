//! Why lines can't be shipped.

use std::io;
use std::path::PathBuf;
use toolbus_audit::AuditError;

/// Why lines can't be shipped at the moment.
#[derive(Debug, thiserror::Error)]
pub enum ShipError {
    /// A file can't be written.
    #[error("can't write {}: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The syslog daemon can't be reached.
    #[error("can't send to {address}: {source}")]
    Syslog {
        /// Its address.
        address: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The collector can't be reached or does not accept the lines.
    #[error("can't post to {url}: {reason}")]
    Otlp {
        /// Its URL.
        url: String,
        /// The status or the error.
        reason: String,
    },
    /// The local log can't be read.
    #[error("{0}")]
    Log(#[from] AuditError),
}
