//! Resumes tasks that an earlier host left unfinished. The call machine decides: a task that was not started runs; one
//! that was started runs again if it is replay-safe, and otherwise its outcome is reported as unknown.

use super::detached;
use crate::calls::{NewCall, ParsedCall};
use crate::failure;
use crate::host::Host;
use crate::outbox::Form;
use crate::session::SessionId;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_base::now_ms;
use toolbus_call::Origin;
use toolbus_journal::{CallKey, End, Finish, Journal, TaskRow, Wait};
use toolbus_mcp::{HostReply, HostRequest, Rpc, RpcError};
use toolbus_protocol::{AgentRef, Body, ErrorCode, InboxKind, InboxMessage, MsgId};

impl Host {
    /// Called before any message is received, so that redelivered requests find their task in progress. In the order of
    /// their acceptance, in which they also get their permits.
    pub fn resume_tasks(self: &Arc<Self>) {
        let rows = self.options.journal.unfinished_tasks();
        if !rows.is_empty() {
            tracing::info!(tasks = rows.len(), "resuming tasks of an earlier run");
        }
        for row in rows {
            if let Err(error) = self.resume(&row) {
                let journal = Arc::clone(&self.options.journal);
                self.tracker.spawn(fail(journal, row.manifest.key.clone(), error));
            }
        }
    }

    fn resume(self: &Arc<Self>, row: &TaskRow) -> Result<(), RpcError> {
        let (message, rpc) = message_of(&self.options.journal, row)?;
        let server = self.server(&rpc.server).map(Arc::clone).ok_or_else(|| failure::unknown_server(&rpc.server))?;
        let mut parsed = ParsedCall::new(&message, rpc, Form::Mcp);
        parsed.rpc = detached::without_client(parsed.rpc, &SessionId::of_task(&message.id))?;
        let new = NewCall { request: message, parsed, server, form: Form::Mcp, operator: None };
        let remaining = Duration::from_millis(row.manifest.expires_at().saturating_sub(now_ms()));
        let deadline = self.calls.millis(Instant::now() + remaining);
        let request = self.request_from(&new, Origin::Journal, Some(deadline));
        self.admit(request, new);
        Ok(())
    }
}

/// The original request of the task.
fn message_of(journal: &Journal, row: &TaskRow) -> Result<(Arc<InboxMessage>, Rpc), RpcError> {
    if row.manifest.expires_at() <= now_ms() {
        return Err(failure::bus(ErrorCode::Expired, "the task expired before it ran"));
    }
    let unreadable = |reason: String| {
        failure::bus(ErrorCode::JournalFailed, format!("cannot read the task from the journal: {reason}"))
    };
    let body = journal.request(&row.manifest.request).map_err(|error| unreadable(error.to_string()))?;
    let rpc = match HostRequest::parse(&*String::from_utf8_lossy(&body)) {
        Ok(HostRequest::Rpc(rpc)) => rpc,
        Ok(_) => return Err(unreadable("it is not a call".to_owned())),
        Err(error) => return Err(unreadable(error.to_string())),
    };
    let from = AgentRef::new(row.manifest.key.caller.clone());
    let from = match &row.manifest.role {
        Some(role) => from.with_role(role.clone()),
        None => from,
    };
    let mut message = InboxMessage::new(from, InboxKind::McpRequest, Body::from_trusted(body));
    message.id = MsgId::from(row.manifest.key.id.clone());
    Ok((Arc::new(message), rpc))
}

/// Ends a task that can't be given to the machine.
async fn fail(journal: Arc<Journal>, key: CallKey, error: RpcError) {
    tracing::warn!(id = &*key.id, %error, "could not resume a task");
    let reply = HostReply::Rpc(error.into()).to_json();
    let reply_id = MsgId::new().into_inner();
    let finish = Finish { key, reply_id, reply: reply.into_bytes(), end: End::Failed, at: now_ms() };
    if let Err(error) = journal.finish(finish, Wait::Synced).await {
        tracing::error!(%error, "could not journal the end of a task");
    }
}
