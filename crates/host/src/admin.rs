//! The admin API for calls and dead letters. An agent sees and changes its own; an operator, all.

use crate::approvals::is_operator;
use crate::calls::Slot;
use crate::failure;
use crate::host::Host;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use toolbus_call::{CallView, Cause, Event, Stage};
use toolbus_journal::{CallSummary, End, Stage as Written};
use toolbus_mcp::{AdminRequest, CallList, CallRow, CallState, Outcome, RpcError, raw};
use toolbus_protocol::{AgentRef, ErrorCode, InboxMessage, MsgId, principal_of};

/// Maximum rows of an answer; the rest is only counted.
pub const MAX_ROWS: usize = 1000;
/// Maximum concurrent queries, of which an agent has a share.
const MAX_QUERIES: usize = 256;
/// How long to wait for a cancelled call to end before it is reported as still running: a little longer than its server
/// gets.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

impl Host {
    /// Answers an admin query. The broker has authenticated its sender.
    pub async fn admin_query(self: &Arc<Self>, message: &InboxMessage, request: AdminRequest) -> Outcome {
        let viewer = Viewer(&message.from);
        // Waits for tasks have their own limit.
        let waits = matches!(request, AdminRequest::TaskWait { .. });
        let permit = (!waits).then(|| self.task_memory.query_permit(viewer.name(), MAX_QUERIES));
        if matches!(permit, Some(None)) {
            let message = format!("query limit reached ({MAX_QUERIES} at a time, of which each agent has a share)");
            return failure::bus(ErrorCode::TooManyCalls, message).into();
        }
        if let Some(outcome) = self.task_query(&message.from, &request).await {
            return outcome;
        }
        match request {
            AdminRequest::CallsList { ended } => Outcome::Result(raw(&self.list_calls(viewer, ended))),
            AdminRequest::CallsCancel { id } => answer(self.cancel_call(viewer, &id).await),
            AdminRequest::DeadList => Outcome::Result(raw(&self.list_dead_letters(viewer))),
            AdminRequest::DeadShow { id } => answer(self.show_dead_letter(viewer, &id)),
            AdminRequest::DeadDrop { id } => answer(self.drop_dead_letter(viewer, &id).await),
            AdminRequest::DeadRetry { id } => answer(self.retry_dead_letter(viewer, &id).await),
            other => failure::bus(ErrorCode::UnknownCall, format!("unsupported query: {other:?}")).into(),
        }
    }

    fn list_calls(&self, viewer: Viewer<'_>, ended: bool) -> CallList {
        let here = self.calls.views();
        let known: HashSet<&str> = here.iter().map(|(_, slot)| slot.id().as_str()).collect();
        let own = here.iter().filter(|(_, slot)| viewer.sees(slot.agent()));
        let mut calls: Vec<CallRow> = own.map(|(view, slot)| self.row(view, slot)).collect();
        let written = self.options.journal.calls();
        let elsewhere = written.iter().filter(|call| !known.contains(&*call.key.id) && viewer.sees(call.key.agent()));
        let wanted = elsewhere.filter(|call| ended || !has_ended(call));
        calls.extend(wanted.map(|call| written_row(call, toolbus_base::now_ms())));
        // Open calls first, and the oldest of them first.
        calls.sort_by_key(|row| (is_over(row.state), std::cmp::Reverse(row.age_ms), row.id.clone()));
        let more = calls.len().saturating_sub(MAX_ROWS) as u64;
        calls.truncate(MAX_ROWS);
        CallList { calls, more }
    }

    fn row(&self, view: &CallView, slot: &Slot) -> CallRow {
        let state = match view.stage {
            Stage::Waiting => CallState::Queued,
            Stage::Approval => CallState::WaitingForApproval,
            Stage::Running | Stage::Joined => CallState::Running,
        };
        let joiners = view.joiners;
        let note = match (view.stage, joiners) {
            (Stage::Joined, _) => Some("joined to an earlier call".to_owned()),
            (_, 1..) => Some(format!("{joiners} joined calls wait for it")),
            _ => view.is_task.then(|| "task".to_owned()),
        };
        CallRow {
            id: slot.id().to_string(),
            agent: slot.agent().to_owned(),
            server: Some(slot.server.name().to_owned()),
            tool: Some(slot.parsed.tool.to_string()),
            state,
            age_ms: u64::try_from(slot.received_at.elapsed().as_millis()).unwrap_or(u64::MAX),
            attempts: self.outbox.client().attempt_of(slot.id()).unwrap_or(1),
            note,
        }
    }

