//! Why a server could not be used, in words for the operator who configured it.

use crate::secrets::Redactor;
use std::fmt;
use std::time::Duration;
use toolbus_mcp::RpcError;

/// Why a request to a server failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ServerError {
    /// The process could not be spawned, or the HTTP client not be set up.
    #[error("server {server:?} could not be started: {reason}")]
    Start {
        /// Name of the server.
        server: String,
        /// Description of the problem.
        reason: String,
    },
    /// A secret of its configuration could not be fetched.
    #[error("server {server:?}: a secret could not be fetched: {source_of_it}: {reason}")]
    Secret {
        /// Name of the server.
        server: String,
        /// The file or command of the secret.
        source_of_it: String,
        /// Description of the problem, without the secret.
        reason: String,
    },
    /// The process exited.
    #[error("server {server:?} {status}{}", tail(stderr))]
    Died {
        /// Name of the server.
        server: String,
        /// How the process exited.
        status: ExitReason,
        /// The last lines of its stderr.
        stderr: Vec<String>,
    },
    /// The connection was closed by the host.
    #[error("the connection to server {server:?} was closed")]
    Closed {
        /// Name of the server.
        server: String,
    },
    /// The server did not answer in time.
    #[error("server {server:?} did not answer within {after:?}{}", tail(stderr))]
    Silent {
        /// Name of the server.
        server: String,
        /// How long the host waited.
        after: Duration,
        /// The last lines of its stderr.
        stderr: Vec<String>,
    },
    /// The server did not answer its first request in time.
    #[error(
        "server {server:?} did not start within {after:?}{}; if it needs longer, raise its `start_timeout` or the host's \
         --start-timeout{}",
        downloading(runner),
        tail(stderr)
    )]
    SlowStart {
        /// Name of the server.
        server: String,
        /// How long the host waited.
        after: Duration,
        /// The package runner that may still be downloading it.
        runner: Option<String>,
        /// The last lines of its stderr.
        stderr: Vec<String>,
    },
    /// The server doesn't read its input.
    #[error("server {server:?} has not read its input for {after:?}")]
    NotReading {
        /// Name of the server.
        server: String,
        /// How long the host waited.
        after: Duration,
    },
    /// A message of the server exceeds the size limit.
    #[error("server {server:?} sent a message of {bytes} bytes; the limit is {limit} bytes")]
    TooLarge {
        /// Name of the server.
        server: String,
        /// Size of the message, as far as it was read.
        bytes: u64,
        /// The limit in bytes.
        limit: usize,
    },
    /// The server sent an invalid message.
    #[error("server {server:?} sent an invalid message: {reason}")]
    BadMessage {
        /// Name of the server.
        server: String,
        /// Description of the problem.
        reason: String,
    },
    /// The HTTP connection could not be established.
    #[error("server {server:?} could not be reached at {place}: {reason}")]
    Unreachable {
        /// Name of the server.
        server: String,
        /// The URL without its secret parts.
        place: String,
        /// Description of the problem.
        reason: String,
    },
    /// The server answered with an HTTP error.
    #[error("server {server:?} answered with HTTP {status}{}", colon(detail))]
    HttpStatus {
        /// Name of the server.
        server: String,
        /// HTTP status code.
        status: u16,
        /// The beginning of the response body.
        detail: String,
    },
    /// The server no longer knows the session (HTTP 404). It has not run the request; a retry in a new session is safe.
    #[error("server {server:?} no longer knows the session")]
    SessionGone {
        /// Name of the server.
        server: String,
    },
    /// The response stream ended before the response, and could not be resumed.
    #[error("server {server:?} disconnected before it answered{}", colon(reason))]
    BrokenOff {
        /// Name of the server.
        server: String,
        /// Description of the problem.
        reason: String,
    },
    /// A modern server ended the request with `notifications/cancelled`, without a result.
    #[error("server {server:?} cancelled the request{}", colon(reason))]
    EndedByServer {
        /// Name of the server.
        server: String,
        /// The reason given by the server.
        reason: String,
    },
    /// The caller cancelled the request, and the cancellation closed the response stream.
    #[error("the request to server {server:?} was cancelled")]
    Cancelled {
        /// Name of the server.
        server: String,
    },
    /// The caller did not read the call's events, and its queue was full for too long.
    #[error("the caller did not read the events of a call to server {server:?} for {after:?}")]
    SlowCaller {
        /// Name of the server.
        server: String,
        /// How long the queue was full.
        after: Duration,
    },
    /// The request is not valid and was not sent.
    #[error("a request to server {server:?} can't be sent: {reason}")]
    BadRequest {
        /// Name of the server.
        server: String,
        /// Description of the problem.
        reason: String,
    },
}

/// How a process exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitReason {
    /// It exited with this code.
    Code(i32),
    /// It was killed by this signal.
    Signal(i32),
    /// It closed its stdout, and its exit status is not known.
    Unknown,
}

