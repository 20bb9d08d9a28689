//! Admin queries about tasks. An agent sees its own tasks of the tools that it may use now; an operator, all. A task that the
//! sender may not see gets the same error as one that doesn't exist.

use super::view::refused;
use crate::approvals::is_operator;
use crate::calls::Slot;
use crate::failure;
use crate::host::Host;
use std::sync::Arc;
use std::time::Duration;
use toolbus_base::now_ms;
use toolbus_call::{Cause, Event};
use toolbus_journal::{Known, TaskRow};
use toolbus_mcp::{AdminRequest, Outcome, RpcError, TaskList, TaskView, raw};
use toolbus_policy::{Arguments, Effect, Item, Question};
use toolbus_protocol::{AgentRef, ErrorCode, MsgId, principal_of};

/// Tasks per page of a list.
const PAGE_SIZE: usize = 100;
/// Maximum time of one wait; the client has to ask again.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Maximum concurrent waits, a quarter of them per agent; further ones return the current state immediately.
const MAX_WAITS: usize = 1024;
/// How long to wait for a cancelled task to end: a little longer than its server gets.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(3);

impl Host {
    /// Answers a query about tasks; `None` for other queries.
    pub async fn task_query(self: &Arc<Self>, from: &AgentRef, request: &AdminRequest) -> Option<Outcome> {
        let answer = match request {
            AdminRequest::TaskGet { id } => self.known_task(from, id).map(|task| without_answer(self.shown(task))),
            AdminRequest::TaskWait { id, limit_ms } => self.wait_for_task(from, id, *limit_ms).await,
            AdminRequest::TaskCancel { id } => self.cancel_task(from, id).await,
            AdminRequest::TaskList { after } => {
                return Some(Outcome::Result(raw(&self.list_tasks(from, after.as_deref()))));
            }
            _ => return None,
        };
        Some(answer.map_or_else(Outcome::from, |view| Outcome::Result(raw(&view))))
    }

    fn known_task(&self, from: &AgentRef, id: &str) -> Result<KnownTask, RpcError> {
        let agent = seen_agent(from);
        let row = self.options.journal.task(id, agent).filter(|row| row.manifest.expires_at() > now_ms());
        let row = row.filter(|row| self.may_see_task(from, row));
        if let Some(row) = row {
            return Ok(KnownTask::Written(row));
        }
        let refusal = self.task_memory.refusal(id).filter(|refusal| agent.is_none_or(|agent| agent == refusal.agent));
        let unknown = || failure::bus(ErrorCode::UnknownTask, format!("no task {id:?} at this host"));
        refusal.map(|refusal| KnownTask::Refused(Box::new(refused(refusal)))).ok_or_else(unknown)
    }

    fn shown(&self, task: KnownTask) -> TaskView {
        match task {
            KnownTask::Written(row) => self.answered_view(&row),
            KnownTask::Refused(view) => *view,
        }
    }

    async fn wait_for_task(&self, from: &AgentRef, id: &str, limit_ms: u64) -> Result<TaskView, RpcError> {
        let task = self.known_task(from, id);
        let limit = Duration::from_millis(limit_ms).min(MAX_WAIT);
        let is_over =
            matches!(&task, Ok(KnownTask::Refused(_)) | Ok(KnownTask::Written(TaskRow { ended_at: Some(_), .. })));
        let running = self.running_task(from, id).filter(|_| !is_over && !limit.is_zero());
        let (Some(running), Some(_waiting)) =
            (running, self.task_memory.wait_permit(principal_of(&from.session_id), MAX_WAITS))
        else {
            return task.map(|task| self.shown(task));
        };
        tokio::select! {
            () = running.ended.cancelled() => {}
            () = tokio::time::sleep(limit) => {}
            () = self.draining.cancelled() => {}
        }
        self.known_task(from, id).map(|task| self.shown(task))
    }

