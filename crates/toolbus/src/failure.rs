//! How a command fails: what happened, a stable code where there is one, and what to do.

use crate::arguments::ArgumentsError;
use crate::config::ConfigFailure;
use crate::nearest::or_list;
use crate::show::ShowError;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use toolbus_broker::TokenError;
use toolbus_client::BrokerError;
use toolbus_journal::{JournalError, OpenError};
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
    #[error("there is a token in {}, but no key by which its broker could prove itself", folder.display())]
    NoBrokerKey { folder: PathBuf },
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
    Host(#[from] toolbus_host::HostError),
    #[error("--loopback-role on {address}, which other machines can reach")]
    OpenToAll { address: SocketAddr },
    #[error(
        "--shared-token-file on {address}, which other machines can reach: one secret for all is for loopback only"
    )]
    SharedToAll { address: SocketAddr },
    #[error("--mcp-role without --shared-token-file: a token of an agent brings its role")]
    RoleWithoutSharedToken,
    #[error("{0}")]
    Jwt(#[from] toolbus_identity::JwtError),
    #[error("no TLS: {0}")]
    Tls(#[from] toolbus_broker::TlsError),
    #[error(
        "{address} can be reached by other machines, and without TLS whoever is on the way reads tokens and messages"
    )]
    PlainText { address: SocketAddr },
    #[error("{0}")]
    Registry(#[from] toolbus_identity::RegistryError),
    #[error("{} is there already", file.display())]
    TokenFileInUse { file: PathBuf },
    #[error("{} holds something other than a token", file.display())]
    NotATokenFile { file: PathBuf },
    #[error("{} is there already", file.display())]
    Exists { file: PathBuf },
    #[error("can't write {}: {source}", file.display())]
    Write { file: PathBuf, source: io::Error },
    #[error("there is no tool {tool:?}: the hosts have none for {}", whom(role.as_deref()))]
    NothingForRole { tool: String, role: Option<String> },
    #[error("there is no host {host:?}")]
    UnknownHost { host: String, known: Vec<String> },
    #[error("no broker at {url}, and no token for one")]
    NoBroker { url: String },
    #[error("can't use the folder {}: {source}", folder.display())]
    OutFolder { folder: PathBuf, source: io::Error },
    #[error("the broker is away, and the deadline of {limit:?} passed; whether {tool} was run is unknown")]
    BrokerAway { tool: String, limit: Duration },
    #[error("host {host} is away, and the deadline of {limit:?} passed; {}", run(tool, *never_there))]
    HostAway { tool: String, host: String, limit: Duration, never_there: bool },
    #[error("host {host} is away, and {tool} was not to wait for it; it was not run")]
    HostOffline { tool: String, host: String },
    #[error("{tool} did not answer within {limit:?}; it was told to stop")]
    CallTimeout { tool: String, limit: Duration },
    #[error("no task, or more than one, has an id that begins with {id:?}")]
    NoTask { id: String },
    #[error("the task {id} has no result yet")]
    TaskWorks { id: String },
    #[error("host {host} is away, and only it can tell about its tasks")]
    TaskHostAway { host: String },
    #[error("the task was cancelled")]
    TaskCancelled,
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
    #[error("{0}")]
    Audit(#[from] toolbus_audit::AuditError),
    #[error("can't use what the host keeps in {}: {source}", folder.display())]
    State { folder: PathBuf, source: io::Error },
    #[error("the host's call journal in {} can't be used: {source}", folder.display())]
    Journal { folder: PathBuf, source: JournalError },
    #[error("no call, or more than one, waits for approval under {id:?}")]
    NoApproval { id: String },
    #[error("no call or dead letter, or more than one, has the id {id:?}")]
    NoCall { id: String },
    #[error("{id} was not taken back: it still waits for its host")]
    NotTakenBack { id: String },
    #[error("host {host}: {message}")]
    RefusedByHost { host: String, message: String, code: Option<ErrorCode> },
    #[error("{0}")]
    Pins(#[from] toolbus_host::pins::PinFileError),
    #[error("no host has seen any tools yet, as far as {} knows", folder.display())]
    NoPins { folder: PathBuf },
    #[error("{tool:?} is not held back")]
    NotHeldBack { tool: String },
    #[error("the definition of {server}/{tool} is not the one that you name any more; nothing was approved")]
    NotWhatWasShown { server: String, tool: String },
    #[error("{count} of {checked} audit logs are not what was written")]
    AuditProblems { count: usize, checked: usize },
    #[error("there is no audit log in {}", folder.display())]
    NoAuditLog { folder: PathBuf },
    #[error("{tool} asks for input, which `toolbus call` can't give")]
    InputRequired { tool: String },
}

impl Failure {
    /// From a host's error in its MCP form.
    pub fn refused_by_host(host: &str, error: &serde_json::value::RawValue) -> Self {
        let error = toolbus_mcp::Members::of(Some(error)).unwrap_or_default();
        let data = toolbus_mcp::Members::of(error.get("data")).unwrap_or_default();
        let code = data.text("code").and_then(|code| ErrorCode::from_code(&code));
        let message = error.text("message").unwrap_or_default();
        Self::RefusedByHost { host: host.to_owned(), message, code }
    }

    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Client(error) | Self::Host(toolbus_host::HostError::Bus(error)) => error.code(),
            Self::Broker(error) => error.code(),
            Self::HostAway { .. } => Some(ErrorCode::HostAway),
            Self::HostOffline { .. } => Some(ErrorCode::HostOffline),
            Self::CallTimeout { .. } => Some(ErrorCode::CallTimeout),
            Self::NoTask { .. } => Some(ErrorCode::UnknownTask),
            Self::TaskHostAway { .. } => Some(ErrorCode::HostAway),
            Self::TaskCancelled => Some(ErrorCode::Cancelled),
            Self::NoCall { .. } => Some(ErrorCode::UnknownCall),
            Self::TaskWorks { .. } => Some(ErrorCode::CallTimeout),
            Self::NotTakenBack { .. } => Some(ErrorCode::HostAway),
            Self::RefusedByHost { code, .. } => *code,
            Self::Journal { source: JournalError::Open(error), .. } => {
                let unusable = matches!(**error, OpenError::DamagedIdentity { .. } | OpenError::MissingIdentity { .. });
                unusable.then_some(ErrorCode::DamagedIdentity)
            }
            _ => None,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Config(failure) => Some(failure.hint()),
            Self::Registry(error) => error.hint(),
            Self::UnknownTool { nearest, .. } if !nearest.is_empty() => {
                let names: Vec<&str> = nearest.iter().map(String::as_str).collect();
                Some(format!("did you mean {}?", or_list(&names)))
            }
            Self::UnknownHost { known, .. } if !known.is_empty() => {
                Some(format!("hosts that are known: {}", known.join(", ")))
            }
            other => other.fixed_hint().map(str::to_owned),
        }
    }

    fn fixed_hint(&self) -> Option<&'static str> {
        match self {
            Self::NoServers => Some("name some in toolbus.toml (`toolbus init` writes one), or give --mcp-config FILE"),
            Self::OpenToAll { .. } => Some("listen on 127.0.0.1, or let clients use the token"),
            Self::SharedToAll { .. } => {
                Some("give each agent a token of its own: `toolbus agent add NAME --role ROLE`")
            }
            Self::RoleWithoutSharedToken => {
                Some("make a token for that role with `toolbus agent add NAME --role ROLE`")
            }
            Self::Jwt(_) => Some("correct [auth.jwt] in toolbus.toml, or the keys that it names"),
            Self::Tls(_) => {
                Some("--tls-cert and --tls-key name PEM files: the certificate with its chain, and its key")
            }
            Self::PlainText { .. } => {
                Some("give --tls-cert and --tls-key, listen on 127.0.0.1, or accept it with --insecure")
            }
            Self::TokenFileInUse { .. } => {
                Some("choose another file, or take that one away: it may hold another agent's token")
            }
            Self::NotATokenFile { .. } => Some("choose another file; this one is left as it is"),
            Self::Exists { .. } => Some("--force replaces it"),
            Self::UnknownTool { hosts: 0, .. } => Some("no host has announced any tools; start one with `toolbus up`"),
            Self::UnknownTool { .. } => Some("`toolbus tools` lists what there is"),
            Self::Arguments(ArgumentsError::Refused { .. } | ArgumentsError::UnknownName { .. }) => {
                Some("`toolbus tools --json` shows the tool's schema; --no-check sends the arguments as they are")
            }
            Self::Arguments(ArgumentsError::WrongType { .. }) => {
                Some("`toolbus tools --json` shows the tool's schema, with the type of every argument")
            }
            Self::Arguments(ArgumentsError::Repeated { .. }) => Some("give it once; only lists take several values"),
            Self::Arguments(ArgumentsError::NoValue(_)) => Some("such as --arg zone=Europe/Berlin"),
            Self::Arguments(ArgumentsError::NotJson(_) | ArgumentsError::NotAnObject) => {
                Some("quote JSON for the shell: '{\"name\": \"value\"}', or use --arg name=value")
            }
            Self::Show(_) => Some("choose a folder for files with --out"),
            Self::NothingForRole { .. } => Some(ROLE_HINT),
            Self::UnknownHost { .. } => Some("no host has announced any tools; start one with `toolbus up`"),
            Self::NoBroker { .. } => Some("start one with `toolbus up`, or name another with --broker"),
            Self::OutFolder { .. } => Some("choose another folder for files with --out"),
            Self::BrokerAway { .. } => {
                Some("start the broker again; look at what the tool has done before you repeat it")
            }
            Self::HostAway { never_there: true, .. } => Some("start the host again, or wait longer with --deadline"),
            Self::HostAway { .. } => Some("start the host again; look at what the tool has done before you repeat it"),
            Self::CallTimeout { .. } => Some("give it more time with --deadline"),
            Self::State { .. } => {
                Some("correct approvals.json there, or take it away; calls that wait are then asked about again")
            }
            Self::NoCall { .. } => Some("`toolbus calls --all` and `toolbus dead list` show what there is"),
            Self::NotTakenBack { .. } => Some("try again; only its own agent and operators may take it back"),
            Self::TaskWorks { .. } => Some("`toolbus task wait ID` waits for it"),
            Self::TaskHostAway { .. } => Some("start the host again; its tasks go on then"),
            Self::TaskCancelled => Some("begin it again if it still matters"),
            Self::Journal { source: JournalError::Open(error), .. }
                if matches!(**error, OpenError::DamagedIdentity { .. } | OpenError::MissingIdentity { .. }) =>
            {
                Some(ErrorCode::DamagedIdentity.hint())
            }
            Self::Journal { .. } => Some(
                "is another host running with the same folder? Otherwise look at the disk; never copy a journal to another host",
            ),
            Self::NoApproval { .. } => Some("`toolbus approvals` lists what waits"),
            Self::Pins(_) => Some("correct the file, or take it away: every tool is then first seen anew"),
            Self::NoPins { .. } => Some("name the broker's data folder with --data, or the host's own with --state"),
            Self::NotWhatWasShown { .. } => Some("look at it again with `toolbus pin diff`"),
            Self::NotHeldBack { .. } => Some("`toolbus pin diff` shows what is held back"),
            Self::Audit(error) => Some(error.hint()),
            Self::AuditProblems { .. } => {
                Some("keep the folder as evidence; compare with a copy or a hash that you noted")
            }
            Self::NoAuditLog { .. } => Some("name the broker's data folder with --data, or a host's own with --state"),
            Self::InputRequired { .. } => Some("use it from an MCP client that can ask you, by `toolbus connect`"),
            Self::Client(BrokerError::Transport(_)) => Some("is the broker running? start one with `toolbus up`"),
            Self::Client(BrokerError::Address(_)) => Some("an address looks like ws://127.0.0.1:7420/bus"),
            Self::Client(BrokerError::Timeout(_)) => Some("is anyone there? `toolbus ps` shows who is connected"),
            Self::NoBrokerKey { .. } => {
                Some("start the broker of that folder again, which makes one; or name the token with --token-file")
            }
            Self::NoToken | Self::Token(_) => {
                Some("set TOOLBUS_TOKEN or give --token-file; the broker prints the file's path at start")
            }
            Self::Listen { .. } => Some("choose another address with --listen; port 0 takes any free one"),
            Self::Body(_) => Some("quote strings: --body '\"hello\"'"),
            Self::Broker(toolbus_broker::BrokerError::Folder(error)) if matches!(**error, OpenError::Locked { .. }) => {
                Some("one broker per data folder; choose another with --data")
            }
            Self::Broker(toolbus_broker::BrokerError::Folder(error)) if matches!(**error, OpenError::Io { .. }) => {
                Some("the broker's user has to own the folder and be able to write to it; choose another with --data")
            }
            other => other.code().map(ErrorCode::hint),
        }
    }
}

pub const ROLE_HINT: &str = "[roles.NAME] in the host's toolbus.toml says what a role may use, and the token which role it \
                             is; with a shared token, choose one with --role or TOOLBUS_ROLE";

/// Whom the hosts have to do with.
pub fn whom(role: Option<&str>) -> String {
    role.map_or_else(|| "callers without a role".to_owned(), |role| format!("the role {role:?}"))
}

fn run(tool: &str, never_there: bool) -> String {
    if never_there { format!("{tool} was not run") } else { format!("whether {tool} was run is unknown") }
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
