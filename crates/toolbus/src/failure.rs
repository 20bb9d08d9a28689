//! Errors of commands: the message, a stable code if there is one, and a hint.

mod hint;

use crate::arguments::ArgumentsError;
use crate::cluster::MirrorError;
use crate::config::ConfigFailure;
use crate::output::print_error;
use crate::reach::TokenOrigin;
use crate::show::ShowError;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use toolbus_base::UnsafePath;
use toolbus_broker::TokenError;
use toolbus_client::BrokerError;
use toolbus_jetstream::{ClusterError, IdentityError};
use toolbus_journal::{JournalError, OpenError};
use toolbus_mcp::BusBodyError;
use toolbus_migrate::MoveError;
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
    #[error("the broker at {url} does not accept {origin}: {reason}")]
    WrongToken { url: String, origin: TokenOrigin, reason: String },
    #[error("{url} is the endpoint of MCP clients, not the bus")]
    McpEndpoint { url: String, bus: String },
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
    #[error("{0}")]
    Body(#[from] BodyError),
    #[error("can't start: {0}")]
    Runtime(io::Error),
    #[error("no data folder: none of --data, TOOLBUS_DATA, XDG_DATA_HOME and HOME is set")]
    NoDataFolder,
    #[error("can't use the folder {}: {source}", folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    #[error("{0}")]
    Config(#[from] ConfigFailure),
    #[error("{0}")]
    Cluster(#[from] ClusterError),
    #[error("can't use the data folder {} in a cluster: {source}", folder.display())]
    ClusterFolder { folder: PathBuf, source: MirrorError },
    #[error("{0}")]
    Move(#[from] MoveError),
    #[error("one of --from and --to has to be a folder, the other one addresses of NATS servers")]
    MoveSides,
    #[error("other brokers can't reach this one at {address}")]
    NoAdvertisedAddress { address: SocketAddr },
    #[error("a cluster can't have {wanted} partitions")]
    Partitions { wanted: u16 },
    #[error("{replicas} copies of each stream would not survive the loss of a NATS server")]
    TooFewReplicas { replicas: usize },
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
    #[error("{reason}; the deadline of {limit:?} has passed, and {tool} was not run")]
    NoConnection { tool: String, limit: Duration, reason: String },
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
    #[error("no definition is approved, so {} was not written", file.display())]
    NothingApproved { file: PathBuf },
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
    #[error("{tool} asks for input, which `toolbus call` can provide only in a terminal")]
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
            Self::Cluster(ClusterError::Unmet(_)) | Self::TooFewReplicas { .. } => Some(ErrorCode::ClusterUnsafe),
            Self::Cluster(ClusterError::Identity(IdentityError::Moved(mark))) => {
                Some(toolbus_broker::code_of_mark(mark))
            }
            Self::Cluster(ClusterError::Identity(_)) | Self::Partitions { .. } => Some(ErrorCode::OtherCluster),
            Self::Cluster(_) => Some(ErrorCode::ClusterUnreachable),
            Self::Move(error) => error.code(),
            Self::ClusterFolder { source: MirrorError::Open(OpenError::Moved { mark, .. }), .. } => {
                Some(toolbus_broker::code_of_mark(mark))
            }
            Self::ClusterFolder { source: MirrorError::OwnMailboxes, .. } => Some(ErrorCode::OwnMailboxes),
            Self::WrongToken { .. } => Some(ErrorCode::BadCredentials),
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
}

pub const ROLE_HINT: &str = "[roles.NAME] in the host's toolbus.toml says what a role may use, for example allow = [\"*\"]. The \
                             token determines the role: that of this machine's own token is \"local\". With a shared \
                             token, choose one with --role or TOOLBUS_ROLE";

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
