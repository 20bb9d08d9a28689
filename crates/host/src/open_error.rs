//! Why a connection to a server could not be opened.

use toolbus_mcp::{Outcome, Raw, RpcError};
use toolbus_upstream::ServerError;

/// Why a session could not be opened.
pub enum OpenError {
    Server(ServerError),
    /// The server's error response to `initialize`.
    Refused(Raw),
    /// A limit of the host.
    Host(RpcError),
}

impl From<ServerError> for OpenError {
    fn from(error: ServerError) -> Self {
        Self::Server(error)
    }
}

impl OpenError {
    pub fn into_outcome(self) -> Outcome {
        match self {
            Self::Server(error) => error.to_rpc_error().into(),
            Self::Refused(error) => Outcome::Error(error),
            Self::Host(error) => error.into(),
        }
    }

    pub fn reason(&self) -> String {
        match self {
            Self::Server(error) => error.to_string(),
            Self::Refused(error) => format!("the server refused `initialize`: {error}"),
            Self::Host(error) => error.message.clone(),
        }
    }
}

impl From<OpenError> for Outcome {
    fn from(error: OpenError) -> Self {
        error.into_outcome()
    }
}
