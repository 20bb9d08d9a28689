//! How a command fails: what happened, a stable code where there is one, and what to do.

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use toolbus_broker::TokenError;
use toolbus_client::BrokerError;
use toolbus_protocol::{BodyError, ErrorCode};

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Client(#[from] BrokerError),
    #[error("{0}")]
    Broker(#[from] toolbus_broker::BrokerError),
    #[error("{0}")]
    Token(#[from] TokenError),
    #[error("{0}")]
    Demo(#[from] toolbus_demo::DemoError),
    #[error("no token to connect with")]
    NoToken,
    #[error("can't listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("can't read standard input: {0}")]
    Stdin(io::Error),
    #[error("can't write to standard output: {0}")]
    Stdout(io::Error),
    #[error("the body is not JSON: {0}")]
    Body(#[from] BodyError),
    #[error("can't start: {0}")]
    Runtime(io::Error),
    #[error("no home for data: neither --data, nor TOOLBUS_DATA, nor XDG_DATA_HOME, nor HOME is set")]
    NoDataFolder,
}

impl Failure {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Client(error) => error.code(),
            Self::Broker(error) => error.code(),
            _ => None,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Client(BrokerError::Transport(_)) => Some("is the broker running? start one with `toolbus up`"),
            Self::Client(BrokerError::Address(_)) => Some("an address looks like ws://127.0.0.1:7420/bus"),
            Self::Client(BrokerError::Timeout(_)) => Some("is anyone there? `toolbus ps` shows who is connected"),
            Self::NoToken | Self::Token(_) => {
                Some("set TOOLBUS_TOKEN or give --token-file; the broker prints the file's path at start")
            }
            Self::Listen { .. } => Some("choose another address with --listen; port 0 takes any free one"),
            Self::Body(_) => Some("quote strings: --body '\"hello\"'"),
            Self::Broker(toolbus_broker::BrokerError::Open(_)) => {
                Some("one broker per data folder; choose another with --data")
            }
            other => other.code().map(ErrorCode::hint),
        }
    }
}

pub fn report(failure: &Failure) -> ExitCode {
    // A reader that has seen enough, as in `| head`, is no failure worth words.
    if let Failure::Stdout(error) = failure
        && error.kind() == io::ErrorKind::BrokenPipe
    {
        return ExitCode::FAILURE;
    }
    match failure.code() {
        Some(code) => eprintln!("error[{}]: {failure}", code.code()),
        None => eprintln!("error: {failure}"),
    }
    if let Some(hint) = failure.hint() {
        eprintln!("hint: {hint}");
    }
    ExitCode::FAILURE
}
