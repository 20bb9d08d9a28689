//! What the host has to do for its calls: the output of the machine.

use crate::circuit_breaker::BreakerChange;
use crate::event::{AskNo, CallNo, Millis, NotificationNo, ServerNo};
use bytestring::ByteString;
use std::sync::Arc;
use std::time::Duration;
use toolbus_journal::{CallKey, End, JournalError, Location, Start, Wait};
use toolbus_policy::{LimitKind, Rate};

/// The effects of one event, to be carried out in order.
#[derive(Debug)]
pub struct Effects<A>(pub Vec<Effect<A>>);

impl<A> Default for Effects<A> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<A> Effects<A> {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn push(&mut self, effect: Effect<A>) {
        self.0.push(effect);
    }
}

/// Something to do for a call. `A` is a server's answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect<A> {
    /// A request became this call; the host keeps what it needs to carry out the following effects.
    Admitted {
        /// The new call.
        call: CallNo,
    },
    /// Another delivery of a call that is in progress. Its one reply settles all deliveries.
    Redelivered {
        /// The call in progress.
        call: CallNo,
    },
    /// The request is answered already without a record in the journal, and its reply is on the way.
    Ignored,
    /// The request is answered already without a record in the journal, and the broker has the reply. It lost the
    /// acknowledgement, which is to be sent again.
    Acknowledge,
    /// Decide by the policy, and audit the decision. Answered by `Event::Authorised`.
    Authorise {
        /// The call.
        call: CallNo,
        /// The call was authorised before; only a refusal is audited.
        again: bool,
    },
    /// Ask approvers, and report to the caller that the call waits. Answered by `Event::Approved`.
    Park {
        /// The call.
        call: CallNo,
        /// When the machine gives up.
        until: Millis,
    },
    /// The call no longer waits for approval, because it expired (`true`) or was cancelled.
    Unpark {
        /// The call.
        call: CallNo,
        /// Whether the time for the approval is over.
        expired: bool,
    },
    /// Ask the broker, as often as it takes to get an answer. Answered by `Event::Inspected`, unless the call ends before.
    Inspect {
        /// The call.
        call: CallNo,
        /// The number of the question.
        ask: AskNo,
        /// Mailboxes: is a peer connected?
        peers: Vec<ByteString>,
        /// Replies, as mailbox and message id: is it uncollected?
        replies: Vec<(ByteString, ByteString)>,
    },
    /// Follow whether a peer is connected under the mailbox of a caller. Reported by `Event::Followed`.
    Follow {
        /// The caller's mailbox.
        caller: ByteString,
    },
    /// End the follow of a caller.
    Unfollow {
        /// The caller's mailbox.
        caller: ByteString,
    },
    /// Reserve a session slot for the call, if it needs one. Answered by `Event::Reserved`.
    Reserve {
        /// The call.
        call: CallNo,
    },
    /// Find or open the connection to the server. Answered by `Event::Connected` or `Event::Refused`.
    Connect {
        /// The call.
        call: CallNo,
    },
    /// Append to the journal, at once and in order. Answered by `Event::Appended`, and later by `Event::Synced`.
    Append {
        /// The call.
        call: CallNo,
        /// The entry.
        record: Record<A>,
        /// When it counts.
        wait: Wait,
    },
    /// Send the request to the server. Answered by `Event::Sent`, `NotTaken` or `Refused`, later by `Answered` or `Died`.
    Send {
        /// The call.
        call: CallNo,
    },
    /// Ask the server to cancel the call.
    CancelAtServer {
        /// The call.
        call: CallNo,
        /// For the server.
        reason: Option<String>,
    },
    /// Stop what the host does for the call (reserving, connecting, waiting for the server), without a further event.
    Abort {
        /// The call.
        call: CallNo,
    },
    /// Reply that the task is accepted. The call continues.
    Accepted {
        /// The call.
        call: CallNo,
    },
    /// Read the answer of an earlier call. Answered by `Event::AnswerRead`.
    ReadAnswer {
        /// The call that wants to share it.
        call: CallNo,
        /// The earlier call, in case compaction has moved its answer.
        of: CallKey,
        /// Where the answer is.
        location: Location,
    },
    /// Reply with the answer; it is journaled if it has to be.
    Reply {
        /// The call.
        call: CallNo,
        /// The answer. Equal to that of [`Record::Result`] if there was one.
        answer: Answer<A>,
    },
    /// Reply with the answer that the journal has, under the same message id as before.
    Resend {
        /// The call.
        call: CallNo,
        /// The id of the reply.
        reply_id: ByteString,
        /// Where the answer is.
        location: Location,
    },
    /// The task is known to the journal already: reply with its state.
    ResendTask {
        /// The call.
        call: CallNo,
    },
    /// The call is over, and the host can forget it. `left`: it was not answered, and the next host takes it from the
    /// mailbox or the journal.
    Ended {
        /// The call.
        call: CallNo,
        /// Whether it is left to the next host.
        left: bool,
    },
    /// The circuit breaker of a server opened or closed.
    Breaker {
        /// The server.
        server: ServerNo,
        /// The change.
        change: BreakerChange,
    },
    /// Forward a client's notification to the server. Answered by `Event::NotificationSent`.
    Forward {
        /// The notification.
        notification: NotificationNo,
    },
}