impl ServerError {
    /// The stable code reported to clients.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Start { .. } | Self::Unreachable { .. } | Self::Secret { .. } => "TB0402",
            // A gateway may give up on a server that is still running the request.
            Self::HttpStatus { status: 500.., .. } => "TB0408",
            Self::HttpStatus { .. } | Self::SessionGone { .. } => "TB0402",
            Self::TooLarge { .. } => "TB0405",
            Self::Silent { .. } | Self::SlowStart { .. } | Self::NotReading { .. } | Self::SlowCaller { .. } => {
                "TB0407"
            }
            Self::Died { .. } | Self::BrokenOff { .. } | Self::EndedByServer { .. } => "TB0408",
            Self::Closed { .. } | Self::Cancelled { .. } => "TB0408",
            Self::BadMessage { .. } | Self::BadRequest { .. } => "TB0409",
        }
    }

    /// How to correct it, for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Start { .. } => "check command, args and cwd of the server in the host's configuration",
            Self::Secret { .. } => "run the command or read the file by hand, as the user that the host runs as",
            Self::Died { .. } => "the call may or may not have run; the server's last stderr lines show why it exited",
            Self::Closed { .. } => "the host was stopped; the call may or may not have run, check before you repeat it",
            Self::Silent { .. } => "start the server by hand to see what it waits for, or raise its timeout",
            Self::SlowStart { .. } => "start the server by hand to see what it waits for, or raise its `start_timeout`",
            Self::NotReading { .. } => "the server hangs; the host restarts it when its connection is closed",
            Self::TooLarge { .. } => "ask for less, or let the tool return a resource link",
            Self::BadMessage { .. } => {
                "a stdio server must print nothing but MCP messages on stdout; logs belong on stderr"
            }
            Self::Unreachable { .. } => "check the server's url, and that it runs",
            Self::HttpStatus { status: 401 | 403, .. } => "check the server's headers: it did not accept them",
            Self::HttpStatus { status: 500.., .. } => {
                "the call may or may not have run; the server's own log shows why it failed"
            }
            Self::HttpStatus { .. } => "check the server's url, and its own log",
            Self::SessionGone { .. } => "try again: the host opens a new session",
            Self::BrokenOff { .. } => "the call may or may not have run; check before you repeat it",
            Self::EndedByServer { .. } => "the server is stopping or overloaded; try again later",
            Self::Cancelled { .. } => "the call may or may not have run",
            Self::SlowCaller { .. } => "the worker's connection is too slow for what the tool reports",
            Self::BadRequest { .. } => "the request's params have to be a JSON object",
        }
    }

    /// Whether the server can't have run the request, so that repeating it is safe.
    pub fn was_not_run(&self) -> bool {
        matches!(
            self,
            Self::Start { .. }
                | Self::Secret { .. }
                | Self::Unreachable { .. }
                | Self::SessionGone { .. }
                | Self::BadRequest { .. }
        )
    }

    /// Removes the server's secrets, which it may have quoted.
    pub(crate) fn redacted(self, redactor: &Redactor) -> Self {
        let clean = |text: String| redactor.redact(&text).into_owned();
        match self {
            Self::Start { server, reason } => Self::Start { server, reason: clean(reason) },
            Self::Died { server, status, stderr } => {
                Self::Died { server, status, stderr: stderr.into_iter().map(clean).collect() }
            }
            Self::Silent { server, after, stderr } => {
                Self::Silent { server, after, stderr: stderr.into_iter().map(clean).collect() }
            }
            Self::SlowStart { server, after, runner, stderr } => {
                Self::SlowStart { server, after, runner, stderr: stderr.into_iter().map(clean).collect() }
            }
            Self::BadMessage { server, reason } => Self::BadMessage { server, reason: clean(reason) },
            Self::Unreachable { server, place, reason } => {
                Self::Unreachable { server, place: clean(place), reason: clean(reason) }
            }
            Self::HttpStatus { server, status, detail } => Self::HttpStatus { server, status, detail: clean(detail) },
            Self::BrokenOff { server, reason } => Self::BrokenOff { server, reason: clean(reason) },
            Self::EndedByServer { server, reason } => Self::EndedByServer { server, reason: clean(reason) },
            Self::BadRequest { server, reason } => Self::BadRequest { server, reason: clean(reason) },
            other @ (Self::Secret { .. }
            | Self::Closed { .. }
            | Self::NotReading { .. }
            | Self::TooLarge { .. }
            | Self::SessionGone { .. }
            | Self::Cancelled { .. }
            | Self::SlowCaller { .. }) => other,
        }
    }

    /// The error to report to an MCP client.
    pub fn to_rpc_error(&self) -> RpcError {
        RpcError::bus(self.code(), self.to_string(), self.hint())
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(0) => f.write_str("exited on its own (code 0)"),
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => write!(f, "was killed by signal {signal}"),
            Self::Unknown => f.write_str("closed its stdout"),
        }
    }
}

impl From<std::process::ExitStatus> for ExitReason {
    fn from(status: std::process::ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Unknown,
        }
    }
}

fn downloading(runner: &Option<String>) -> String {
    runner.as_ref().map_or_else(String::new, |runner| format!(" ({runner} may still be downloading it)"))
}

/// The last lines of stderr, as part of a sentence.
fn tail(stderr: &[String]) -> String {
    const MAX_LINES: usize = 3;
    let lines: Vec<&str> = stderr.iter().map(|line| line.trim()).filter(|line| !line.is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(MAX_LINES)..];
    if last.is_empty() { String::new() } else { format!("; last stderr lines: {}", last.join(" | ")) }
}

fn colon(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(": {detail}") }
}
