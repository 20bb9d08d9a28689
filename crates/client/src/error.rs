//! What a caller of the client can run into.

use std::time::Duration;
use toolbus_protocol::{BodyError, ErrorCode, MsgId};

pub type BrokerResult<T> = Result<T, BrokerError>;

#[derive(Debug, Clone, thiserror::Error)]
pub enum BrokerError {
    /// The broker did not let us in, or no longer: the credential was taken back or its time is over, or another
    /// connection has the mailbox. Trying again with the same credential is useless.
    #[error("the broker refused the connection: {reason}")]
    Auth { code: Option<ErrorCode>, reason: String },
    /// The broker said no to this very message or request.
    #[error("the broker rejected {}: {reason}", id.as_ref().map_or("the request".to_owned(), |id| format!("message {id}")))]
    Rejected { code: Option<ErrorCode>, reason: String, id: Option<MsgId> },
    #[error("no connection to the broker: {0}")]
    Transport(String),
    /// Either end does not accept the other's certificate, or only one of them speaks TLS.
    #[error("no secure connection to the broker: {0}")]
    Tls(String),
    /// The token was not sent, because of where it would have gone.
    #[error("the token was not sent: {reason}")]
    TokenWithheld { code: ErrorCode, reason: String },
    #[error("the broker's answer makes no sense: {0}")]
    Protocol(String),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("the broker's address is not usable: {0}")]
    Address(String),
    #[error("the body is not usable: {0}")]
    Body(String),
    #[error("the client is closed")]
    Closed,
}

impl BrokerError {
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Auth { code, .. } | Self::Rejected { code, .. } => *code,
            Self::TokenWithheld { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether a new attempt over a new connection is useless. A broker that did not prove itself may still come back to
    /// its port.
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
