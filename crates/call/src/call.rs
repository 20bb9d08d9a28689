//! The state of one call.

use crate::cancel::Cancelled;
use crate::circuit_breaker::{Entry, Health};
use crate::effect::Answer;
use crate::event::{AskNo, CallNo, Millis};
use crate::request::{Grant, Request};
use std::sync::Arc;
use toolbus_journal::{CallKey, Candidate, End, Replay, Start};

/// A call in progress.
#[derive(Debug)]
pub(crate) struct Call<A> {
    pub request: Request,
    pub state: State<A>,
    pub arrived: Millis,
    /// The current attempt, from 1.
    pub attempt: u32,
    /// The replay setting of the last START that may be in the journal.
    pub begun: Option<Replay>,
    /// START of the current attempt may be in the journal.
    pub attempt_begun: bool,
    /// START of the current attempt is as safe as it has to be: the request may be sent.
    pub may_send: bool,
    /// The journal knows the call already, or its answer will be queried: RESULT is written however it ends.
    pub always_journaled: bool,
    /// The task was accepted: it has no caller.
    pub accepted: bool,
    /// It is counted among the tasks that are being accepted.
    pub is_accepting: bool,
    pub approved: bool,
    pub grant: Grant,
    /// The rules have changed since the call was authorised to start.
    pub is_verdict_outdated: bool,
    /// When the time limits of rules began.
    pub limited_from: Millis,
    /// What happened to earlier attempts.
    pub history: Vec<String>,
    /// Connections that did not take the request in this attempt.
    pub not_taken: u32,
    pub cancelled: Option<Cancelled>,
    /// When the caller stops waiting; extended by calls that join.
    pub deadline: Option<Millis>,
    /// When the rule's time limit is over, and its name.
    pub limit: Option<(Millis, String)>,
    /// When its caller is followed.
    pub follow_at: Option<Millis>,
    /// When it is cancelled because its caller stayed disconnected.
    pub orphaned_at: Option<Millis>,
    /// When the wait of the current state is over.
    pub wait_until: Option<Millis>,
    /// The time for which this call is in the timers.
    pub timer: Option<Millis>,
    /// The pass of the circuit breaker that this call holds.
    pub entry: Option<Entry>,
    /// The caller of the earlier equal call was absent long enough.
    pub waited_for_absence: bool,
    /// It has waited for an earlier equal call in progress.
    pub was_joined: bool,
    /// What its end says about the server.
    pub health: Health,
    pub replay: Replay,
}

/// What a call waits for. The table of transitions is in ARCHITECTURE.md.
#[derive(Debug)]
pub(crate) enum State<A> {
    /// The policy's decision.
    Authorising,
    /// The sync of the task's entry.
    Accepting,
    /// The broker's answer about the callers of an earlier equal call.
    AskingToJoin { ask: AskNo, about: About },
    /// The receipt of the reply to an earlier equal call, before which the broker can't be asked about it.
    AwaitingReceipt { of: CallKey },
    /// The reconnect of the caller of an earlier equal call.
    AwaitingAbsence,
    /// The end of an earlier equal call.
    Joined { to: CallNo },
    /// The answer of an earlier call is being read.
    ReadingAnswer { earlier: Box<Earlier> },
    /// The broker's report that the caller of a request that was queued for long is connected.
    AwaitingCaller,
    /// An approver.
    Parked,
    /// Permits of a task's share.
    TaskShare,
    /// A session slot.
    Reserving,
    /// Its predecessors in the session.
    Ordered,
    /// Permits.
    Queued,
    /// The connection to the server.
    Connecting,
    /// The policy's decision right before START.
    Rechecking,
    /// The sync of START.
    Starting,
    /// Its predecessors in the session to be sent.
    Ready,
    /// The connection to take the request.
    Sending,
    /// The server's answer.
    Running,
    /// The server's answer to the cancel.
    Cancelling,
    /// The sync of the dead letter.
    DeadLettering,
    /// The sync of RESULT.
    Finishing { answer: Answer<A>, end: End },
}

/// The earlier equal call that a question to the broker is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum About {
    /// It is in progress at this host.
    Running(CallNo),
    /// Only the journal knows it.
    Ended(Box<Candidate>),
}

/// An answered call that another one joins.
#[derive(Debug, Clone)]
pub(crate) struct Earlier {
    pub key: CallKey,
    pub start: Option<Arc<Start>>,
    pub end: End,
}

/// What a call waits for, as shown to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// For its predecessors, a permit, the policy or its server.
    Waiting,
    /// For approval.
    Approval,
    /// Sent to the server.
    Running,
    /// For an earlier call's answer.
    Joined,
}

impl<A> Call<A> {
    pub fn new(request: Request, now: Millis) -> Self {
        Self {
            state: State::Authorising,
            arrived: now,
            attempt: 1,
            begun: None,
            attempt_begun: false,
            may_send: false,
            always_journaled: false,
            accepted: false,
            is_accepting: false,
            approved: false,
            grant: Grant::default(),
            is_verdict_outdated: false,
            limited_from: now,
            history: Vec::new(),
            not_taken: 0,
            cancelled: None,
            deadline: request.deadline,
            limit: None,
            follow_at: None,
            orphaned_at: None,
            wait_until: None,
            timer: None,
            entry: None,
            waited_for_absence: false,
            was_joined: false,
            health: Health::Unclear,
            replay: Replay::Never,
            request,
        }
    }

    /// Applies the time limit of the current grant.
    pub fn set_time_limit(&mut self) {
        let limit = self.grant.time_limit.clone();
        self.limit = limit.map(|(time, which)| (self.limited_from.saturating_add(time), which));
    }

    /// Whether the server may have received the request, in this attempt or an earlier one.
    pub fn is_begun(&self) -> bool {
        self.begun.is_some()
    }

    pub fn stage(&self) -> Stage {
        match self.state {
            State::Joined { .. } | State::AwaitingAbsence | State::AwaitingReceipt { .. } => Stage::Joined,
            State::Parked => Stage::Approval,
            State::Sending | State::Running | State::Cancelling | State::Finishing { .. } | State::DeadLettering => {
                Stage::Running
            }
            _ => Stage::Waiting,
        }
    }

    /// When the machine has to look at this call again.
    pub fn next_time(&self) -> Option<Millis> {
        let ends = match (&self.state, &self.cancelled) {
            // Only the journal is awaited, which reports every failure.
            (State::Finishing { .. } | State::DeadLettering | State::Starting | State::Accepting, _) => None,
            (_, Some(_)) => None,
            _ => {
                let limit = self.limit.as_ref().map(|(at, _)| *at);
                [self.deadline, limit, self.follow_at, self.orphaned_at].into_iter().flatten().min()
            }
        };
        ends.into_iter().chain(self.wait_until).min()
    }
}
