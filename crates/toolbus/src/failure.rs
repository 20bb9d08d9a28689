//! Errors of commands: the message, a stable code if there is one, and a hint.

use crate::arguments::ArgumentsError;
use crate::config::ConfigFailure;
use crate::output::print_error;
use crate::show::ShowError;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use toolbus_base::{UnsafePath, or_list};
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
    #[error("no token given, and none found in the data folder")]
    NoToken,
    #[error("{} has a token but no broker.key, so the broker can't prove that the folder is its own", folder.display())]
    NoBrokerKey { folder: PathBuf },
    #[error("the host ended by a bug")]
    HostPanicked,
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
    #[error("no data folder: none of --data, TOOLBUS_DATA, XDG_DATA_HOME and HOME is set")]
    NoDataFolder,
    #[error("can't use the folder {}: {source}", folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    #[error("{0}")]
    Config(#[from] ConfigFailure),
    #[error("no servers to host")]
    NoServers,
    #[error("{0}")]
    Stdio(#[from] toolbus_worker::StdioError),
    #[error("{0}")]
    Host(#[from] toolbus_host::HostError),
    #[error("--loopback-role is not allowed on {address}, which other machines can reach")]
    LoopbackRoleExposed { address: SocketAddr },
    #[error(
        "--shared-token-file is not allowed on {address}, which other machines can reach: a shared token is for loopback \
         only"
    )]
    SharedTokenExposed { address: SocketAddr },
    #[error("--mcp-role needs --shared-token-file: the token of an agent determines its role")]
    RoleWithoutSharedToken,
    #[error("{0}")]
    Jwt(#[from] toolbus_identity::JwtError),
    #[error("can't set up TLS: {0}")]
    Tls(#[from] toolbus_broker::TlsError),
    #[error("other machines can reach {address}, and without TLS tokens and messages can be read on the network")]
    PlainText { address: SocketAddr },
    #[error("{0}")]
    Registry(#[from] toolbus_identity::RegistryError),
    #[error("{} already exists", file.display())]
    TokenFileInUse { file: PathBuf },
    #[error("{} exists and is not a token file", file.display())]
    NotATokenFile { file: PathBuf },
    #[error("{} already exists", file.display())]
    Exists { file: PathBuf },
    #[error("can't write {}: {source}", file.display())]
    Write { file: PathBuf, source: io::Error },
    #[error("no tool {tool:?}: the hosts offer no tools to {}", caller_description(role.as_deref()))]
    NoToolsForRole { tool: String, role: Option<String> },
    #[error("no host {host:?}")]
    UnknownHost { host: String, known: Vec<String> },
    #[error("no broker at {url}, and no token for one")]
    NoBroker { url: String },
    #[error("can't use the folder {}: {source}", folder.display())]
    OutFolder { folder: PathBuf, source: io::Error },
    #[error("the broker is away, and the deadline of {limit:?} has passed; whether {tool} was run is unknown")]
    BrokerAway { tool: String, limit: Duration },
    #[error("host {host} is away, and the deadline of {limit:?} has passed; {}", run_state(tool, *never_online))]
    HostAway { tool: String, host: String, limit: Duration, never_online: bool },
    #[error("host {host} is away, and {tool} is called with fail-fast; it was not run")]
    HostOffline { tool: String, host: String },
    #[error("{tool} did not answer within {limit:?}; the call was cancelled")]
    CallTimeout { tool: String, limit: Duration },
    #[error("no task, or more than one, has an id that begins with {id:?}")]
    NoTask { id: String },
    #[error("task {id} has no result yet")]
    TaskRunning { id: String },
    #[error("host {host} is away, and only this host knows the state of its tasks")]
    TaskHostAway { host: String },
    #[error("the task was cancelled")]
    TaskCancelled,
    #[error("tool {tool:?} of server {server:?} is held back: its definition is not approved")]
    HeldBackTool { tool: String, server: String },
    #[error("no tool {tool:?}")]
    UnknownTool { tool: String, nearest: Vec<String>, hosts: usize },
    #[error("{tool} may have effects: its server does not mark it as read-only")]
    MayHaveEffects { tool: String },
    #[error("{tool} failed; only the time of successful calls is measured")]
    ToolFailed { tool: String },
    #[error("no tool given, and the demo server is not there")]
    NoBenchTool { read_only: Vec<String> },
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
    #[error("can't use the host's state in {}: {source}", folder.display())]
    State { folder: PathBuf, source: io::Error },
    #[error("can't use the host's call journal in {}: {source}", folder.display())]
    Journal { folder: PathBuf, source: JournalError },
    #[error("no call that waits for approval, or more than one, has an id that begins with {id:?}")]
    NoApproval { id: String },
    #[error("no call or dead letter, or more than one, has an id that begins with {id:?}")]
    NoCall { id: String },
    #[error("{id} was not withdrawn: the broker knows no such message that you may withdraw")]
    NotWithdrawn { id: String },
    #[error("host {host}: {message}")]
    RefusedByHost { host: String, message: String, code: Option<ErrorCode> },
    #[error("{0}")]
    Pins(#[from] toolbus_host::pins::PinFileError),
    #[error("no host has recorded any tools in {} yet", folder.display())]
    NoPins { folder: PathBuf },
    #[error("{tool:?} is not held back")]
    NotHeldBack { tool: String },
    #[error("the definition of {server}/{tool} no longer has the given hash; nothing was approved")]
    PinHashMismatch { server: String, tool: String },
    #[error("verification failed for {count} of {checked} audit logs")]
    AuditProblems { count: usize, checked: usize },
    #[error("the audit log in {} belongs to another user", folder.display())]
    ForeignAuditLog { folder: PathBuf },
    #[error("no audit log in {}", folder.display())]
    NoAuditLog { folder: PathBuf },
    #[error("{tool} asks for input, which `toolbus call` can't provide")]
    InputRequired { tool: String },
}

impl Failure {
    /// From the JSON-RPC error object of a host.
    pub fn refused_by_host(host: &str, error: &toolbus_mcp::Raw) -> Self {
        let error = toolbus_mcp::Members::of(Some(error)).unwrap_or_default();
        let data = toolbus_mcp::Members::of(error.get("data")).unwrap_or_default();
        let code = data.text("code").and_then(|code| ErrorCode::from_code(&code));
        let message = error.text("message").unwrap_or_default();
        Self::RefusedByHost { host: host.to_owned(), message, code }
    }

    fn code(&self) -> Option<ErrorCode> {
        if UnsafePath::in_chain(self).is_some() {
            return Some(ErrorCode::UnsafePath);
        }
        match self {
            Self::Client(error) | Self::Host(toolbus_host::HostError::Bus(error)) => error.code(),
            Self::Broker(error) => error.code(),
            Self::Config(_) => Some(ErrorCode::BadConfig),
            Self::HeldBackTool { .. } => Some(ErrorCode::HeldBack),
            Self::HostAway { .. } => Some(ErrorCode::HostAway),
            Self::HostOffline { .. } => Some(ErrorCode::HostOffline),
            Self::CallTimeout { .. } => Some(ErrorCode::CallTimeout),
            Self::NoTask { .. } => Some(ErrorCode::UnknownTask),
            Self::TaskHostAway { .. } => Some(ErrorCode::HostAway),
            Self::TaskCancelled => Some(ErrorCode::Cancelled),
            Self::NoCall { .. } => Some(ErrorCode::UnknownCall),
            Self::TaskRunning { .. } => Some(ErrorCode::CallTimeout),
            Self::NotWithdrawn { .. } => Some(ErrorCode::UnknownCall),
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
            _ if self.code() == Some(ErrorCode::UnsafePath) => Some(ErrorCode::UnsafePath.hint().to_owned()),
            Self::Config(failure) => Some(failure.hint()),
            Self::Registry(error) => error.hint(),
            Self::UnknownTool { nearest, .. } if !nearest.is_empty() => {
                let names: Vec<&str> = nearest.iter().map(String::as_str).collect();
                Some(format!("did you mean {}?", or_list(&names)))
            }
            Self::NoBenchTool { read_only } if !read_only.is_empty() => {
                Some(format!("name a tool; read-only ones are: {}", read_only.join(", ")))
            }
            Self::UnknownHost { known, .. } if !known.is_empty() => Some(format!("known hosts: {}", known.join(", "))),
            other => other.fixed_hint().map(str::to_owned),
        }
    }

    fn fixed_hint(&self) -> Option<&'static str> {
        match self {
            Self::NoServers => {
                Some("add servers to toolbus.toml (`toolbus init` writes one), or give --mcp-config FILE")
            }
            Self::LoopbackRoleExposed { .. } => Some("listen on 127.0.0.1, or let clients send a token"),
            Self::SharedTokenExposed { .. } => {
                Some("give each agent a token of its own: `toolbus agent add NAME --role ROLE`")
            }
            Self::RoleWithoutSharedToken => {
                Some("create a token for that role with `toolbus agent add NAME --role ROLE`")
            }
            Self::Jwt(_) => Some("correct [auth.jwt] in toolbus.toml, or the keys that it names"),
            Self::Tls(_) => {
                Some("--tls-cert and --tls-key take PEM files: the certificate with its chain, and its private key")
            }
            Self::PlainText { .. } => {
                Some("give --tls-cert and --tls-key, listen on 127.0.0.1, or accept the risk with --insecure")
            }
            Self::TokenFileInUse { .. } => {
                Some("choose another file, or remove that one; it may hold another agent's token")
            }
            Self::NotATokenFile { .. } => Some("choose another file; this one was not changed"),
            Self::Exists { .. } => Some("--force replaces it"),
            Self::HeldBackTool { .. } => Some(ErrorCode::HeldBack.hint()),
            Self::UnknownTool { hosts: 0, .. } => Some("no host has announced any tools; start one with `toolbus up`"),
            Self::UnknownTool { .. } => Some("`toolbus tools` lists the tools"),
            Self::MayHaveEffects { .. } => Some("--yes calls it nevertheless, many times"),
            Self::ToolFailed { .. } => Some("`toolbus call` with the same arguments shows the error"),
            Self::NoBenchTool { .. } => Some("name a tool that may be called many times"),
            Self::Arguments(ArgumentsError::Refused { .. } | ArgumentsError::UnknownName { .. }) => {
                Some("`toolbus tools --json` shows the tool's schema; --no-check sends the arguments unchecked")
            }
            Self::Arguments(ArgumentsError::WrongType { .. }) => {
                Some("`toolbus tools --json` shows the tool's schema, with the type of every argument")
            }
            Self::Arguments(ArgumentsError::Repeated { .. }) => Some("give it once; only lists take several values"),
            Self::Arguments(ArgumentsError::NoValue(_)) => Some("for example --arg zone=Europe/Berlin"),
            Self::Arguments(ArgumentsError::NotJson(_) | ArgumentsError::NotAnObject) => {
                Some("quote JSON for the shell: '{\"name\": \"value\"}', or use --arg name=value")
            }
            Self::Show(_) => Some("choose a folder for files with --out"),
            Self::NoToolsForRole { .. } => Some(ROLE_HINT),
            Self::UnknownHost { .. } => Some("no host has announced any tools; start one with `toolbus up`"),
            Self::NoBroker { .. } => Some("start one with `toolbus up`, or give another address with --broker"),
            Self::Folder { .. } => {
                Some("the user of the service has to own the folder; choose another with --data or --state")
            }
            Self::OutFolder { .. } => Some("choose another folder for files with --out"),
            Self::BrokerAway { .. } => {
                Some("start the broker again; check whether the tool had its effect before you repeat the call")
            }
            Self::HostAway { never_online: true, .. } => Some("start the host again, or wait longer with --deadline"),
            Self::HostAway { .. } => {
                Some("start the host again; check whether the tool had its effect before you repeat the call")
            }
            Self::CallTimeout { .. } => Some("give it more time with --deadline"),
            Self::State { .. } => {
                Some("repair or remove approvals.json there; calls that wait for approval then need a new decision")
            }
            Self::NoCall { .. } => Some("`toolbus calls --all` and `toolbus dead list` show the ids"),
            Self::NotWithdrawn { .. } => Some("only its own agent and operators may withdraw it"),
            Self::TaskRunning { .. } => Some("`toolbus task wait ID` waits for it"),
            Self::TaskHostAway { .. } => Some("start the host again; it then resumes its tasks"),
            Self::TaskCancelled => Some("start it again if it is still needed"),
            Self::Journal { source: JournalError::Open(error), .. }
                if matches!(**error, OpenError::DamagedIdentity { .. } | OpenError::MissingIdentity { .. }) =>
            {
                Some(ErrorCode::DamagedIdentity.hint())
            }
            Self::Journal { .. } => Some(
                "is another host running with the same folder? Otherwise check the disk; never copy a journal to another \
                 host",
            ),
            Self::NoApproval { .. } => Some("`toolbus approvals` lists the calls that wait"),
            Self::Pins(_) => {
                Some("repair or remove the file; without it, every tool counts as seen for the first time")
            }
            Self::NoPins { .. } => Some("give the broker's data folder with --data, or the host's own with --state"),
            Self::PinHashMismatch { .. } => Some("review the change again with `toolbus pin diff`"),
            Self::NotHeldBack { .. } => Some("`toolbus pin diff` shows the tools that are held back"),
            Self::Audit(error) => Some(error.hint()),
            Self::AuditProblems { .. } => {
                Some("keep the folder as evidence; compare it with a backup or with a hash noted earlier")
            }
            Self::ForeignAuditLog { .. } => Some("run the command as the user of the service, who has to read the key"),
            Self::NoAuditLog { .. } => Some("give the broker's data folder with --data, or a host's own with --state"),
            Self::InputRequired { .. } => {
                Some("call it through `toolbus connect` from an MCP client that supports elicitation")
            }
            Self::Client(BrokerError::Transport(_)) => Some("is the broker running? start one with `toolbus up`"),
            Self::Client(BrokerError::Address(_)) => Some("an address looks like ws://127.0.0.1:7420/bus"),
            Self::Client(BrokerError::Timeout(_)) => {
                Some("is the recipient connected? `toolbus ps` shows all connections")
            }
            Self::NoBrokerKey { .. } => {
                Some("restart the broker of that folder, which creates the key; or give the token with --token-file")
            }
            Self::HostPanicked => Some("start it again, and report the panic in the log; no call is lost or run twice"),
            Self::NoToken | Self::Token(_) => {
                Some("set TOOLBUS_TOKEN or give --token-file; the broker prints the file's path at start")
            }
            Self::Listen { .. } => Some("choose another address with --listen; port 0 takes any free port"),
            Self::Body(_) => Some("quote strings: --body '\"hello\"'"),
            Self::Broker(toolbus_broker::BrokerError::Folder(error)) if matches!(**error, OpenError::Locked { .. }) => {
                Some("a data folder can be used by one broker at a time; choose another with --data")
            }
            Self::Broker(toolbus_broker::BrokerError::Folder(error)) if matches!(**error, OpenError::Io { .. }) => {
                Some("the broker's user has to own the folder and be able to write to it; choose another with --data")
            }
            Self::Broker(toolbus_broker::BrokerError::Generations { .. }) => Some(
                "restore the file from a backup, or remove it: agents whose names were given anew then inherit what \
                 earlier agents left",
            ),
            other => other.code().map(ErrorCode::hint),
        }
    }
}

pub const ROLE_HINT: &str = "[roles.NAME] in the host's toolbus.toml says what a role may use, and the token determines \
                             the role; with a shared token, choose one with --role or TOOLBUS_ROLE";

/// The caller as the hosts see it, for messages.
pub fn caller_description(role: Option<&str>) -> String {
    role.map_or_else(|| "callers without a role".to_owned(), |role| format!("the role {role:?}"))
}

fn run_state(tool: &str, never_online: bool) -> String {
    if never_online { format!("{tool} was not run") } else { format!("whether {tool} was run is unknown") }
}

pub fn report(failure: &Failure) -> ExitCode {
    // A reader that closes the pipe early, as `head` does, is not an error to report.
    if let Failure::Stdout(error) = failure
        && error.kind() == io::ErrorKind::BrokenPipe
    {
        return ExitCode::FAILURE;
    }
    print_error(text_of(failure).trim_end());
    ExitCode::FAILURE
}

fn text_of(failure: &Failure) -> String {
    let code = failure.code().map(|code| format!("[{}]", code.code())).unwrap_or_default();
    let hint = failure.hint().map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
    format!("error{code}: {failure}\n{hint}")
}

#[cfg(test)]
#[path = "failure_tests.rs"]
mod tests;
