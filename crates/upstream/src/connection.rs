//! A live connection to one server in one era.

use crate::call::ServerCall;
use crate::config::ServerConfig;
use crate::error::ServerError;
use crate::options::ConnectionOptions;
use std::sync::Arc;
use tokio::sync::mpsc;
use toolbus_mcp::{Era, Id, Outcome, Raw};

/// What a server says outside of any call.
#[derive(Debug, Clone)]
pub enum ServerEvent {
    Notification {
        method: String,
        params: Option<Raw>,
    },
    Request {
        id: Id,
        method: String,
        params: Option<Raw>,
    },
    /// The last event: every open call has got the same error.
    Closed(ServerError),
}

/// A cheap handle. When the last one is dropped, the connection is closed and the process reaped.
#[derive(Clone)]
pub struct ServerConnection {
    name: Arc<str>,
}

impl ServerConnection {
    /// Spawns the process, or prepares for HTTP. No handshake is done here.
    pub async fn open(
        config: &ServerConfig,
        _era: Era,
        _options: &ConnectionOptions,
        _events: mpsc::Sender<ServerEvent>,
    ) -> Result<Self, ServerError> {
        Ok(Self { name: config.name.as_str().into() })
    }

    /// Sends a request under an id of our own.
    pub async fn start(&self, _method: &str, _params: Option<Raw>) -> Result<ServerCall, ServerError> {
        Err(ServerError::Closed { server: self.name.to_string() })
    }

    pub async fn notify(&self, _method: &str, _params: Option<Raw>) -> Result<(), ServerError> {
        Err(ServerError::Closed { server: self.name.to_string() })
    }

    /// Answers a request that the server made.
    pub async fn answer(&self, _id: &Id, _outcome: Outcome) -> Result<(), ServerError> {
        Err(ServerError::Closed { server: self.name.to_string() })
    }

    /// The last lines that the server wrote to stderr.
    pub fn stderr_tail(&self) -> Vec<String> {
        Vec::new()
    }

    /// Why the connection is over, if it is.
    pub fn closed(&self) -> Option<ServerError> {
        None
    }

    /// Lets the server leave by itself, and ends it if it doesn't. Returns when it is gone.
    pub async fn close(&self) {}
}
