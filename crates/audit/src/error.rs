//! Errors of the audit log.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Why the audit log can't be opened, read or written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AuditError {
    /// An I/O operation failed.
    #[error("can't {what} {}: {source}", file.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file or folder.
        file: PathBuf,
        /// The error of the system.
        source: Arc<io::Error>,
    },
    /// Another process holds the lock.
    #[error("another process writes to the audit log in {}", folder.display())]
    Locked {
        /// The folder of the log.
        folder: PathBuf,
    },
    /// The log was changed or is corrupt.
    #[error("the audit log was modified or is corrupt, so it is not continued: {place}: {what}")]
    Damaged {
        /// File and line.
        place: String,
        /// What is wrong there.
        what: String,
    },
    /// The log is sealed already. A new key would not fit its seals.
    #[error("the audit log in {} is sealed already", folder.display())]
    Sealed {
        /// The folder of the log.
        folder: PathBuf,
    },
    /// The system has no random numbers.
    #[error("the system returned no random numbers")]
    NoRandomness,
    /// An earlier write failed, so no more records are accepted.
    #[error("the audit log has failed: {0}")]
    Failed(String),
    /// The log is closed.
    #[error("the audit log is closed")]
    Closed,
}

impl AuditError {
    /// How to fix it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Io { .. } | Self::Failed(_) => "check the disk: free space, permissions and hardware errors",
            Self::Locked { .. } => "run one process per folder",
            Self::Damaged { .. } => {
                "`toolbus audit verify` shows details; rename the folder to keep it as evidence, and start again"
            }
            Self::Sealed { .. } => "verify it with the key that was shown then",
            Self::NoRandomness => "check the system's random number generator",
            Self::Closed => "the process is stopping",
        }
    }

    pub(crate) fn damaged(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Damaged { place: place.into(), what: what.into() }
    }

    pub(crate) fn io(what: &'static str, file: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let file = file.into();
        move |source| Self::Io { what, file, source: Arc::new(source) }
    }
}
