//! What can go wrong with the broker as a whole. What goes wrong with one peer is told to that peer.

use crate::tls::TlsError;
use std::io;
use std::sync::Arc;
use toolbus_protocol::{ErrorCode, NameError};
use toolbus_store::{OpenError, StoreError};

pub type BrokerResult<T> = Result<T, BrokerError>;

#[derive(Debug, Clone, thiserror::Error)]
pub enum BrokerError {
    /// The data folder is locked, damaged, or of another version.
    #[error("the data folder can't be used: {0}")]
    Folder(Arc<OpenError>),
    /// The log in the data folder can't be read.
    #[error("the data folder can't be used: {0}")]
    Open(Arc<StoreError>),
    /// Nothing that was not safe before has been receipted.
    #[error("storage failed, so the broker stops: {0}")]
    Storage(Arc<StoreError>),
    #[error("can't listen: {0}")]
    Listen(Arc<io::Error>),
    #[error("no TLS: {0}")]
    Tls(Arc<TlsError>),
    #[error("can't start a thread: {0}")]
    Thread(Arc<io::Error>),
    #[error("no connection within the broker: there are as many connections as there may be")]
    NoSeat,
    #[error("no connection within the broker: {0}")]
    BadName(NameError),
}

impl BrokerError {
    /// The stable code, where there is one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Storage(_) => Some(ErrorCode::StorageFailed),
            Self::Folder(error) => match &**error {
                OpenError::UnknownFormat { .. } => Some(ErrorCode::OtherFormat),
                OpenError::DamagedIdentity { .. } | OpenError::MissingIdentity { .. } => {
                    Some(ErrorCode::DamagedIdentity)
                }
                OpenError::Locked { .. } | OpenError::Io { .. } => None,
            },
            Self::NoSeat => Some(ErrorCode::TooManyConnections),
            Self::BadName(_) => Some(ErrorCode::BadName),
            _ => None,
        }
    }
}
