//! The view of a task, from the journal and its last progress.

use super::memory::Refusal;
use crate::failure;
use crate::host::Host;
use toolbus_call::Stage;
use toolbus_journal::{End, Known, Location, TaskRow};
use toolbus_mcp::{HostReply, Outcome, RpcError, TaskStatus, TaskView, TaskWish};
use toolbus_protocol::{ErrorCode, MsgId};

impl Host {
    /// Without its answer. A tool that reported an error counts as failed.
    pub fn view_of_task(&self, row: &TaskRow) -> TaskView {
        let manifest = &row.manifest;
        let id = MsgId::from(manifest.key.id.clone());
        let (status, began) = match &row.known {
            Known::Answered { end: End::Done, start, .. } => (TaskStatus::Completed, start.as_ref()),
            Known::Answered { end: End::Cancelled, start, .. } => (TaskStatus::Cancelled, start.as_ref()),
            Known::Answered { start, .. } => (TaskStatus::Failed, start.as_ref()),
            Known::DeadLettered(start) => (TaskStatus::Failed, Some(start)),
            Known::Running(start) | Known::Interrupted(start) => (TaskStatus::Working, Some(start)),
            Known::New | Known::Waiting(_) => (TaskStatus::Working, None),
        };
        let progress = self.task_memory.progress(&id).filter(|_| !status.has_ended());
        let message =
            progress.as_ref().map(|progress| progress.message.clone()).or_else(|| self.stage_of_task(&id, status));
        let began_at = began.map_or(manifest.at, |start| start.at);
        TaskView {
            id: manifest.key.id.to_string(),
            agent: manifest.key.agent().to_owned(),
            server: manifest.server.to_string(),
            tool: manifest.tool.to_string(),
            status,
            message,
            created_ms: manifest.at,
            updated_ms: row.ended_at.or(progress.map(|progress| progress.at)).unwrap_or(began_at).max(manifest.at),
            ttl_ms: manifest.ttl_ms,
            tool_failed: false,
            result: None,
            error: None,
        }
    }

    /// With its answer, if there is one.
    pub fn answered_view(&self, row: &TaskRow) -> TaskView {
        let view = self.view_of_task(row);
        let Known::Answered { end, reply, .. } = &row.known else { return view };
        match self.read_answer(reply) {
            Ok(HostReply::Rpc(Outcome::Result(result))) => {
                let (status, tool_failed) = (TaskStatus::Completed, *end == End::Failed);
                let message = tool_failed.then(|| "the tool reported an error".to_owned());
                TaskView { status, tool_failed, message, result: Some(result), ..view }
            }
            Ok(HostReply::Rpc(Outcome::Error(error))) => {
                let message_text = serde_json::from_str::<RpcError>(error.get()).ok().map(|error| error.message);
                TaskView { status: TaskStatus::Failed, message: message_text, error: Some(error), ..view }
            }
            Ok(HostReply::Cancelled | HostReply::HandedBack | HostReply::Task(_)) => view,
            Err(error) => TaskView { status: TaskStatus::Failed, error: Some(error.to_raw()), ..view },
        }
    }

    fn read_answer(&self, location: &Location) -> Result<HostReply, RpcError> {
        let unreadable = |reason: String| {
            failure::bus(
                ErrorCode::OutcomeUnknown,
                format!("the task was answered, but the answer is unreadable: {reason}"),
            )
        };
        let body = self.options.journal.reply(location).map_err(|error| unreadable(error.to_string()))?;
        HostReply::parse(&*String::from_utf8_lossy(&body)).map_err(|error| unreadable(error.to_string()))
    }

    fn stage_of_task(&self, id: &MsgId, status: TaskStatus) -> Option<String> {
        if status.has_ended() {
            return None;
        }
        let stage = match self.calls.find(id, |slot| slot.is_task())?.0.stage {
            Stage::Waiting => "queued",
            Stage::Approval => "waiting for approval",
            Stage::Running | Stage::Joined => "running",
        };
        Some(stage.to_owned())
    }
}

/// A task that was refused before it started, for a caller whose worker had accepted it.
pub fn refused(refusal: Refusal) -> TaskView {
    TaskView {
        id: refusal.id.to_string(),
        message: Some(refusal.error.message.clone()),
        agent: refusal.agent,
        server: String::new(),
        tool: String::new(),
        status: TaskStatus::Failed,
        created_ms: refusal.at,
        updated_ms: refusal.at,
        ttl_ms: TaskWish::DEFAULT_TTL_MS,
        tool_failed: false,
        result: None,
        error: Some(refusal.error.to_raw()),
    }
}
