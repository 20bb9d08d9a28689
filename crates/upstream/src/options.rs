//! Options of a connection, with their defaults.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Options of a connection.
#[derive(Debug, Clone)]
pub struct ConnectionOptions {
    /// The guard process between host and server, which terminates the server when the host is gone. Without it, a
    /// server is still terminated unless the host is killed by SIGKILL.
    pub guard: Option<GuardCommand>,
    /// Replaces every progress token. Required if several clients share the connection; otherwise a token is replaced
    /// only while another call uses the same one.
    pub map_tokens: bool,
    /// Size limit of a server's message. A larger one fails its call only.
    pub max_message_bytes: usize,
    /// How long a server may take to start and to answer a probe. A package runner may have to download it first.
    pub start_timeout: Duration,
    /// How long a server may take to exit after its stdin is closed, and again after SIGTERM.
    pub grace: Duration,
}

/// The command of the guard, run as `program args… --lifeline PATH -- command…`; see [`crate::guard_main`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardCommand {
    /// The program to run.
    pub program: PathBuf,
    /// Arguments before `--lifeline`.
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
