//! What happens to calls from outside: the input of the machine.

use crate::cancel::Cause;
use crate::effect::RecordKind;
use crate::request::{Grant, Request, SessionKey};
use bytestring::ByteString;
use toolbus_journal::{CallKey, End, JournalError, Ticket};

/// Milliseconds of a monotonic clock.
pub type Millis = u64;

/// The current time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time, for deadlines and waits.
    pub ms: Millis,
    /// Milliseconds since 1970, for journal entries. May jump.
    pub wall: u64,
}

/// A call at this machine. Never reused, so that a late event can't reach another call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallNo(pub u64);

/// A question to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AskNo(pub u64);

/// A client's notification that waits for its place in the session order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NotificationNo(pub u64);

/// A server of the host, by its index in [`crate::MachineOptions::servers`].
pub type ServerNo = usize;

/// The broker's answer to [`crate::Effect::Inspect`], in the order of the question.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inspected {
    /// Whether a peer is connected under each mailbox.
    pub connected: Vec<bool>,
    /// Whether each reply is still in its mailbox, uncollected.
    pub uncollected: Vec<bool>,
}

impl Inspected {
    /// Whether a reply counts as uncollected: it is in its mailbox, or the broker never had it. `remembers`: the broker knows
    /// all messages that were settled since the reply was written. If not, an unknown reply may have been collected.
    pub fn is_uncollected(is_pending: bool, is_settled: bool, remembers: bool) -> bool {
        is_pending || (remembers && !is_settled)
    }
}

/// Who cancels a call that is named only by its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelBy {
    /// The mailbox that sent the call, or the broker on its behalf.
    Caller(ByteString),
    /// An older broker, which has checked the right to cancel but reports no sender.
    Broker,
}

/// An input of the machine. `A` is a server's answer, which the machine never looks into.
#[derive(Debug, Clone)]
pub enum Event<A> {
    /// A request arrived, for the first time or again, or a task of an earlier process is resumed. The machine names the
    /// call in its effects; see [`crate::CallMachine::handle`].
    Arrived(Box<Request>),
    /// Answers [`crate::Effect::Authorise`]: the limits to apply, or the refusal, which is audited already.
    Authorised {
        /// The call.
        call: CallNo,
        /// The decision.
        verdict: Result<Grant, A>,
    },
    /// Answers [`crate::Effect::Park`]: the call was approved, or the refusal.
    Approved {
        /// The call.
        call: CallNo,
        /// The decision.
        verdict: Result<(), A>,
    },
    /// Answers [`crate::Effect::Inspect`].
    Inspected {
        /// The call.
        call: CallNo,
        /// The question.
        ask: AskNo,
        /// The answer.
        view: Inspected,
    },
    /// Follows [`crate::Effect::Follow`], at once and after every change, until [`crate::Effect::Unfollow`].
    Followed {
        /// The caller's mailbox.
        caller: ByteString,
        /// Whether a peer is connected there; `None` if the broker can't tell, or the connection to it is lost.
        connected: Option<bool>,
    },
    /// Answers [`crate::Effect::Reserve`]: the call has a session slot, needs none, or got none in time.
    Reserved {
        /// The call.
        call: CallNo,
    },
    /// Answers [`crate::Effect::Connect`]: the connection is open, or why not. A refusal that is no failure of the server
    /// (for example a session limit) is `Event::Refused`.
    Connected {
        /// The call.
        call: CallNo,
        /// The error if the server can't be reached.
        outcome: Result<(), A>,
    },
    /// The host can't or need not send the request: it is answered with this, without the server.
    Refused {
        /// The call.
        call: CallNo,
        /// The answer to the caller.
        answer: A,
    },
    /// Answers [`crate::Effect::Append`]: written (`None`), staged until the ticket is reported, or rejected.
    Appended {
        /// The call.
        call: CallNo,
        /// What was appended.
        record: RecordKind,
        /// The ticket to wait for.
        outcome: Result<Option<Ticket>, JournalError>,
    },
    /// The journal synced these appends, or failed to.
    Synced {
        /// The tickets of one sync.
        tickets: Vec<Ticket>,
        /// The failure, after which no append succeeds.
        outcome: Result<(), JournalError>,
    },
    /// Follows [`crate::Effect::Send`]: the server's connection has taken the request.
    Sent {
        /// The call.
        call: CallNo,
    },
    /// The request certainly did not reach the server; another connection may be tried.
    NotTaken {
        /// The call.
        call: CallNo,
        /// The error if no other connection helps.
        error: A,
    },
    /// The server answered, with a result or an error.
    Answered {
        /// The call.
        call: CallNo,
        /// The answer.
        answer: A,
        /// How the call ended.
        end: End,
    },
    /// The server ended before it answered. It may have run the call.
    Died {
        /// The call.
        call: CallNo,
        /// The error for the caller.
        error: A,
        /// One sentence for the history of a dead letter.
        why: String,
        /// Whether a new connection can serve a further attempt.
        retry: bool,
    },
    /// The code that carries out the effects of this call panicked.
    Crashed {
        /// The call.
        call: CallNo,
    },
    /// Answers [`crate::Effect::ReadAnswer`]: the answer if it may be shared, `None` if not, or why it can't be read.
    AnswerRead {
        /// The call that wants to share the answer.
        call: CallNo,
        /// The answer.
        answer: Result<Option<A>, String>,
    },
    /// The broker receipted the reply to a call, or refused it because it no longer knows the request.
    ReplySettled {
        /// The call.
        key: CallKey,
        /// Whether the reply was refused, so that no caller got it.
        refused: bool,
    },
    /// Cancels a call that the host has looked up.
    Cancel {
        /// The call.
        call: CallNo,
        /// Why.
        cause: Cause,
        /// A reason for the server and the caller.
        reason: Option<String>,
    },
    /// Cancels a call by its id; remembered if its caller is known and the call has not arrived yet.
    CancelId {
        /// The id of the call.
        id: ByteString,
        /// Who cancels.
        by: CancelBy,
        /// A reason for the server.
        reason: Option<String>,
    },
    /// A client's notification takes its place in the session order.
    Notification {
        /// The notification, numbered by the host.
        notification: NotificationNo,
        /// The session.
        session: SessionKey,
    },
    /// A forwarded notification no longer holds its place.
    NotificationSent {
        /// The notification.
        notification: NotificationNo,
    },
    /// The rules or the approved definitions changed: calls that have not started are authorised again.
    PolicyChanged,
    /// The agent's credential was revoked.
    Revoked {
        /// The agent.
        agent: ByteString,
    },
    /// The host shuts down: no call starts any more, running calls may end.
    Drain,
    /// The drain is over: servers are closed, and running calls end with them.
    Shutdown,
    /// Time has passed.
    Tick,
}
