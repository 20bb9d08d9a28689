//! Stable error codes, each with a meaning and a hint, and the decode errors of frames.

use crate::names::NameError;

macro_rules! codes {
    ($($variant:ident = $code:literal, $name:literal, $meaning:literal, $hint:literal;)+) => {
        /// An error code that stays the same across versions.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorCode {
            $(#[doc = $meaning] $variant,)+
        }

        impl ErrorCode {
            /// All codes, in ascending order.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns the code itself, such as `TB0103`.
            pub fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ }
            }

            /// Returns a short name for logs and metrics.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Returns a sentence that describes the error.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)+ }
            }

            /// Returns a sentence on how to resolve the error.
            pub fn hint(self) -> &'static str {
                match self { $(Self::$variant => $hint,)+ }
            }

            /// Parses a code such as `TB0103`.
            pub fn from_code(code: &str) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

codes! {
    BadFrame = "TB0101", "bad_frame", "The frame could not be read.",
        "Send one JSON object per text message, with a `kind` that the protocol defines.";
    ExpectedHello = "TB0102", "expected_hello", "The first frame was not `hello`.",
        "Send `hello` with your agent and token before anything else.";
    BadCredentials = "TB0103", "bad_credentials", "The token is not valid here.",
        "Check the token file that the broker printed at start.";
    HelloTimeout = "TB0104", "hello_timeout", "No `hello` arrived in time.",
        "Send `hello` right after the connection is open.";
    FrameTooLarge = "TB0105", "frame_too_large", "The frame is larger than the broker accepts.",
        "Send less, or raise the broker's `--max-frame`.";
    TooDeep = "TB0106", "too_deep", "The body is nested too deeply.",
        "Flatten the body; 100 levels are the limit.";
    BadName = "TB0107", "bad_name", "A name or id is invalid.",
        "Use 1 to 256 bytes without control characters, slashes or dot paths.";
    AlreadyGreeted = "TB0108", "already_greeted", "A second `hello` was sent on one connection.",
        "Open a new connection to use another identity.";
    NotCompact = "TB0109", "not_compact", "A binary message was sent on a connection that did not negotiate the compact framing.",
        "Offer `\"framing\":\"compact\"` in `hello`, or send text.";
    OriginRefused = "TB0110", "origin_refused", "Web pages of this origin may not connect.",
        "Connect from a program, or allow the origin with the broker's `--allow-origin`.";
    HostRefused = "TB0111", "host_refused", "The `Host` header of the request is not allowed by this broker.",
        "Use an address or `localhost`, or allow the name with the broker's `--allow-host`.";
    CredentialExpired = "TB0112", "credential_expired", "The credential has expired.",
        "Ask the operator for a new one (`toolbus agent rotate NAME`), or renew the token at its issuer.";
    CredentialRevoked = "TB0113", "credential_revoked", "The credential was revoked or replaced.",
        "Ask the operator for a new one (`toolbus agent add` or `toolbus agent rotate NAME`).";
    NotYourName = "TB0114", "not_your_name", "The credential belongs to an agent of another name.",
        "Use the credential's own name or `NAME#suffix`; `~` is short for the name.";
    NotYourRole = "TB0115", "not_your_role", "The credential is for another role.",
        "Omit the role: the credential determines it. `toolbus agent add NAME --role ROLE` creates one for a role.";
    CannotCheck = "TB0116", "cannot_check", "The credential can't be verified at the moment.",
        "Try again in a moment: the keys of its issuer are being fetched.";
    BrokerUnproven = "TB0117", "broker_unproven", "The broker did not prove that it belongs to the data folder of the token.",
        "Another program may listen on that port. To send the token anyway, pass it with --token-file.";
    PlainTextToken = "TB0118", "plain_text_token", "A token would cross the network in plain text.",
        "Use wss:// (the broker's --tls-cert and --tls-key), or allow it with --insecure.";
    UnsupportedFrame = "TB0119", "unsupported_frame", "The frame belongs to a part of the original that this broker does not have.",
        "Hosts announce manifests instead of being observed, and there are no environment leases: see docs/library.md.";
    MailboxFull = "TB0201", "mailbox_full", "The recipient's mailbox is full.",
        "Wait until the recipient has caught up, then send the same message again.";
    BrokerFull = "TB0202", "broker_full", "The broker's message limit is reached.",
        "Wait until recipients have caught up, or raise the broker's limits.";
    IdConflict = "TB0203", "id_conflict", "This id was already used for a message with other content.",
        "Use a new id for a new message; repeat an id only with the same content.";
    Expired = "TB0204", "expired", "The message's deadline passed before it was acknowledged.",
        "Send it again with a longer deadline if it still matters.";
    UnknownMessage = "TB0205", "unknown_message", "There is no such message in your mailbox.",
        "Acknowledge only messages that were pushed to you, by the id they carry.";
    Displaced = "TB0206", "displaced", "Another connection subscribed to this mailbox.",
        "Run one subscriber per name, or give each its own name.";
    DiskFull = "TB0207", "disk_full", "The broker's disk is nearly full; new messages are refused.",
        "Free space on the broker's disk; acknowledged messages are removed automatically.";
    TooManyMailboxes = "TB0208", "too_many_mailboxes", "The broker's mailbox limit is reached.",
        "Reuse names, or raise the broker's limits.";
    ShuttingDown = "TB0209", "shutting_down", "The broker is stopping.",
        "Reconnect, and send messages without a receipt again, with the same ids.";
    TooManyConnections = "TB0210", "too_many_connections", "The broker's connection limit is reached.",
        "Close idle connections, or raise the broker's `--max-connections`.";
    SlowReader = "TB0211", "slow_reader", "The client did not read fast enough from its connection.",
        "Read from the connection continuously; unacknowledged messages are delivered again.";
    Unreadable = "TB0212", "unreadable", "The message can't be encoded for its recipient and was dead-lettered.",
        "Read it with `toolbus recv --as NAME#dead`.";
    ManifestRefused = "TB0213", "manifest_refused", "The broker refused the manifests.",
        "The limits are 8 MiB per manifest, 64 roles per host and 1024 hosts; the reason says which one was exceeded.";
    Cancelled = "TB0214", "cancelled", "The message was withdrawn by its sender.",
        "No action is needed. A recipient that received it earlier and disconnected may have started the work.";
    NotYourRequest = "TB0215", "not_your_request", "The reply does not belong to a pending request from that recipient in your mailbox.",
        "Reply once, to the sender of the request, before you acknowledge the request and before its deadline passes.";
    MayNotSend = "TB0216", "may_not_send", "Your role may not send this to that mailbox.",
        "Requests go to hosts; for other messages the operator lists recipients under the role's `send`.";
    NotAHost = "TB0217", "not_a_host", "This requires the credential of a host.",
        "Ask the operator for a host's credential: `toolbus agent add NAME --host`.";
    OperatorOnly = "TB0218", "operator_only", "This requires the credential of an operator.",
        "Use the operator's token, which is in the broker's data folder.";
    TooManyFollows = "TB0219", "too_many_follows", "The connection follows too many peers and messages.",
        "End follows that are no longer needed, or use another connection.";
    ShareFull = "TB0220", "share_full", "The agent's share of the broker is used up.",
        "Wait until recipients have taken your messages, or withdraw some. For larger messages, the operator sets `share` for the role.";
    StorageFailed = "TB0301", "storage_failed", "The broker could not write to its disk and stopped.",
        "Check the broker's log and disk; restart it once the disk is healthy.";
    OtherFormat = "TB0302", "other_format", "The data folder was written by another version of toolbus.",
        "Start the version that wrote it, or choose another folder with --data; nothing in it was changed.";
    DamagedIdentity = "TB0303", "damaged_identity", "The file `identity` of a data or state folder is damaged or gone.",
        "Restore it from a backup of the same folder; without it nothing in the folder can be read, and nothing was changed.";
    UnsafePath = "TB0304", "unsafe_path", "A file or folder is a symbolic link, or other users control it, so it is not used.",
        "Find out who put it there, then remove it or make it your own (chown, chmod); nothing was changed.";
    ClusterUnreachable = "TB0305", "cluster_unreachable", "The NATS servers of the cluster can't be used.",
        "Check the addresses in --nats, the credentials, and that most of the servers run.";
    ClusterUnsafe = "TB0306", "cluster_unsafe", "The NATS servers could lose messages that have a receipt.",
        "Change the setting that the message names, or accept the risk: docs/operations.md says what it is.";
    OtherCluster = "TB0307", "other_cluster", "The cluster is not one that this broker can join.",
        "Start it with the settings that the cluster was created with, or choose another cluster with --cluster.";
    OwnMailboxes = "TB0308", "own_mailboxes", "The data folder has the mailboxes of a broker without a cluster.",
        "Choose another folder with --data; nothing in it was changed.";
    MoveUnfinished = "TB0309", "move_unfinished", "The data is a part of a move that is not finished.",
        "Run the same `toolbus migrate` again, which goes on where it stopped; `--abandon` gives the move up.";
    MovedAway = "TB0310", "moved_away", "The data was moved to another place.",
        "Start the brokers there. docs/operations.md says how to move it back.";
    MoveTargetInUse = "TB0311", "move_target_in_use", "The target of a move has data already.",
        "Choose an empty folder with --to, or a cluster that does not exist yet with --cluster; nothing was changed.";
    MoveSourceDamaged = "TB0312", "move_source_damaged", "A part of the data to move can't be read.",
        "Restore it from a backup, or move what can be read with `--accept-damage`; nothing was changed.";
    MoveInUse = "TB0313", "move_in_use", "A broker uses the data that is to be moved.",
        "Stop all brokers, and run the command again.";
    MoveUnequal = "TB0314", "move_unequal", "The copy differs from the data that was moved.",
        "The source is intact. Run the same command again; if that does not help, give the move up with `--abandon`.";
    HostAway = "TB0401", "host_away", "The host was offline until the call's deadline passed.",
        "Start the host again, or give the call a longer deadline; the tool was not run.";
    ServerDown = "TB0402", "server_down", "The MCP server is not running at the moment.",
        "Check the host's log for the server's last lines; the server is restarted automatically.";
    NotAllowed = "TB0403", "not_allowed", "Your role may not use this.",
        "Ask the operator to list it under the role's `allow` in the host's configuration.";
    UnknownName = "TB0404", "unknown_name", "There is no server, tool, resource or prompt of this name.",
        "List again; names change when servers do.";
    ResultTooLarge = "TB0405", "result_too_large", "The result is larger than the maximum frame size.",
        "Ask the tool for less, or raise the broker's `--max-frame`.";
    TooManySessions = "TB0406", "too_many_sessions", "The session limit of the MCP server is reached.",
        "Close clients that are not needed, raise the server's `max_sessions`, or set `session = \"shared\"`.";
    CallTimeout = "TB0407", "call_timeout", "The tool did not answer within its time limit.",
        "Raise the server's `timeout` or the tool's own; the server was asked to cancel the call.";
    ServerDied = "TB0408", "server_died", "The MCP server exited during the call; whether the call had an effect is unknown.",
        "Check what the tool has done before you call it again.";
    BadServerMessage = "TB0409", "bad_server_message", "The MCP server sent an invalid message.",
        "Report it to the server's author; the host's log contains the message.";
    NameCollision = "TB0410", "name_collision", "Another server registered this name first.",
        "Give one of the servers a `prefix` in the host's configuration.";
    BadConfig = "TB0411", "bad_config", "The configuration can't be used.",
        "Correct the configuration at the position that the message gives.";
    TooManyCalls = "TB0412", "too_many_calls", "The limit of concurrent calls is reached.",
        "Call again when others have finished, or raise the host's limits.";
    SessionUnknown = "TB0413", "session_unknown", "The session, or the request to be continued in it, is no longer known.",
        "Start a new session, or send the request without `requestState`.";
    ApprovalDenied = "TB0414", "approval_denied", "The approval of this call was denied or timed out.",
        "Ask the approver before you call again; the tool was not run.";
    TooManyApprovals = "TB0415", "too_many_approvals", "The host's limit of calls that wait for approval is reached.",
        "Wait until some are decided (`toolbus approvals`); the tool was not run.";
    HeldBack = "TB0416", "held_back", "The tool's definition is not the one that was approved.",
        "The operator reviews the change with `toolbus pin diff` and accepts it with `toolbus pin approve`.";
    RateLimited = "TB0417", "rate_limited", "The rate limit of the role or the tool is exceeded.",
        "Wait as long as the message says, then call again; the tool was not run.";
    AuditFailed = "TB0418", "audit_failed", "The call could not be written to the audit log, so it was not run.",
        "Check the host's log and disk.";
    BadArguments = "TB0419", "bad_arguments", "The rules for this call depend on its arguments, and these can't be evaluated.",
        "Send one JSON object without duplicate keys.";
    OutcomeUnknown = "TB0420", "outcome_unknown", "The host stopped while the tool ran; whether the call had an effect is unknown.",
        "Check what the tool has done before you call it again; `replay = \"safe\"` is for tools that may run twice.";
    PoisonCall = "TB0421", "poison_call", "The call crashed its server or its host each time it ran, so it is not run again.",
        "The operator inspects it with `toolbus dead show ID`, then retries or drops it.";
    ServerTripped = "TB0422", "server_tripped", "The MCP server failed several times in a row; its circuit breaker is open.",
        "Wait as long as the message says; the host's log has the server's last lines. The tool was not run.";
    UnknownTask = "TB0423", "unknown_task", "You have no task with this id, or it has expired.",
        "List your tasks: `toolbus task list`.";
    CallEnded = "TB0424", "call_ended", "The call had ended before it could be cancelled.",
        "No action is needed: its result stands.";
    JournalFailed = "TB0425", "journal_failed", "The call could not be written to the host's journal, so it was not run.",
        "Check the host's log and disk; restart the host once the disk is healthy.";
    CallerGone = "TB0426", "caller_gone", "The caller was disconnected for longer than the grace period, so its call was ended.",
        "Raise `caller_grace` in the host's configuration, or start calls as tasks if they need not be waited for.";
    HostOffline = "TB0427", "host_offline", "The host is offline, and this call does not wait for it.",
        "Call again when the host is online, or omit `--fail-fast` (`offline = \"fail\"` in its configuration).";
    TooManyTasks = "TB0428", "too_many_tasks", "The host's task limit is reached.",
        "Wait until some tasks have ended and expired, or give tasks a shorter time to live.";
    UnknownCall = "TB0429", "unknown_call", "There is no call or dead letter with this id.",
        "List them: `toolbus calls`, `toolbus dead list`.";
    NobodyToAsk = "TB0430", "nobody_to_ask", "The server sent a request to its client, but a task has no client that could answer.",
        "Call the tool without a task, from a client that answers such requests.";
}

