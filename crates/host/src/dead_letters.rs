//! The host's dead letters: calls whose server or host ended at every attempt. An operator inspects them and retries or
//! drops each.

use crate::admin::{MAX_ROWS, Viewer};
use crate::failure;
use crate::host::Host;
use std::sync::Arc;
use toolbus_journal::{DeadLetterRow, Journal};
use toolbus_mcp::{DeadLetter, DeadList, HostRequest, Raw, Rpc, RpcError, TaskView, TaskWish};
use toolbus_protocol::{AgentRef, Body, ErrorCode, InboxKind, InboxMessage, MsgId};

impl Host {
    pub(crate) fn list_dead_letters(&self, viewer: Viewer<'_>) -> DeadList {
        let all = self.options.journal.dead_letters();
        let own: Vec<&Arc<DeadLetterRow>> = all.iter().filter(|letter| viewer.sees(letter.key.agent())).collect();
        let letters = own.iter().take(MAX_ROWS).map(|letter| view(letter, None)).collect();
        DeadList { letters, more: own.len().saturating_sub(MAX_ROWS) as u64 }
    }

    pub(crate) fn show_dead_letter(&self, viewer: Viewer<'_>, id: &str) -> Result<DeadLetter, RpcError> {
        let (journal, letter) = self.find_dead_letter(viewer, id)?;
        Ok(view(&letter, request(journal, &letter)?.params))
    }

    pub(crate) async fn drop_dead_letter(&self, viewer: Viewer<'_>, id: &str) -> Result<DeadLetter, RpcError> {
        let (journal, letter) = self.find_dead_letter(viewer, id)?;
        require_operator(viewer)?;
        journal.drop_dead_letter(&letter.key).await.map_err(|error| not_written(&error))?;
        tracing::info!(%id, by = viewer.name(), "a dead letter was dropped");
        Ok(view(&letter, None))
    }

    /// Runs the call again as a task of its caller's agent, which replaces the dead letter. Idempotent: repeated
    /// requests return the same task.
    pub(crate) async fn retry_dead_letter(
        self: &Arc<Self>,
        viewer: Viewer<'_>,
        id: &str,
    ) -> Result<TaskView, RpcError> {
        let _alone = self.retrying.lock().await;
        let found = self.find_dead_letter(viewer, id);
        if let Err(refused) = require_operator(viewer) {
            return found.and(Err(refused));
        }
        let again = format!("{id}.again");
        if let Some(task) = self.retried(&again, found.as_ref().ok().map(|(_, letter)| letter.key.agent())) {
            // The host may have ended after it started the task and before it dropped the dead letter.
            if let Ok((journal, letter)) = found {
                self.drop_retried(journal, &letter).await;
            }
            return Ok(task);
        }
        let (journal, letter) = found?;
        let rpc = Rpc { task: Some(TaskWish::default()), ..request(journal, &letter)? };
        let body = Body::from_trusted(HostRequest::Rpc(rpc.clone()).to_json().into_bytes());
        let from = AgentRef { session_id: letter.key.caller.clone(), role: letter.role.clone() };
        let mut message = InboxMessage::new(from, InboxKind::McpRequest, body);
        message.id = MsgId::from(again);
        let task = self.begin_task_for(message, rpc).await?;
        tracing::info!(%id, task = task.id, by = viewer.name(), "retrying a dead letter as a task");
        self.drop_retried(journal, &letter).await;
        Ok(task)
    }

    fn retried(&self, task: &str, agent: Option<&str>) -> Option<TaskView> {
        let row = self.options.journal.task(task, agent)?;
        Some(self.view_of_task(&row))
    }

    async fn drop_retried(&self, journal: &Journal, letter: &DeadLetterRow) {
        if let Err(error) = journal.drop_dead_letter(&letter.key).await {
            self.journal_failed(&error);
        }
    }

    fn find_dead_letter(&self, viewer: Viewer<'_>, id: &str) -> Result<(&Arc<Journal>, Arc<DeadLetterRow>), RpcError> {
        let journal = &self.options.journal;
        let letter = journal.dead_letter_by_id(id).filter(|letter| viewer.sees(letter.key.agent()));
        letter.map(|letter| (journal, letter)).ok_or_else(|| unknown(id))
    }
}

/// A dead letter is retried with its sender's rights, which may have changed since; therefore only operators may do so.
fn require_operator(viewer: Viewer<'_>) -> Result<(), RpcError> {
    let message = "only an operator may retry or drop a dead letter";
    if viewer.is_operator() { Ok(()) } else { Err(failure::bus(ErrorCode::NotAllowed, message)) }
}

fn unknown(id: &str) -> RpcError {
    failure::bus(ErrorCode::UnknownCall, format!("no dead letter {id:?} at this host"))
}

/// The original request.
fn request(journal: &Journal, letter: &DeadLetterRow) -> Result<Rpc, RpcError> {
    let unreadable = |reason: String| {
        let message = format!("the dead letter {:?} can't be read: {reason}", letter.key.id);
        failure::bus(ErrorCode::JournalFailed, message)
    };
    let body = journal.request(&letter.request).map_err(|error| unreadable(error.to_string()))?;
    match HostRequest::parse(&*String::from_utf8_lossy(&body)) {
        Ok(HostRequest::Rpc(rpc)) => Ok(rpc),
        Ok(_) => Err(unreadable("it is not a call".to_owned())),
        Err(error) => Err(unreadable(error.to_string())),
    }
}

fn view(letter: &DeadLetterRow, params: Option<Raw>) -> DeadLetter {
    DeadLetter {
        id: letter.key.id.to_string(),
        agent: letter.key.agent().to_owned(),
        server: letter.server.to_string(),
        tool: letter.tool.to_string(),
        attempts: letter.attempts,
        at_ms: letter.at,
        story: letter.story.clone(),
        params,
    }
}

fn not_written(error: &toolbus_journal::JournalError) -> RpcError {
    failure::bus(ErrorCode::JournalFailed, format!("the journal can't be written: {error}"))
}
