//! The texts of errors, compared with `tests/snapshots/errors.txt` and `error-codes.txt`.

#[path = "../tests/it/snapshot_file.rs"]
#[allow(dead_code)]
mod snapshot_file;

use super::*;
use snapshot_file::check_snapshot;
use toolbus_migrate::{MoveMark, MoveState};
use toolbus_protocol::{Body, MsgId};

/// Each code as the part of the system that reports it, the broker or a host, does.
#[test]
fn the_error_of_every_code_is_as_reviewed() {
    let failure = |code: ErrorCode| {
        let reason = code.meaning().to_owned();
        let some = Some(code);
        match &code.code()[..4] {
            "TB04" => Failure::RefusedByHost { host: "desktop".into(), message: reason, code: some },
            "TB01" => BrokerError::Auth { code: some, reason }.into(),
            _ => BrokerError::Rejected { code: some, reason, id: Some(MsgId::from("7")) }.into(),
        }
    };
    let texts: Vec<String> = ErrorCode::ALL.iter().map(|code| text_of(&failure(*code))).collect();
    check_snapshot("error-codes.txt", &texts.join("\n"));
}

#[test]
fn the_errors_of_commands_are_as_reviewed() {
    let text = || "x".to_owned();
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let folder = || PathBuf::from("data");
    let url = || "ws://127.0.0.1:7420/bus".to_owned();
    let file = || PathBuf::from("bob.token");
    let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
    let address = SocketAddr::from(([0, 0, 0, 0], 7420));
    let limit = Duration::from_secs(60);
    let (tool, host, id) = (|| "read_file".to_owned(), || "desktop".to_owned(), || "7f".to_owned());
    let mark = |state| MoveMark { id: "7f".into(), state, other: "the cluster default".into() };
    let moved = |state| MoveError::Folder(OpenError::Moved { folder: folder(), mark: mark(state) });
    let failures = [
        BrokerError::Transport("connection refused".into()).into(),
        BrokerError::Tls("unknown issuer".into()).into(),
        BrokerError::Address("no port".into()).into(),
        BrokerError::Timeout(limit).into(),
        BrokerError::Closed.into(),
        BrokerError::Busy { code: ErrorCode::TooManyConnections, reason: "its share is used up".into() }.into(),
        Failure::NoToken,
        Failure::WrongToken { url: url(), origin: TokenOrigin::Environment, reason: "invalid token".into() },
        Failure::WrongToken { url: url(), origin: TokenOrigin::File(file()), reason: "invalid token".into() },
        Failure::McpEndpoint { url: "http://127.0.0.1:7420/mcp".into(), bus: url() },
        TokenError::Read { path: file(), source: denied() }.into(),
        Body::parse("{").expect_err("no JSON").into(),
        Failure::NoBrokerKey { folder: folder() },
        Failure::HostPanicked,
        Failure::Listen { address, source: io::Error::from(io::ErrorKind::AddrInUse) },
        Failure::Stdin(denied()),
        Failure::Runtime(denied()),
        Failure::NoDataFolder,
        Failure::MoveSides,
        MoveError::NoData { folder: folder() }.into(),
        MoveError::NotEmpty { place: "the cluster default".into() }.into(),
        MoveError::InUse("the cluster default has running brokers: 10.0.0.1:7420".into()).into(),
        MoveError::Damaged { ranges: 1, bytes: 90, missing_segments: 0, unknown: 0 }.into(),
        MoveError::Unequal { what: "messages" }.into(),
        MoveError::SameId { mailbox: "bob".into() }.into(),
        moved(MoveState::Leaving).into(),
        moved(MoveState::Left).into(),
        MoveError::Finished { place: "the folder data".into(), mark: mark(MoveState::Left) }.into(),
        ClusterError::Identity(IdentityError::Moved(mark(MoveState::Left))).into(),
        ClusterError::Identity(IdentityError::Format { found: 2 }).into(),
        Failure::NoServers,
        Failure::LoopbackRoleExposed { address },
        Failure::SharedTokenExposed { address },
        Failure::RoleWithoutSharedToken,
        Failure::PlainText { address },
        Failure::TokenFileInUse { file: file() },
        Failure::NotATokenFile { file: file() },
        Failure::Exists { file: "toolbus.toml".into() },
        Failure::Write { file: file(), source: denied() },
        Failure::NoToolsForRole { tool: tool(), role: None },
        Failure::NoToolsForRole { tool: tool(), role: Some("clerk".into()) },
        Failure::UnknownHost { host: text(), known: Vec::new() },
        Failure::UnknownHost { host: text(), known: names(&["desktop", "laptop"]) },
        Failure::NoBroker { url: url() },
        Failure::OutFolder { folder: folder(), source: denied() },
        Failure::NoConnection { tool: tool(), limit, reason: "connection refused".into() },
        Failure::BrokerAway { tool: tool(), limit },
        Failure::HostAway { tool: tool(), host: host(), limit, never_online: true },
        Failure::HostAway { tool: tool(), host: host(), limit, never_online: false },
        Failure::HostOffline { tool: tool(), host: host() },
        Failure::CallTimeout { tool: tool(), limit },
        Failure::NoTask { id: id() },
        Failure::TaskRunning { id: id() },
        Failure::TaskHostAway { host: host() },
        Failure::TaskCancelled,
        Failure::UnknownTool { tool: text(), nearest: Vec::new(), hosts: 0 },
        Failure::UnknownTool { tool: text(), nearest: Vec::new(), hosts: 2 },
        Failure::UnknownTool { tool: "raed_file".into(), nearest: names(&["read_file", "read_dir"]), hosts: 1 },
        Failure::MayHaveEffects { tool: tool() },
        Failure::ToolFailed { tool: tool() },
        Failure::NoBenchTool { read_only: Vec::new() },
        Failure::NoBenchTool { read_only: names(&["read_file", "read_dir"]) },
        Failure::BadReply("no result".into()),
        Failure::State { folder: folder(), source: denied() },
        Failure::NoApproval { id: id() },
        Failure::NoCall { id: id() },
        Failure::NotWithdrawn { id: id() },
        Failure::NoPins { folder: folder() },
        Failure::NotHeldBack { tool: tool() },
        Failure::PinHashMismatch { server: "files".into(), tool: tool() },
        Failure::AuditProblems { count: 1, checked: 2 },
        Failure::ForeignAuditLog { folder: folder() },
        Failure::NoAuditLog { folder: folder() },
        Failure::InputRequired { tool: tool() },
    ];
    let texts: Vec<String> = failures.iter().map(text_of).collect();
    check_snapshot("errors.txt", &texts.join("\n"));
}
