//! The configuration of a host's servers, from `[servers.NAME]` in toolbus.toml or from the file of an MCP client. Both
//! result in a [`ServerConfig`].

mod call_settings;
mod clients;
mod expand;
mod package_runner;
mod servers;
mod settings;

pub use call_settings::{CallSettings, Join, Offline, Replay, TripSettings};
pub use clients::{Input, Surroundings, read_mcp_servers};
pub use expand::Environment;
pub use servers::read_servers;

use crate::in_process::InProcessServer;
use crate::secrets::SecretSettings;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use toolbus_config::{ConfigError, Warning};
use toolbus_mcp::Era;

/// The servers in file order: if two of them have a tool of the same name, the first one keeps it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostConfig {
    /// The servers.
    pub servers: Vec<ServerConfig>,
}

/// The configuration of one server.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerConfig {
    /// Name of the server.
    pub name: String,
    /// How the server is reached.
    pub transport: TransportConfig,
    /// Prepended to the names of the server's tools and prompts.
    pub prefix: Option<String>,
    /// Who shares a session with the server.
    pub session: SessionMode,
    /// Maximum number of concurrent sessions.
    pub max_sessions: usize,
    /// Maximum number of concurrent calls.
    pub max_concurrency: usize,
    /// Timeout of calls without an entry in `tool_timeouts`. `None`: as long as the caller waits.
    pub timeout: Option<Duration>,
    /// How long the server may take to start, in place of the host's own limit.
    pub start_timeout: Option<Duration>,
    /// Timeouts by tool.
    pub tool_timeouts: BTreeMap<String, Duration>,
    /// How long an unused session stays open.
    pub idle: Duration,
    /// Whether the server is ignored.
    pub disabled: bool,
    /// Overrides the result of a probe.
    pub era: Option<Era>,
    /// How secrets are fetched and redacted.
    pub secrets: SecretSettings,
    /// Overrides the host's pin mode.
    pub pin: Option<PinMode>,
    /// Whether tools may be called that the server does not list.
    pub dynamic_tools: bool,
    /// Reliability settings of calls.
    pub calls: CallSettings,
}

/// How a server is reached.
#[derive(Clone, PartialEq)]
pub enum TransportConfig {
    /// A child process that speaks MCP over stdin and stdout.
    Stdio {
        /// Program to run.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Additional environment variables.
        env: BTreeMap<String, String>,
        /// Working directory.
        cwd: Option<PathBuf>,
    },
    /// A streamable HTTP endpoint.
    Http {
        /// URL of the endpoint.
        url: String,
        /// Additional request headers.
        headers: BTreeMap<String, String>,
    },
    /// The HTTP transport before streamable HTTP: a stream of events, and an endpoint for messages. Legacy era only.
    Sse {
        /// URL of the event stream.
        url: String,
        /// Additional request headers.
        headers: BTreeMap<String, String>,
    },
    /// A server in this process. Only code can set it, no file.
    InProcess(Arc<dyn InProcessServer>),
}

/// Who shares a session with a legacy server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SessionMode {
    /// Every client has a session of its own.
    #[default]
    PerWorker,
    /// All clients share one session, for resources that exist only once, such as a screen or a browser.
    Shared,
}

/// Which tool definitions count as approved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PinMode {
    /// Those that were seen first.
    #[default]
    FirstUse,
    /// Only those in the lock file.
    Lock,
    /// Every definition.
    Off,
}

impl PinMode {
    /// Description of the valid words, for error messages.
    pub const EXPECTED: &str = "\"first-use\", \"lock\" or \"off\"";

    /// Parses the word used in the configuration.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "first-use" => Some(Self::FirstUse),
            "lock" => Some(Self::Lock),
            "off" => Some(Self::Off),
            _ => None,
        }
    }
}

/// The servers in a file, and warnings about its contents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServersRead {
    /// The servers in file order.
    pub servers: Vec<ServerConfig>,
    /// Warnings for the user.
    pub warnings: Vec<Warning>,
    /// Entries of a client's file that are not hosted because of an error.
    pub unusable: Vec<UnusableServer>,
}

/// An entry with an error. The other servers of the file are hosted.
#[derive(Debug, Clone, PartialEq)]
pub struct UnusableServer {
    /// Name of the server.
    pub name: String,
    /// Why it is not hosted.
    pub error: ConfigError,
}

impl ServerConfig {
    /// Default of `max_sessions`.
    pub const MAX_SESSIONS: usize = 48;
    /// Default of `max_concurrency`.
    pub const MAX_CONCURRENCY: usize = 64;
    /// Default of `idle`.
    pub const IDLE: Duration = Duration::from_secs(600);

    /// A server with default settings.
    pub fn new(name: impl Into<String>, transport: TransportConfig) -> Self {
        Self {
            name: name.into(),
            transport,
            prefix: None,
            session: SessionMode::PerWorker,
            max_sessions: Self::MAX_SESSIONS,
            max_concurrency: Self::MAX_CONCURRENCY,
            timeout: None,
            start_timeout: None,
            tool_timeouts: BTreeMap::new(),
            idle: Self::IDLE,
            disabled: false,
            era: None,
            secrets: SecretSettings::default(),
            pin: None,
            dynamic_tools: false,
            calls: CallSettings::default(),
        }
    }

    /// A stdio server with default settings.
    pub fn stdio(name: impl Into<String>, command: impl Into<String>, args: &[&str]) -> Self {
        let args = args.iter().map(ToString::to_string).collect();
        Self::new(name, TransportConfig::Stdio { command: command.into(), args, env: BTreeMap::new(), cwd: None })
    }

    /// An HTTP server with default settings.
    pub fn http(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self::new(name, TransportConfig::Http { url: url.into(), headers: BTreeMap::new() })
    }

    /// A server with default settings that speaks the old HTTP transport.
    pub fn sse(name: impl Into<String>, url: impl Into<String>) -> Self {
        let transport = TransportConfig::Sse { url: url.into(), headers: BTreeMap::new() };
        Self { era: Some(Era::Legacy), ..Self::new(name, transport) }
    }

    /// A server in this process. Its definitions and names are not checked: changing them requires control of this process
    /// anyway.
    pub fn in_process(name: impl Into<String>, server: Arc<dyn InProcessServer>) -> Self {
        let transport = TransportConfig::InProcess(server);
        Self { era: Some(Era::Modern), pin: Some(PinMode::Off), dynamic_tools: true, ..Self::new(name, transport) }
    }

    /// The timeout of calls of the tool.
    pub fn timeout_of(&self, tool: &str) -> Option<Duration> {
        self.tool_timeouts.get(tool).copied().or(self.timeout)
    }
}

impl TransportConfig {
    /// Whether all messages of the server arrive on one stream, so that its requests name no call.
    pub fn is_one_stream(&self) -> bool {
        matches!(self, Self::Stdio { .. } | Self::Sse { .. })
    }
}

/// Hides args, the values of `env` and `headers`, and the query of the URL, which may be secret.
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
            Self::Http { url, headers } | Self::Sse { url, headers } => f
                .debug_struct(if matches!(self, Self::Http { .. }) { "Http" } else { "Sse" })
                .field("url", &shown_url(url))
                .field("headers", &headers.keys().collect::<Vec<_>>())
                .finish(),
            Self::InProcess(_) => f.write_str("InProcess"),
        }
    }
}

/// The URL without credentials, query and fragment, which may be secret.
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
