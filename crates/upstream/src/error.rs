//! Why a server could not be used, in words for the one who configured it.

use crate::secrets::Redactor;
use std::fmt;
use std::time::Duration;
use toolbus_mcp::RpcError;

#[derive(Debug, Clone, thiserror::Error)]
pub enum ServerError {
    #[error("server {server:?} could not be started: {reason}")]
    Start { server: String, reason: String },
    /// A value of its configuration could not be fetched.
    #[error("server {server:?} lacks a secret: {source_of_it}: {reason}")]
    Secret { server: String, source_of_it: String, reason: String },
    #[error("server {server:?} ended: {status}{}", tail(stderr))]
    Died { server: String, status: ExitReason, stderr: Vec<String> },
    #[error("the connection to server {server:?} was closed")]
    Closed { server: String },
    #[error("server {server:?} gave no answer within {after:?}{}", tail(stderr))]
    Silent { server: String, after: Duration, stderr: Vec<String> },
    /// The server does not read what it is sent.
    #[error("server {server:?} has not read its input for {after:?}")]
    NotReading { server: String, after: Duration },
    #[error("server {server:?} answered with {bytes} bytes, more than the {limit} that a message may have")]
    TooLarge { server: String, bytes: u64, limit: usize },
    #[error("server {server:?} sent something that is not MCP: {reason}")]
    BadMessage { server: String, reason: String },
    #[error("server {server:?} could not be reached at {place}: {reason}")]
    Unreachable { server: String, place: String, reason: String },
    #[error("server {server:?} answered with HTTP {status}{}", colon(detail))]
    HttpStatus { server: String, status: u16, detail: String },
    /// The server forgot its session (HTTP 404). It has not run the request; a new session may.
    #[error("server {server:?} does not know its session any more")]
    SessionGone { server: String },
    /// A response stream ended before its answer, and could not be taken up again.
    #[error("server {server:?} broke off before it answered{}", colon(reason))]
    BrokenOff { server: String, reason: String },
    /// A modern server ended the request of its own accord, without a result.
    #[error("server {server:?} ended the request{}", colon(reason))]
    EndedByServer { server: String, reason: String },
    /// The caller cancelled the request where that leaves no way for an answer.
    #[error("the request to server {server:?} was cancelled")]
    Cancelled { server: String },
    /// The caller took so long over the call's events that its queue ran over.
    #[error("the events of a call to server {server:?} were not taken for {after:?}")]
    SlowCaller { server: String, after: Duration },
    #[error("a request to server {server:?} can't be sent: {reason}")]
    BadRequest { server: String, reason: String },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitReason {
    Code(i32),
    Signal(i32),
    /// Its output ended, but it could not be waited for.
    Unknown,
}

impl ServerError {
    /// The stable code under which a client is told.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Start { .. } | Self::Unreachable { .. } | Self::Secret { .. } => "TB0402",
            // Whoever stands between may give up on a server that goes on.
            Self::HttpStatus { status: 500.., .. } => "TB0408",
            Self::HttpStatus { .. } | Self::SessionGone { .. } => "TB0402",
            Self::TooLarge { .. } => "TB0405",
            Self::Silent { .. } | Self::NotReading { .. } | Self::SlowCaller { .. } => "TB0407",
            Self::Died { .. } | Self::BrokenOff { .. } | Self::EndedByServer { .. } => "TB0408",
            Self::Closed { .. } | Self::Cancelled { .. } => "TB0408",
            Self::BadMessage { .. } | Self::BadRequest { .. } => "TB0409",
        }
    }

    pub fn hint(&self) -> &'static str {
        match self {
            Self::Start { .. } => "check command, args and cwd of the server in the host's configuration",
            Self::Secret { .. } => "run the command or read the file by hand, as the user that the host runs as",
            Self::Died { .. } => "the call may have run or not; the server's last stderr lines say why it ended",
            Self::Closed { .. } => "the host was stopped; the call may have run or not, check before you repeat it",
            Self::Silent { .. } => "start the server by hand to see what it waits for, or raise its timeout",
            Self::NotReading { .. } => "the server hangs; the host restarts it when its connection is closed",
            Self::TooLarge { .. } => "ask for less, or let the tool return a resource link",
            Self::BadMessage { .. } => "a stdio server may print nothing but MCP on stdout; its logs belong on stderr",
            Self::Unreachable { .. } => "check the server's url, and that it runs",
            Self::HttpStatus { status: 401 | 403, .. } => "check the server's headers: it did not accept them",
            Self::HttpStatus { status: 500.., .. } => {
                "the call may have run or not; the server's own log says why it failed"
            }
            Self::HttpStatus { .. } => "check the server's url, and its own log",
            Self::SessionGone { .. } => "try again: the host opens a new session",
            Self::BrokenOff { .. } => "the call may have run or not; check before you repeat it",
            Self::EndedByServer { .. } => "the server is stopping or has too much to do; try again later",
            Self::Cancelled { .. } => "the call may have run or not",
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

    /// Without the server's secrets, which it may have quoted.
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

    pub fn to_rpc_error(&self) -> RpcError {
        RpcError::bus(self.code(), self.to_string(), self.hint())
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(0) => f.write_str("it exited by itself (code 0)"),
            Self::Code(code) => write!(f, "it exited with code {code}"),
            Self::Signal(signal) => write!(f, "it was ended by signal {signal}"),
            Self::Unknown => f.write_str("it closed its output"),
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

/// The last words of a server, as part of a sentence.
fn tail(stderr: &[String]) -> String {
    const LINES_IN_A_SENTENCE: usize = 3;
    let said: Vec<&str> = stderr.iter().map(|line| line.trim()).filter(|line| !line.is_empty()).collect();
    let last = &said[said.len().saturating_sub(LINES_IN_A_SENTENCE)..];
    if last.is_empty() { String::new() } else { format!("; its last words: {}", last.join(" | ")) }
}

fn colon(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(": {detail}") }
}
