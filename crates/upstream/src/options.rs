//! Options of a connection, with their defaults.

use crate::config::ServerConfig;
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
    /// How long a server may take to start and to answer a probe, unless its configuration says otherwise.
    pub start_timeout: Duration,
    /// The same for a server that a package runner starts, which may have to download it first.
    pub download_timeout: Duration,
    /// How long a server may take to exit after its stdin is closed, and again after SIGTERM.
    pub grace: Duration,
}

impl ConnectionOptions {
    /// How long this server may take to start.
    pub fn start_timeout_of(&self, config: &ServerConfig) -> Duration {
        let default = || if config.package_runner().is_some() { self.download_timeout } else { self.start_timeout };
        config.start_timeout.unwrap_or_else(default)
    }
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
            download_timeout: Duration::from_secs(300),
            grace: Duration::from_secs(2),
        }
    }
}
