//! Stable error codes, each with a sentence and a hint, and the ways in which a frame can fail to decode.

use crate::names::NameError;

macro_rules! codes {
    ($($variant:ident = $code:literal, $name:literal, $meaning:literal, $hint:literal;)+) => {
        /// What went wrong, as a code that stays the same across versions.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorCode {
            $(#[doc = $meaning] $variant,)+
        }

        impl ErrorCode {
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The code itself, such as `TB0103`.
            pub fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ }
            }

            /// A short word for logs and metrics.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)+ }
            }

            /// What the reader can do about it.
            pub fn hint(self) -> &'static str {
                match self { $(Self::$variant => $hint,)+ }
            }

            pub fn from_code(code: &str) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

codes! {
    BadFrame = "TB0101", "bad_frame", "The frame could not be read.",
        "Send one JSON object per text message, with a `kind` that the protocol names.";
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
    BadName = "TB0107", "bad_name", "A name or id is not acceptable.",
        "Use 1 to 256 bytes without control characters, slashes or dot paths.";
    AlreadyGreeted = "TB0108", "already_greeted", "A second `hello` on one connection.",
        "Open a new connection to become someone else.";
    NotCompact = "TB0109", "not_compact", "A binary message on a connection that did not negotiate one.",
        "Offer `\"framing\":\"compact\"` in `hello`, or send text.";
    OriginRefused = "TB0110", "origin_refused", "Web pages of this origin may not connect.",
        "Connect from a program, or allow the origin with the broker's `--allow-origin`.";
    HostRefused = "TB0111", "host_refused", "The request names a host that this broker is not known by.",
        "Use an address or `localhost`, or allow the name with the broker's `--allow-host`.";
    CredentialExpired = "TB0112", "credential_expired", "The credential is no longer valid: its time is over.",
        "Ask the operator for a new one (`toolbus agent rotate NAME`), or renew the token at its issuer.";
    CredentialRevoked = "TB0113", "credential_revoked", "The credential was revoked or replaced.",
        "Ask the operator for a new one (`toolbus agent add` or `toolbus agent rotate NAME`).";
    NotYourName = "TB0114", "not_your_name", "The credential belongs to an agent of another name.",
        "Use the credential's own name or `NAME#suffix`; `~` stands for it.";
    NotYourRole = "TB0115", "not_your_role", "The credential is for another role.",
        "Leave the role out: it comes with the credential. `toolbus agent add NAME --role ROLE` makes one for it.";
    CannotCheck = "TB0116", "cannot_check", "The credential can't be checked right now.",
        "Try again in a moment: the keys of its issuer are being fetched.";
    BrokerUnproven = "TB0117", "broker_unproven", "The broker did not prove that it belongs to the data folder of the token.",
        "Another program may listen on that port. To send a token there all the same, name it with --token-file.";
    PlainTextToken = "TB0118", "plain_text_token", "A token would cross the network in plain text.",
        "Use wss:// (the broker's --tls-cert and --tls-key), or accept it with --insecure.";
    MailboxFull = "TB0201", "mailbox_full", "The recipient's mailbox is full.",
        "Wait until the recipient has caught up, then send the same message again.";
    BrokerFull = "TB0202", "broker_full", "The broker holds as many messages as it may.",
        "Wait until recipients have caught up, or raise the broker's limits.";
    IdConflict = "TB0203", "id_conflict", "This id was already used for a message with other content.",
        "Use a new id for a new message; repeat an id only with the same content.";
    Expired = "TB0204", "expired", "The message's deadline passed before it was acknowledged.",
        "Send it again with a longer deadline if it still matters.";
    UnknownMessage = "TB0205", "unknown_message", "No such message in your mailbox.",
        "Acknowledge only messages that were pushed to you, by the id they carry.";
    Displaced = "TB0206", "displaced", "Another connection subscribed to this mailbox.",
        "Run one subscriber per name, or give each its own name.";
    DiskFull = "TB0207", "disk_full", "The broker's disk is nearly full; it takes no new messages.",
        "Free space on the broker's disk; acknowledged messages are removed by themselves.";
    TooManyMailboxes = "TB0208", "too_many_mailboxes", "The broker holds as many mailboxes as it may.",
        "Reuse names, or raise the broker's limits.";
    ShuttingDown = "TB0209", "shutting_down", "The broker is stopping.",
        "Reconnect and send what has no receipt again, with the same ids.";
    TooManyConnections = "TB0210", "too_many_connections", "The broker serves as many connections as it may.",
        "Close idle connections, or raise the broker's `--max-connections`.";
    SlowReader = "TB0211", "slow_reader", "The connection did not take what was sent to it.",
        "Read from the connection all the time; unacknowledged messages come again.";
    Unreadable = "TB0212", "unreadable", "The message cannot be shown to its recipient and is among the dead letters.",
        "Look at it with `toolbus recv --as NAME#dead`.";
    ManifestRefused = "TB0213", "manifest_refused", "The broker does not keep these manifests.",
        "Keep to the limits: 8 MiB a manifest, 64 roles a host, 1024 hosts; the reason says which one was passed.";
    Cancelled = "TB0214", "cancelled", "The message was taken back by its sender.",
        "Nothing is to be done. A recipient that had it before and left may have begun the work.";
    NotYourRequest = "TB0215", "not_your_request", "The reply answers no open request of that recipient in your mailbox.",
        "Reply once, to whoever asked, before you acknowledge the request and before its deadline passes.";
    MayNotSend = "TB0216", "may_not_send", "Your role may not send this to that mailbox.",
        "Requests go to hosts; for other messages the operator names recipients under the role's `send`.";
    NotAHost = "TB0217", "not_a_host", "Only a host may do this, and the credential is none for a host.",
        "Ask the operator for a host's credential: `toolbus agent add NAME --host`.";
    OperatorOnly = "TB0218", "operator_only", "Only an operator may do this.",
        "Use the operator's token, which is in the broker's data folder.";
    StorageFailed = "TB0301", "storage_failed", "The broker could not write to its disk and stopped.",
        "Look at the broker's log and disk; start it again once the disk is sound.";
    OtherFormat = "TB0302", "other_format", "The data folder was written by another version of toolbus.",
        "Start the version that wrote it, or choose another folder with --data; nothing in it was changed.";
    DamagedIdentity = "TB0303", "damaged_identity", "The file `identity` of a data or state folder is damaged or gone.",
        "Restore it from a backup of the same folder; without it nothing in the folder can be read, and nothing was changed.";
    HostAway = "TB0401", "host_away", "The host was away until the call's deadline passed.",
        "Start the host again, or give the call a longer deadline; it was not run.";
    ServerDown = "TB0402", "server_down", "The MCP server is not running right now.",
        "Look at the host's log for the server's last lines; it is started again by itself.";
    NotAllowed = "TB0403", "not_allowed", "Your role may not use this.",
        "Ask the operator to name it under the role's `allow` in the host's configuration.";
    UnknownName = "TB0404", "unknown_name", "No server, tool, resource or prompt of this name is here.",
        "List again; names change when servers do.";
    ResultTooLarge = "TB0405", "result_too_large", "The result is larger than the bus can carry.",
        "Ask the tool for less, or raise the broker's `--max-frame`.";
    TooManySessions = "TB0406", "too_many_sessions", "The server has as many sessions as it may.",
        "Close clients that are not needed, raise the server's `max_sessions`, or set `session = \"shared\"`.";
    CallTimeout = "TB0407", "call_timeout", "The tool did not answer within its time limit.",
        "Raise the server's `timeout` or the tool's own; the tool was told to stop.";
    ServerDied = "TB0408", "server_died", "The MCP server ended during the call; whether it had an effect is unknown.",
        "Look at what the tool has done before you call it again.";
    BadServerMessage = "TB0409", "bad_server_message", "The MCP server sent something that makes no sense.",
        "Report it to the server's author; the host's log has what it sent.";
    NameCollision = "TB0410", "name_collision", "Two servers have something of this name, and the other one was there first.",
        "Give one of the servers a `prefix` in the host's configuration.";
    BadConfig = "TB0411", "bad_config", "The configuration can't be used.",
        "Correct the place that the message names.";
    TooManyCalls = "TB0412", "too_many_calls", "The host has as many calls waiting as it may.",
        "Call again when others have ended, or raise the host's limits.";
    SessionUnknown = "TB0413", "session_unknown", "The session, or what was to be continued in it, is not known any more.",
        "Begin anew: a new session, or the request without `requestState`.";
    ApprovalDenied = "TB0414", "approval_denied", "A human decided against this call, or nobody decided in time.",
        "Ask whoever approves calls before you try it again; the tool was not run.";
    TooManyApprovals = "TB0415", "too_many_approvals", "As many calls wait for approval as may.",
        "Wait until some are decided (`toolbus approvals`); the tool was not run.";
    HeldBack = "TB0416", "held_back", "The tool's definition is not the one that was approved.",
        "The operator looks at the change with `toolbus pin diff` and accepts it with `toolbus pin approve`.";
    RateLimited = "TB0417", "rate_limited", "The role or the tool was called more often than its limit allows.",
        "Wait as long as the message says, then call again; the tool was not run.";
    AuditFailed = "TB0418", "audit_failed", "The call could not be written to the audit log, so it was not run.",
        "Look at the host's log and disk.";
    BadArguments = "TB0419", "bad_arguments", "The rules for this call look at its arguments, and these can't be judged.",
        "Send one JSON object, with every key once.";
    OutcomeUnknown = "TB0420", "outcome_unknown", "The host ended while the tool ran; whether the call had its effect is not known.",
        "Look at what the tool has done before you call it again; `replay = \"safe\"` is for tools that may run twice.";
    PoisonCall = "TB0421", "poison_call", "The call ended its server or its host each time it ran, so it is not run any more.",
        "The operator looks at it with `toolbus dead show ID`, then retries or drops it.";
    ServerTripped = "TB0422", "server_tripped", "The MCP server failed several times in a row and gets no calls for a while.",
        "Wait as long as the message says; the host's log has the server's last lines. The tool was not run.";
    UnknownTask = "TB0423", "unknown_task", "No task of yours has this id, or its time is over.",
        "List your tasks: `toolbus task list`.";
    CallEnded = "TB0424", "call_ended", "The call had ended before it could be cancelled.",
        "Nothing is to be done: its answer stands.";
    JournalFailed = "TB0425", "journal_failed", "The call could not be written to the host's journal, so it was not run.",
        "Look at the host's log and disk; start the host again once the disk is sound.";
    CallerGone = "TB0426", "caller_gone", "The caller was gone for longer than the host waits, so its call was ended.",
        "Raise `caller_grace` in the host's configuration, or begin calls as tasks if nobody is to wait for them.";
    HostOffline = "TB0427", "host_offline", "The host is away, and this call was not to wait for it.",
        "Call again when the host is back, or leave out `--fail-fast` (`offline = \"fail\"` in its configuration).";
    TooManyTasks = "TB0428", "too_many_tasks", "The host keeps as many tasks as it may.",
        "Wait until some have ended and been forgotten, or give tasks a shorter time to live.";
    UnknownCall = "TB0429", "unknown_call", "No call or dead letter of this id is here.",
        "List them: `toolbus calls`, `toolbus dead list`.";
    NobodyToAsk = "TB0430", "nobody_to_ask", "The server asked its client something, and a task has nobody to ask.",
        "Call the tool without a task, from a client that can be asked.";
}

/// Why bytes are not a frame.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("not a frame: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the `{0}` frame lacks `{1}`")]
    Missing(&'static str, &'static str),
    #[error("the frame is cut short")]
    Truncated,
    #[error("the `{0}` frame asks about more than {limit} at a time", limit = crate::MAX_INSPECTED)]
    TooMany(&'static str),
    #[error("a number is out of range")]
    BadNumber,
    #[error("a flag is set that this version does not know")]
    UnknownFlag,
    #[error("a text is not UTF-8")]
    NotUtf8,
    #[error("`created_at` is not an RFC 3339 time")]
    BadTimestamp,
    #[error("a name or id is not acceptable: {0}")]
    BadName(NameError),
    #[error("{0}")]
    Body(#[from] crate::BodyError),
}

impl DecodeError {
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
