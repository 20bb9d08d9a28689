//! The frames of the handshake: what a client requests, and what the broker grants.

use crate::AgentRef;
use std::fmt;

/// The encoding of frames after the handshake. The handshake itself is always JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// [`crate::json`].
    #[default]
    Json,
    /// [`crate::compact`].
    Compact,
}

impl Framing {
    /// Returns the name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Compact => "compact",
        }
    }

    /// Parses the name on the wire.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "json" => Some(Self::Json),
            "compact" => Some(Self::Compact),
            _ => None,
        }
    }
}

/// The `hello` frame.
#[derive(Clone, PartialEq, Eq)]
pub struct Hello {
    /// Name and role that the client requests.
    pub agent: AgentRef,
    /// The credential.
    pub token: String,
    /// Highest version that the client supports; 1 if absent.
    pub version: Option<u32>,
    /// Framing that the client requests.
    pub framing: Option<Framing>,
}

/// Omits the token, to keep it out of logs.
impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hello")
            .field("agent", &self.agent)
            .field("version", &self.version)
            .field("framing", &self.framing)
            .finish_non_exhaustive()
    }
}

/// The `welcome` frame. An original broker sends none of its fields.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Welcome {
    /// Highest version that the broker supports; 1 if absent.
    pub version: Option<u32>,
    /// Framing from now on; JSON if absent.
    pub framing: Option<Framing>,
    /// Limits of the connection.
    pub limits: Option<Limits>,
    /// Heartbeat interval, from which the times for pings and for a dead connection follow.
    pub heartbeat_ms: Option<u64>,
    /// Name and role of the client according to its credential, which may differ from `hello`.
    pub agent: Option<AgentRef>,
}

/// Limits of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of a WebSocket message that the broker accepts.
    pub max_frame_bytes: u64,
    /// Maximum number of pushed and unacknowledged messages.
    pub window_messages: u64,
    /// Maximum size of pushed and unacknowledged messages.
    pub window_bytes: u64,
}