/// What is appended to the journal for a call. The host adds texts and message ids.
#[derive(Debug, Clone, PartialEq)]
pub enum Record<A> {
    /// An attempt is about to be sent to the server.
    Start {
        /// The number of the attempt, from 1.
        attempt: u32,
        /// Whether the call is replay-safe.
        safe: bool,
    },
    /// The call is answered. The host chooses the id of the reply, and uses it in the reply that follows.
    Result {
        /// The answer.
        answer: Answer<A>,
        /// How the call ended.
        end: End,
    },
    /// The call shares the run of an earlier one.
    Joined {
        /// The earlier call.
        to: CallKey,
    },
    /// The task is accepted.
    Task,
    /// The call is dead-lettered.
    Dead {
        /// How often it was started.
        attempts: u32,
        /// What happened to each attempt.
        history: Vec<String>,
    },
}

/// The kind of a [`Record`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// See [`Record::Start`].
    Start,
    /// See [`Record::Result`].
    Result,
    /// See [`Record::Joined`].
    Joined,
    /// See [`Record::Task`].
    Task,
    /// See [`Record::Dead`].
    Dead,
}

impl<A> Record<A> {
    /// The kind of the record.
    pub fn kind(&self) -> RecordKind {
        match self {
            Self::Start { .. } => RecordKind::Start,
            Self::Result { .. } => RecordKind::Result,
            Self::Joined { .. } => RecordKind::Joined,
            Self::Task => RecordKind::Task,
            Self::Dead { .. } => RecordKind::Dead,
        }
    }
}

/// The answer to a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer<A> {
    /// From the server, or a refusal by the host.
    Given(A),
    /// The answer of an earlier call that this one joined.
    Joined {
        /// The earlier call.
        to: CallKey,
        /// When the earlier call was started, in milliseconds since 1970, if it was.
        started_at: Option<u64>,
        /// Its answer.
        answer: A,
    },
    /// The caller cancelled the call.
    Cancelled,
    /// The host stops and has not run the call, and never will: another host may.
    HandedBack,
    /// Decided by the machine.
    Failure(Failure),
}

/// Why a call has no answer of a server, as far as the machine decides it.
#[derive(Debug, Clone, PartialEq)]
pub enum Failure {
    /// The call was started and its result is not known. It does not run again.
    OutcomeUnknown(Arc<Start>),
    /// The earlier call that this one joined was cancelled while it ran.
    JoinedCancelled(Arc<Start>),
    /// The earlier call that this one joined was answered, but its answer can't be read.
    Unreadable(String),
    /// Every attempt ended with its server or host.
    Poisoned {
        /// The number of attempts.
        attempts: u32,
    },
    /// A bug of the host ended the call.
    Crashed,
    /// A rule that the machine must keep would have been broken, so the request was not sent. Names the rule.
    BrokenInvariant(&'static str),
    /// The caller's deadline passed.
    Expired,
    /// The rule's time limit passed.
    TimeLimit(String),
    /// The server did not answer within its time limit.
    Timeout,
    /// The caller stayed disconnected.
    CallerGone,
    /// Cancelled by an operator, or because the agent's credential was revoked.
    Cancelled(String),
    /// No approver decided in time.
    NotApproved,
    /// The rules have changed since the call was authorised, and now require an approval.
    NeedsApproval,
    /// The limit on calls is reached.
    TooManyCalls,
    /// The limit on tasks is reached.
    TooManyTasks {
        /// The limit.
        max: usize,
        /// Whether it is the limit of the agent, not of the host.
        of_agent: bool,
    },
    /// A rate limit is exceeded.
    RateLimited {
        /// The limit.
        kind: LimitKind,
        /// Its rate.
        rate: Rate,
        /// How long to wait.
        wait: Duration,
    },
    /// The circuit breaker refuses calls for this long.
    Tripped(Duration),
    /// The id was used for a call of this tool with other arguments.
    IdConflict {
        /// The tool.
        tool: String,
    },
    /// START could not be journaled; the call was not run.
    NotJournaled(Box<Rejected>),
    /// RESULT could not be journaled, so the answer must not be given.
    ResultNotJournaled(Box<Rejected>),
}

/// The journal's error, comparable by its text.
#[derive(Debug, Clone)]
pub struct Rejected(pub JournalError);

impl PartialEq for Rejected {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}
