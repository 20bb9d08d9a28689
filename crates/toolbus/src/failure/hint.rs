//! What to do about each error.

use super::{Failure, ROLE_HINT};
use crate::arguments::ArgumentsError;
use crate::cluster::MirrorError;
use crate::reach::TokenOrigin;
use std::io;
use toolbus_base::or_list;
use toolbus_broker::TokenError;
use toolbus_client::BrokerError;
use toolbus_jetstream::{ClusterError, Unmet};
use toolbus_journal::{JournalError, OpenError};
use toolbus_protocol::ErrorCode;

impl Failure {
    /// How to correct the error.
    pub(super) fn hint(&self) -> Option<String> {
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
            Self::McpEndpoint { bus, .. } => Some(format!(
                "give the address of the bus, --broker {bus}; the URL that ends in /mcp is for clients that speak MCP over \
                 HTTP"
            )),
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
            Self::NothingApproved { .. } => {
                Some("`toolbus pin diff` shows what is held back, `toolbus pin approve` approves it")
            }
            Self::Exists { .. } => Some("--force replaces it"),
            Self::HeldBackTool { .. } => Some(ErrorCode::HeldBack.hint()),
            Self::UnknownTool { hosts: 0, .. } => Some("no host has announced any tools; start one with `toolbus up`"),
            Self::UnknownTool { .. } => Some("`toolbus tools` lists the tools"),
            Self::MayHaveEffects { .. } => Some("--yes calls it nevertheless, many times"),
            Self::ToolFailed { .. } => Some("`toolbus call` with the same arguments shows the error"),
            Self::NoBenchTool { .. } => Some("name a tool that may be called many times"),
            Self::Arguments(ArgumentsError::Refused { .. } | ArgumentsError::UnknownName { .. }) => {
                Some("`toolbus tools TOOL` shows its arguments; --no-check sends the arguments unchecked")
            }
            Self::Arguments(ArgumentsError::WrongType { .. }) => {
                Some("`toolbus tools TOOL` shows the arguments of the tool and their types")
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
            Self::NoConnection { .. } => Some("start the broker again, or wait longer with --deadline"),
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
            Self::Journal { source: JournalError::Open(error), .. } if matches!(**error, OpenError::Io { .. }) => {
                Some("the host's user has to own the folder and be able to write to it; choose another with --state")
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
            Self::InputRequired { .. } => Some(
                "run `toolbus call` in a terminal, or call it through `toolbus connect` from an MCP client that supports \
                 elicitation",
            ),
            Self::Client(BrokerError::Transport(_)) => Some("is the broker running? start one with `toolbus up`"),
            Self::Client(BrokerError::Address(_)) => Some("an address looks like ws://127.0.0.1:7420/bus"),
            Self::Client(BrokerError::Timeout(_)) => {
                Some("is the recipient connected? `toolbus ps` shows all connections")
            }
            Self::NoBrokerKey { .. } => {
                Some("restart the broker of that folder, which creates the key; or give the token with --token-file")
            }
            Self::HostPanicked => Some("start it again, and report the panic in the log; no call is lost or run twice"),
            Self::WrongToken { origin: TokenOrigin::Certificate, .. } => {
                Some("check --client-cert, and [auth.certificates] in the broker's toolbus.toml")
            }
            Self::WrongToken { .. } => Some(
                "it may be the token of another broker or a part of one; on the broker's machine, `toolbus agent list` \
                 shows the agents and `toolbus agent rotate NAME` issues a new token",
            ),
            Self::Move(error) if error.hint().is_some() => error.hint(),
            Self::MoveSides => Some("for example: toolbus migrate --from DIR --to nats://127.0.0.1:4222"),
            Self::NoAdvertisedAddress { .. } => Some("give the address of this machine with --advertise HOST:PORT"),
            Self::Partitions { .. } => Some("choose 1 to 256 with --partitions"),
            Self::TooFewReplicas { .. } => {
                Some("three or more, or accept with --allow-single that the loss of one NATS server can lose messages")
            }
            Self::Cluster(ClusterError::Unmet(Unmet::SyncUnknown | Unmet::SyncPartlyKnown { .. })) => Some(
                "give the monitoring addresses of all NATS servers with --nats-monitor, or accept with --accept-async-sync \
                 that a power cut of all of them can lose messages",
            ),
            Self::Cluster(ClusterError::Unmet(Unmet::AsyncSync { .. })) => Some(
                "or accept with --accept-async-sync that a power cut of all servers loses the messages of the last interval",
            ),
            Self::ClusterFolder { source: MirrorError::Open(OpenError::Locked { .. }), .. } => {
                Some("every broker needs a data folder of its own; choose another one with --data")
            }
            Self::Token(TokenError::Read { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => Some(
                "the file belongs to another user: run the command as that user, or give a token of your own with \
                 --token-file or TOOLBUS_TOKEN",
            ),
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
