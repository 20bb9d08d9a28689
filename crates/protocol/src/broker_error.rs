//! The error of the library: of the client, and of the broker in the same process, which converts into it.

use crate::{BodyError, ErrorCode, MsgId};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use toolbus_base::UnsafePath;

/// Result of an operation of the library.
pub type BrokerResult<T> = Result<T, BrokerError>;

/// Why an operation of a client, or of a broker in this process, failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BrokerError {
    /// The broker refused or ended the connection: the credential is invalid, revoked or expired, or another connection
    /// displaced this one. Retrying with the same credential does not help.
    #[error("the broker refused the connection: {reason}")]
    Auth {
        /// The broker's error code, if it sent one.
        code: Option<ErrorCode>,
        /// The broker's explanation.
        reason: String,
    },
    /// The broker rejected one message or request.
    #[error("the broker rejected {}: {reason}", id.as_ref().map_or("the request".to_owned(), |id| format!("message {id}")))]
    Rejected {
        /// The error code, if there is one.
        code: Option<ErrorCode>,
        /// Why it was rejected.
        reason: String,
        /// The id of the rejected message or request, if it has one.
        id: Option<MsgId>,
    },
    /// The broker accepts no connection at the moment, for example because a limit is reached. A later attempt may succeed.
    #[error("the broker accepts no connection at the moment: {reason}")]
    Busy {
        /// Which limit or state prevents it.
        code: ErrorCode,
        /// The broker's explanation.
        reason: String,
    },
    /// There is no connection, or it was lost.
    #[error("no connection to the broker: {0}")]
    Transport(String),
    /// One side rejects the other's certificate, or only one side speaks TLS.
    #[error("TLS connection to the broker failed: {0}")]
    Tls(String),
    /// A file with certificates or a key for TLS can't be read, or is another user's.
    #[error("{} can't be used: {source}", path.display())]
    TlsFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Arc<io::Error>,
    },
    /// The token was not sent because the destination is outside the token's scope.
    #[error("the token was not sent: {reason}")]
    TokenWithheld {
        /// Whether the destination is unencrypted or did not prove its identity.
        code: ErrorCode,
        /// Why the token was not sent.
        reason: String,
    },
    /// The broker sent an invalid frame, or its version does not support the operation.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// No answer arrived in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The broker's address, a recipient's name or a message id is invalid.
    #[error("invalid address: {0}")]
    Address(String),
    /// A message body is not valid JSON, or does not have the expected form.
    #[error("invalid message body: {0}")]
    Body(String),
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
    /// The broker in this process can't start, or can't continue.
    #[error("{reason}")]
    Server {
        /// The error code, if there is one.
        code: Option<ErrorCode>,
        /// What failed.
        reason: String,
    },
}

impl BrokerError {
    /// The stable error code, for the variants that have one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Auth { code, .. } | Self::Rejected { code, .. } | Self::Server { code, .. } => *code,
            Self::TokenWithheld { code, .. } | Self::Busy { code, .. } => Some(*code),
            Self::TlsFile { .. } => UnsafePath::in_chain(self).map(|_| ErrorCode::UnsafePath),
            _ => None,
        }
    }

    /// Whether reconnecting is useless. A failed proof is not final: the right broker may still be started on its port.
    pub fn is_final(&self) -> bool {
        match self {
            Self::TokenWithheld { code, .. } => *code == ErrorCode::PlainTextToken,
            error => matches!(error, Self::Auth { .. } | Self::Address(_) | Self::Protocol(_)),
        }
    }
}

impl From<BodyError> for BrokerError {
    fn from(error: BodyError) -> Self {
        Self::Body(error.to_string())
    }
}
