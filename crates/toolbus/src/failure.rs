//! How a command fails: what happened, a stable code where there is one, and what to do.

use crate::arguments::ArgumentsError;
use crate::config::ConfigFailure;
use crate::nearest::or_list;
use crate::show::ShowError;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use toolbus_broker::TokenError;
use toolbus_client::BrokerError;
use toolbus_mcp::BusBodyError;
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
    #[error("{0}")]
    Config(#[from] ConfigFailure),
    #[error("there are no servers to host")]
    NoServers,
    #[error("{0}")]
    Stdio(#[from] toolbus_worker::StdioError),
    #[error("{0}")]
    Pattern(#[from] toolbus_host::BadPattern),
    #[error("{0}")]
    Host(#[from] toolbus_host::HostError),
    #[error("--loopback-role on {address}, which other machines can reach")]
    OpenToAll { address: SocketAddr },
    #[error("{} is there already", file.display())]
    Exists { file: PathBuf },
    #[error("can't write {}: {source}", file.display())]
    Write { file: PathBuf, source: io::Error },
    #[error("there is no tool {tool:?}")]
    UnknownTool { tool: String, nearest: Vec<String>, hosts: usize },
    #[error("{0}")]
    Arguments(#[from] ArgumentsError),
    #[error("{0}")]
    Show(#[from] ShowError),
    #[error("the host's reply can't be read: {0}")]
    HostReply(#[from] BusBodyError),
    #[error("the server's answer can't be read: {0}")]
    BadReply(String),
    #[error("{tool} asks for input, which `toolbus call` can't give")]
    InputRequired { tool: String },
}

impl Failure {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Client(error) => error.code(),
            Self::Broker(error) => error.code(),
            _ => None,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Config(failure) => Some(failure.hint()),
            Self::UnknownTool { nearest, .. } if !nearest.is_empty() => {
                let names: Vec<&str> = nearest.iter().map(String::as_str).collect();
                Some(format!("did you mean {}?", or_list(&names)))
            }
            other => other.fixed_hint().map(str::to_owned),
        }
    }

    fn fixed_hint(&self) -> Option<&'static str> {
        match self {
            Self::NoServers => Some("name some in toolbus.toml (`toolbus init` writes one), or give --mcp-config FILE"),
            Self::Pattern(_) => Some("a pattern is a name, in which * stands for anything"),
            Self::OpenToAll { .. } => Some("listen on 127.0.0.1, or let clients use the token"),
            Self::Exists { .. } => Some("--force replaces it"),
            Self::UnknownTool { hosts: 0, .. } => Some("no host has announced any tools; start one with `toolbus up`"),
            Self::UnknownTool { .. } => Some("`toolbus tools` lists what there is"),
            Self::Arguments(ArgumentsError::Refused { .. } | ArgumentsError::UnknownName { .. }) => {
                Some("`toolbus tools --json` shows the tool's schema; --no-check sends the arguments as they are")
            }
            Self::Arguments(_) => Some("quote JSON for the shell: '{\"name\": \"value\"}', or use --arg name=value"),
            Self::Show(_) => Some("choose a folder for files with --out"),
            Self::InputRequired { .. } => Some("use it from an MCP client that can ask you, by `toolbus connect`"),
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
