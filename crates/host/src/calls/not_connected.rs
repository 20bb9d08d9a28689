//! Why a call can't be sent to its server.

use super::answers::Given;
use crate::open_error::OpenError;
use toolbus_mcp::Outcome;
use toolbus_protocol::ErrorCode;
use toolbus_upstream::ServerError;

/// Why a call can't be sent.
pub enum NotConnected {
    /// The server can't be started or reached, which its circuit breaker counts.
    ServerFailed(Given),
    Refused(Given),
}

impl<T: Into<Given>> From<T> for NotConnected {
    fn from(answer: T) -> Self {
        Self::Refused(answer.into())
    }
}

impl From<OpenError> for NotConnected {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Server(error) => Self::of_server(&error),
            OpenError::Refused(error) => Self::Refused(Outcome::Error(error).into()),
            OpenError::Host(error) => Self::Refused(error.into()),
        }
    }
}

impl NotConnected {
    pub fn of_server(error: &ServerError) -> Self {
        let answer = error.to_rpc_error().into();
        if is_failure(error) { Self::ServerFailed(answer) } else { Self::Refused(answer) }
    }
}

/// Whether the error counts as a failure of the server for its circuit breaker.
pub fn is_failure(error: &ServerError) -> bool {
    [ErrorCode::ServerDown, ErrorCode::ServerDied].iter().any(|code| code.code() == error.code())
}