/// Why a frame could not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The text is not JSON, or a field has the wrong type.
    #[error("not a frame: {0}")]
    Json(#[from] serde_json::Error),
    /// A frame lacks a required field.
    #[error("the `{0}` frame lacks `{1}`")]
    Missing(&'static str, &'static str),
    /// A compact frame is shorter than its contents.
    #[error("the frame is truncated")]
    Truncated,
    /// A list has more entries than allowed.
    #[error("a list in the `{0}` frame has more than {limit} entries", limit = crate::MAX_INSPECTED)]
    TooMany(&'static str),
    /// A number does not fit its type, or a range is inverted.
    #[error("a number is out of range")]
    BadNumber,
    /// A batch of events is empty or too large, is marked as durable, or its numbers don't match its events.
    #[error("the batch is not one of 1 to 64 live events with consecutive numbers")]
    BadBatch,
    /// A compact frame has a flag of a later version.
    #[error("an unknown flag is set")]
    UnknownFlag,
    /// A string of a compact frame is not UTF-8.
    #[error("a string is not UTF-8")]
    NotUtf8,
    /// The creation time is not RFC 3339.
    #[error("`created_at` is not an RFC 3339 time")]
    BadTimestamp,
    /// A name violates [`crate::check_name`].
    #[error("invalid name or id: {0}")]
    BadName(NameError),
    /// The body is invalid.
    #[error("{0}")]
    Body(#[from] crate::BodyError),
}

impl DecodeError {
    /// Returns the code to report to the peer.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::BadName(_) => ErrorCode::BadName,
            Self::Body(crate::BodyError::TooDeep) => ErrorCode::TooDeep,
            _ => ErrorCode::BadFrame,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_read_back() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_code(code.code()), Some(*code));
        }
    }
}
