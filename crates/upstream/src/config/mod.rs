//! Which servers a host runs, and how: read from the ecosystem's `mcpServers` JSON or from `[servers.NAME]` in
//! toolbus.toml. Both end in the same [`ServerConfig`].

mod call_settings;
mod error;
mod expand;
mod json;
mod settings;
mod toml;

pub use call_settings::{CallSettings, Join, Offline, Replay, TripSettings};
pub use error::{ConfigError, Position};
pub use expand::Environment;
pub use json::read_mcp_servers_json;
pub use toml::read_toml_servers;

use crate::secrets::SecretSettings;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use toolbus_mcp::Era;

/// Servers in the order of their file: where two of them have a tool of the same name, the earlier one keeps it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostConfig {
    pub servers: Vec<ServerConfig>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ServerConfig {
    pub name: String,
    pub transport: TransportConfig,
    /// Put before the names of the server's tools and prompts.
    pub prefix: Option<String>,
    pub session: SessionMode,
    pub max_sessions: usize,
    pub max_concurrency: usize,
    /// For every call without an entry in `tool_timeouts`. None means: as long as the caller waits.
    pub timeout: Option<Duration>,
    pub tool_timeouts: BTreeMap<String, Duration>,
    /// How long a session stays open unused.
    pub idle: Duration,
    pub disabled: bool,
    /// Overrides what a probe would find.
    pub era: Option<Era>,
    pub secrets: SecretSettings,
    /// Overrides what the host does about changed tools.
    pub pin: Option<PinMode>,
    pub calls: CallSettings,
}

#[derive(Clone, PartialEq)]
pub enum TransportConfig {
    Stdio { command: String, args: Vec<String>, env: BTreeMap<String, String>, cwd: Option<PathBuf> },
    Http { url: String, headers: BTreeMap<String, String> },
}

/// Who shares a session with a legacy server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SessionMode {
    #[default]
    PerWorker,
    /// For what exists only once: a screen, a browser.
    Shared,
}

/// Which definitions of tools are taken as the approved ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PinMode {
    /// Those that were seen first.
    #[default]
    FirstUse,
    /// Those that the lock file has, and no others.
    Lock,
    /// Whatever the server says.
    Off,
}

impl PinMode {
    pub const EXPECTED: &str = "\"first-use\", \"lock\" or \"off\"";

    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "first-use" => Some(Self::FirstUse),
            "lock" => Some(Self::Lock),
            "off" => Some(Self::Off),
            _ => None,
        }
    }
}

/// What a file says, and what in it means nothing to us.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServersRead {
    pub servers: Vec<ServerConfig>,
    pub warnings: Vec<String>,
}

impl ServerConfig {
    pub const MAX_SESSIONS: usize = 32;
    pub const MAX_CONCURRENCY: usize = 64;
    pub const IDLE: Duration = Duration::from_secs(600);

    pub fn new(name: impl Into<String>, transport: TransportConfig) -> Self {
        Self {
            name: name.into(),
            transport,
            prefix: None,
            session: SessionMode::PerWorker,
            max_sessions: Self::MAX_SESSIONS,
            max_concurrency: Self::MAX_CONCURRENCY,
            timeout: None,
            tool_timeouts: BTreeMap::new(),
            idle: Self::IDLE,
            disabled: false,
            era: None,
            secrets: SecretSettings::default(),
            pin: None,
            calls: CallSettings::default(),
        }
    }

    /// A server that is a command with arguments.
    pub fn stdio(name: impl Into<String>, command: impl Into<String>, args: &[&str]) -> Self {
        let args = args.iter().map(ToString::to_string).collect();
        Self::new(name, TransportConfig::Stdio { command: command.into(), args, env: BTreeMap::new(), cwd: None })
    }

    pub fn http(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self::new(name, TransportConfig::Http { url: url.into(), headers: BTreeMap::new() })
    }

    /// How long a call of that tool may take.
    pub fn timeout_of(&self, tool: &str) -> Option<Duration> {
        self.tool_timeouts.get(tool).copied().or(self.timeout)
    }
}

/// Values of `env` and `headers` are where secrets are; they are never shown.
impl fmt::Debug for TransportConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdio { command, args, env, cwd } => f
                .debug_struct("Stdio")
                .field("command", command)
                .field("args", &format_args!("[{} hidden]", args.len()))
                .field("env", &env.keys().collect::<Vec<_>>())
                .field("cwd", cwd)
                .finish(),
            Self::Http { url, headers } => f
                .debug_struct("Http")
                .field("url", &shown_url(url))
                .field("headers", &headers.keys().collect::<Vec<_>>())
                .finish(),
        }
    }
}

/// A URL without what may be secret in it: its credentials and its query.
pub(crate) fn shown_url(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}{path}")
        }
        None => url.to_owned(),
    }
}