    async fn cancel_task(self: &Arc<Self>, from: &AgentRef, id: &str) -> Result<TaskView, RpcError> {
        // A task that is being accepted is not journaled yet, but can be cancelled.
        let Some(running) = self.running_task(from, id) else {
            let view = self.shown(self.known_task(from, id)?);
            let message = format!("the task {id} has ended");
            return if view.status.has_ended() { Err(failure::bus(ErrorCode::CallEnded, message)) } else { Ok(view) };
        };
        let by = principal_of(&from.session_id);
        tracing::info!(%id, by, "cancelling a task");
        let reason = Some(format!("the task was cancelled by {by}"));
        self.feed(Event::Cancel { call: running.no, cause: Cause::Caller, reason });
        tokio::time::timeout(CANCEL_TIMEOUT, running.ended.cancelled()).await.ok();
        self.known_task(from, id).map(|task| without_answer(self.shown(task)))
    }

    fn running_task(&self, from: &AgentRef, id: &str) -> Option<Arc<Slot>> {
        let agent = seen_agent(from);
        if self.options.journal.task(id, agent).is_some_and(|row| !self.may_see_task(from, &row)) {
            return None;
        }
        let is_seen = |slot: &Slot| agent.is_none_or(|agent| agent == slot.agent());
        self.calls.find(&MsgId::from(id), |slot| is_seen(slot) && slot.is_task()).map(|(_, slot)| slot)
    }

    /// Whether the rules allow the sender the tool of a task; its arguments are not considered, as in lists of tools. A task that
    /// has not started holds nothing of its tool, and its agent may see why it was refused.
    fn may_see_task(&self, from: &AgentRef, row: &TaskRow) -> bool {
        let has_started = match &row.known {
            Known::Answered { start, .. } => start.is_some(),
            Known::DeadLettered(_) | Known::Running(_) | Known::Interrupted(_) => true,
            Known::New | Known::Waiting(_) => false,
        };
        let (item, arguments) = (Item::Tool(&row.manifest.tool), Arguments::Unknown);
        let question = Question { role: from.role.as_deref(), server: &row.manifest.server, item, arguments };
        !has_started || is_operator(from) || self.options.policy.current().decide(&question).effect != Effect::Deny
    }

    /// Oldest first. A page starts after the cursor, even if the task at the cursor is gone.
    fn list_tasks(&self, from: &AgentRef, after: Option<&str>) -> TaskList {
        let (agent, now) = (seen_agent(from), now_ms());
        let after = after.and_then(Cursor::parse);
        let rows = self.options.journal.tasks();
        let shown = |row: &&TaskRow| {
            let own = agent.is_none_or(|agent| agent == row.manifest.key.agent());
            own && row.manifest.expires_at() > now
                && after.as_ref().is_none_or(|after| Cursor::of(row) > *after)
                && self.may_see_task(from, row)
        };
        let mut rows = rows.iter().filter(shown).peekable();
        let page: Vec<&TaskRow> = rows.by_ref().take(PAGE_SIZE).collect();
        let next = rows.peek().and_then(|_| page.last()).map(|last| Cursor::of(last).to_string());
        TaskList { tasks: page.into_iter().map(|row| self.view_of_task(row)).collect(), next }
    }
}

enum KnownTask {
    Written(TaskRow),
    Refused(Box<TaskView>),
}

/// A position in the list of tasks.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Cursor {
    at: u64,
    caller: String,
    id: String,
}

impl Cursor {
    fn of(row: &TaskRow) -> Self {
        let key = &row.manifest.key;
        Self { at: row.manifest.at, caller: key.caller.to_string(), id: key.id.to_string() }
    }

    fn parse(text: &str) -> Option<Self> {
        let (at, caller, id) = serde_json::from_str(text).ok()?;
        Some(Self { at, caller, id })
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(raw(&(self.at, &self.caller, &self.id)).get())
    }
}

/// `None` for an operator, who sees all agents.
fn seen_agent(from: &AgentRef) -> Option<&str> {
    (!is_operator(from)).then(|| principal_of(&from.session_id))
}

fn without_answer(view: TaskView) -> TaskView {
    TaskView { result: None, error: None, ..view }
}
