//! What the machine knows about a request, fixed when it arrives.

use crate::event::{Millis, ServerNo};
use bytestring::ByteString;
use std::num::NonZeroU32;
use toolbus_base::Share;
use toolbus_journal::CallKey;
use toolbus_policy::{LimitKind, Rate};

/// A request as it arrives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The caller's mailbox and the id.
    pub key: CallKey,
    /// Hash of era, server, method and params: equal for equal calls.
    pub content: [u8; 32],
    /// The server.
    pub server: ServerNo,
    /// The tool or method, as the caller named it; for records and errors.
    pub tool: ByteString,
    /// Whether it may have an effect that must not happen twice. Other requests are reads and are not journaled.
    pub has_effect: bool,
    /// Whether it may run again if the outcome of an attempt is unknown.
    pub replay: ReplaySetting,
    /// Which earlier calls it may join.
    pub join: JoinMode,
    /// How long after its end a call can be joined, in milliseconds.
    pub join_window: u64,
    /// Where the request came from.
    pub origin: Origin,
    /// Whether it runs as a task.
    pub task: Option<TaskRequest>,
    /// The caller's deadline.
    pub deadline: Option<Millis>,
    /// The time limit of the server for this request, in milliseconds.
    pub timeout: Option<Millis>,
    /// How long ago the caller wrote the request, by the caller's clock, in milliseconds.
    pub age: Millis,
    /// Its place in the order of a legacy client's session.
    pub session: Option<(SessionKey, SessionHold)>,
    /// A follow-up of a suspended call (the answer to an elicitation): already approved, and never joined.
    pub continues: bool,
    /// Whether its caller runs it at another member of the host's pool if this host stops before it starts.
    pub hands_back: bool,
    /// Whether it takes a permit of its server's concurrency limit. A listen, which lasts as long as its client, doesn't.
    pub needs_permit: bool,
    /// Whether it waits for a session slot of its server before it takes permits: those that hold the slots need them.
    pub reserves: bool,
    /// Whether the circuit breaker counts and refuses it.
    pub guarded: bool,
    /// How much of the host the caller's role may use, if it is set.
    pub share: Option<Share>,
    /// Calls with the same exclusive resource run one at a time, such as calls during which the server may send requests
    /// that name no call.
    pub exclusive: Option<ByteString>,
}

/// A client's session at a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey {
    /// The server.
    pub server: ServerNo,
    /// The client's mailbox.
    pub mailbox: ByteString,
    /// The client's name for the session.
    pub key: ByteString,
}

/// How long a request holds its place in the session order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionHold {
    /// Until it is sent.
    UntilSent,
    /// Until it is answered: `initialize`, before which nothing else makes sense.
    UntilAnswered,
}

/// Where a request came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The mailbox.
    Mailbox {
        /// The number of the delivery, from 1.
        delivery: u32,
        /// Another journal may have started it: this one is new, older or another than the last one of the mailbox.
        unsure: bool,
    },
    /// A task in the journal that an earlier process left unfinished.
    Journal,
    /// An operator, who retries a dead letter.
    Operator,
}

/// Whether the operator marked a tool as replay-safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplaySetting {
    /// It must not run twice.
    #[default]
    Never,
    /// It may.
    Safe,
    /// Its annotations decide and are not known yet: as it was when the call was started.
    AsStarted,
}

/// Which earlier equal calls of the same agent a call may join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JoinMode {
    /// None.
    Never,
    /// Those whose callers are disconnected and have not collected the answer.
    #[default]
    Gone,
    /// Those of any other mailbox.
    Always,
}

/// A request to run as a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskRequest {
    /// How long the task is kept after its acceptance, in milliseconds.
    pub ttl: Millis,
}

/// An authorised request: how it has to run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Grant {
    /// An approver has to agree.
    pub ask: bool,
    /// The rule's time limit in milliseconds, and its name.
    pub time_limit: Option<(Millis, String)>,
    /// Rate and concurrency limits.
    pub limits: Vec<Limit>,
    /// The replay setting as far as it is known now; it counts when the call starts.
    pub replay: ReplaySetting,
}

/// A limit that a call counts against.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// Which calls are counted together.
    pub kind: LimitKind,
    /// Maximum number of calls per time.
    pub rate: Option<Rate>,
    /// Maximum number of concurrent calls.
    pub concurrency: Option<NonZeroU32>,
}
