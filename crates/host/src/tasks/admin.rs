//! What is asked about tasks. Whoever asks sees the tasks of its own agent, an operator all; what is not seen is unknown, in
//! the same words whether it is there or not.

use super::view::{may_be_task, refused};
use crate::approvals::is_operator;
use crate::caller::Caller;
use crate::failure;
use crate::host::Host;
use crate::journaled::now;
use std::time::Duration;
use toolbus_journal::TaskRow;
use toolbus_mcp::{AdminRequest, Outcome, RpcError, TaskList, TaskView, raw};
use toolbus_protocol::{AgentRef, ErrorCode, MsgId, principal_of};

/// Tasks on one page of a list.
const PAGE: usize = 100;
/// How long somebody waits at most before it has to ask again.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Who waits for tasks at the same time, a quarter of them of one agent; past it they are answered at once.
const MOST_WAITS: usize = 1024;
/// How long a task that is called off may take to end: a little more than its server is given.
const END_PATIENCE: Duration = Duration::from_secs(3);

impl Host {
    /// Answers a question about tasks; none if it is about something else.
    pub async fn at_task_admin(&self, from: &AgentRef, request: &AdminRequest) -> Option<Outcome> {
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
        let journal = self.options.journal.as_ref();
        let row = journal.and_then(|journal| journal.task(id, agent)).filter(|row| row.manifest.expires_at() > now());
        if let Some(row) = row {
            return Ok(KnownTask::Written(row));
        }
        let refusal = self.task_board.refusal(id).filter(|refusal| agent.is_none_or(|agent| agent == refusal.agent));
        let unknown = || failure::bus(ErrorCode::UnknownTask, format!("no task {id:?} is here"));
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
        let limit = Duration::from_millis(limit_ms).min(LONGEST_WAIT);
        let is_over =
            matches!(&task, Ok(KnownTask::Refused(_)) | Ok(KnownTask::Written(TaskRow { ended_at: Some(_), .. })));
        let running = self.running_task(from, id).filter(|_| !is_over && !limit.is_zero());
        let (Some(running), Some(_waiting)) =
            (running, self.task_board.waiting(principal_of(&from.session_id), MOST_WAITS))
        else {
            return task.map(|task| self.shown(task));
        };
        tokio::select! {
            () = running.progress.ended.cancelled() => {}
            () = tokio::time::sleep(limit) => {}
            () = self.shutdown.cancelled() => {}
        }
        self.known_task(from, id).map(|task| self.shown(task))
    }

    async fn cancel_task(&self, from: &AgentRef, id: &str) -> Result<TaskView, RpcError> {
        // One that is just being accepted is not written down yet, and can be called off all the same.
        let Some(running) = self.running_task(from, id) else {
            let view = self.shown(self.known_task(from, id)?);
            let message = format!("the task {id} has ended");
            return if view.status.has_ended() { Err(failure::bus(ErrorCode::CallEnded, message)) } else { Ok(view) };
        };
        let by = principal_of(&from.session_id);
        tracing::info!(%id, by, "a task is called off");
        running.cancel.fire(Some(format!("the task was cancelled by {by}")));
        tokio::time::timeout(END_PATIENCE, running.progress.ended.cancelled()).await.ok();
        self.known_task(from, id).map(|task| without_answer(self.shown(task)))
    }

    fn running_task(&self, from: &AgentRef, id: &str) -> Option<Caller> {
        let agent = seen_agent(from);
        let is_seen = |caller: &Caller| agent.is_none_or(|agent| agent == caller.agent());
        self.running.get(&MsgId::from(id), |caller| is_seen(caller) && may_be_task(caller))
    }

    /// Oldest first. A page goes on after the last task of the one before, whether that is still there or not.
    fn list_tasks(&self, from: &AgentRef, after: Option<&str>) -> TaskList {
        let (agent, now) = (seen_agent(from), now());
        let after = after.and_then(Mark::parse);
        let rows = self.options.journal.as_ref().map(|journal| journal.tasks()).unwrap_or_default();
        let shown = |row: &&TaskRow| {
            let own = agent.is_none_or(|agent| agent == row.manifest.key.agent());
            own && row.manifest.expires_at() > now && after.as_ref().is_none_or(|after| Mark::of(row) > *after)
        };
        let mut rows = rows.iter().filter(shown).peekable();
        let page: Vec<&TaskRow> = rows.by_ref().take(PAGE).collect();
        let next = rows.peek().and_then(|_| page.last()).map(|last| Mark::of(last).to_string());
        TaskList { tasks: page.into_iter().map(|row| self.view_of_task(row)).collect(), next }
    }
}

enum KnownTask {
    Written(TaskRow),
    Refused(Box<TaskView>),
}

/// A task's place in the order of all.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Mark {
    at: u64,
    caller: String,
    id: String,
}

impl Mark {
    fn of(row: &TaskRow) -> Self {
        let key = &row.manifest.key;
        Self { at: row.manifest.at, caller: key.caller.to_string(), id: key.id.to_string() }
    }

    fn parse(text: &str) -> Option<Self> {
        let (at, caller, id) = serde_json::from_str(text).ok()?;
        Some(Self { at, caller, id })
    }
}

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(raw(&(self.at, &self.caller, &self.id)).get())
    }
}

/// None for whoever sees all.
fn seen_agent(from: &AgentRef) -> Option<&str> {
    (!is_operator(from)).then(|| principal_of(&from.session_id))
}

fn without_answer(view: TaskView) -> TaskView {
    TaskView { result: None, error: None, ..view }
}