    async fn cancel_call(self: &Arc<Self>, viewer: Viewer<'_>, id: &str) -> Result<CallRow, RpcError> {
        let unknown = || failure::bus(ErrorCode::UnknownCall, format!("no call {id:?} at this host"));
        let Some((view, slot)) = self.calls.find(&MsgId::from(id), |slot| viewer.sees(slot.agent())) else {
            let call = self.written_call(viewer, id).ok_or_else(unknown)?;
            let ended = || failure::bus(ErrorCode::CallEnded, format!("call {id} has ended: {}", word(call.state)));
            return Err(ended());
        };
        tracing::info!(%id, by = viewer.name(), "cancelling a call");
        // A task has no caller that waits for a reply.
        let cause = if view.is_task { Cause::Caller } else { Cause::Admin };
        let mut row = self.row(&view, &slot);
        self.feed(Event::Cancel { call: view.call, cause, reason: Some(format!("cancelled by {}", viewer.name())) });
        if tokio::time::timeout(CANCEL_TIMEOUT, slot.ended.cancelled()).await.is_ok() {
            // The call may have ended in another way meanwhile.
            row.state = self.written_call(viewer, id).map_or(CallState::Cancelled, |call| call.state);
        }
        Ok(row)
    }

    fn written_call(&self, viewer: Viewer<'_>, id: &str) -> Option<CallRow> {
        let calls = self.options.journal.calls();
        let call = calls.iter().find(|call| &*call.key.id == id && viewer.sees(call.key.agent()))?;
        Some(written_row(call, toolbus_base::now_ms()))
    }
}

/// The sender of a query and what it may see.
#[derive(Clone, Copy)]
pub struct Viewer<'a>(&'a AgentRef);

impl Viewer<'_> {
    pub fn is_operator(self) -> bool {
        is_operator(self.0)
    }

    pub fn sees(self, agent: &str) -> bool {
        self.is_operator() || principal_of(&self.0.session_id) == agent
    }

    pub fn name(&self) -> &str {
        principal_of(&self.0.session_id)
    }
}

fn written_row(call: &CallSummary, now: u64) -> CallRow {
    let state = match call.stage {
        Written::Waiting => CallState::Queued,
        Written::Running => CallState::Running,
        Written::Interrupted | Written::Ended(End::Unknown) => CallState::Unknown,
        Written::Ended(End::Done) => CallState::Done,
        Written::Ended(End::Failed) | Written::DeadLettered => CallState::Failed,
        Written::Ended(End::Cancelled) => CallState::Cancelled,
    };
    let note = match &call.joined_to {
        Some(earlier) => Some(format!("joined to {}", earlier.id)),
        None if call.stage == Written::DeadLettered => Some("dead letter".to_owned()),
        None if call.stage == Written::Interrupted => Some("the host ended while it was running".to_owned()),
        None => call.is_task.then(|| "task".to_owned()),
    };
    CallRow {
        id: call.key.id.to_string(),
        agent: call.key.agent().to_owned(),
        server: Some(call.server.to_string()),
        tool: Some(call.tool.to_string()),
        state,
        age_ms: now.saturating_sub(call.began_at),
        attempts: call.attempts,
        note,
    }
}

fn has_ended(call: &CallSummary) -> bool {
    matches!(call.stage, Written::Ended(_) | Written::DeadLettered)
}

fn is_over(state: CallState) -> bool {
    !matches!(state, CallState::Queued | CallState::WaitingForApproval | CallState::Running)
}

fn word(state: CallState) -> &'static str {
    match state {
        CallState::Done => "it was answered",
        CallState::Failed => "it failed",
        CallState::Cancelled => "it was cancelled",
        CallState::Unknown => "whether it had an effect is unknown",
        CallState::Queued | CallState::WaitingForApproval | CallState::Running => {
            "it belongs to an earlier connection of the host"
        }
    }
}

fn answer(outcome: Result<impl serde::Serialize, RpcError>) -> Outcome {
    match outcome {
        Ok(view) => Outcome::Result(raw(&view)),
        Err(error) => error.into(),
    }
}
