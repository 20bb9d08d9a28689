//! What the owner of a connection may choose, with the limits that hold if it chooses nothing.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct ConnectionOptions {
    /// The process that stands between host and server and outlives the host just long enough to end the server.
    /// Without it a server is still ended on every way out but a SIGKILL of the host.
    pub guard: Option<GuardCommand>,
    /// Give every progress token a value of our own. Needed where several clients share the connection; otherwise a
    /// token is changed only while another call uses the same one.
    pub map_tokens: bool,
    /// A longer message of the server costs its call an error, and nothing else.
    pub max_message_bytes: usize,
    /// How long a server may take to start and to say which eras it speaks. A package runner may have to download it.
    pub start_timeout: Duration,
    /// How long a server may take to leave by itself when its stdin is closed, and again after SIGTERM.
    pub grace: Duration,
}

/// Run as `program args… --lifeline PATH -- command…`; see [`crate::guard_main`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardCommand {
    pub program: PathBuf,
    pub args: Vec<OsString>,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            guard: None,
            map_tokens: false,
            max_message_bytes: 15 << 20,
            start_timeout: Duration::from_secs(30),
            grace: Duration::from_secs(2),
        }
    }
}
