//! Errors of the broker as a whole. Errors of a single connection are reported to its peer only.

use crate::tls::TlsError;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use toolbus_protocol::{ErrorCode, NameError};
use toolbus_store::{OpenError, StoreError};
use toolbus_wal::{MoveMark, MoveState};

/// Result of a broker operation.
pub type BrokerResult<T> = Result<T, BrokerError>;

/// Why the broker can't start, can't continue, or can't attach a connection.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BrokerError {
    /// The data folder is locked, damaged, or of another version.
    #[error("can't open the data folder: {0}")]
    Folder(#[source] Arc<OpenError>),
    /// The log in the data folder can't be read.
    #[error("can't open the data folder: {0}")]
    Open(#[source] Arc<StoreError>),
    /// A partition was opened, but the agents that have ended meanwhile could not be recorded in it.
    #[error("the changes of the agents could not be recorded")]
    Unrecorded,
    /// The generations of agents can't be read, so messages can't be attributed to agents that had the same name.
    #[error("can't read {}: {reason}", file.display())]
    Generations {
        /// The file.
        file: PathBuf,
        /// Why it can't be read.
        reason: String,
    },
    /// A write, fsync or read failed. No receipt was sent for a message that was not durable before.
    #[error("storage failed: {0}")]
    Storage(Arc<StoreError>),
    /// The listening socket failed.
    #[error("can't listen: {0}")]
    Listen(Arc<io::Error>),
    /// The TLS certificate, key or client CA can't be used.
    #[error("can't set up TLS: {0}")]
    Tls(Arc<TlsError>),
    /// A storage thread can't be started.
    #[error("can't start a thread: {0}")]
    Thread(Arc<io::Error>),
    /// An in-process connection was refused: the connection limit is reached.
    #[error("can't attach an in-process connection: connection limit reached")]
    NoSeat,
    /// An in-process connection was refused: its agent name or role is invalid.
    #[error("can't attach an in-process connection: {0}")]
    BadName(NameError),
}

impl BrokerError {
    /// The stable error code, if the error has one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Storage(_) => Some(ErrorCode::StorageFailed),
            Self::Folder(error) => match &**error {
                OpenError::UnknownFormat { .. } => Some(ErrorCode::OtherFormat),
                OpenError::DamagedIdentity { .. } | OpenError::MissingIdentity { .. } => {
                    Some(ErrorCode::DamagedIdentity)
                }
                OpenError::Moved { mark, .. } => Some(code_of_mark(mark)),
                OpenError::Locked { .. } | OpenError::Io { .. } => None,
            },
            Self::NoSeat => Some(ErrorCode::TooManyConnections),
            Self::BadName(_) => Some(ErrorCode::BadName),
            _ => None,
        }
    }
}

/// The code of the error that data with this mark causes.
pub fn code_of_mark(mark: &MoveMark) -> ErrorCode {
    match mark.state {
        MoveState::Left => ErrorCode::MovedAway,
        MoveState::Leaving | MoveState::Arriving => ErrorCode::MoveUnfinished,
    }
}

/// The error type of the library.
impl From<BrokerError> for toolbus_protocol::BrokerError {
    fn from(error: BrokerError) -> Self {
        Self::Server { code: error.code(), reason: error.to_string() }
    }
}
