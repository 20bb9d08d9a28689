//! Resumes tasks that an earlier host left unfinished. A task that was not started runs; one that was started runs
//! again if it is replay-safe, and otherwise its outcome is reported as unknown.

use super::RunningTask;
use crate::admission::Admission;
use crate::caller::Caller;
use crate::failure;
use crate::host::Host;
use crate::journaled::{MAX_ATTEMPTS, Record, now};
use crate::outbox::{Answer, Form};
use crate::server::Server;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolbus_journal::{CallKey, Decision, End, Finish, Journal, Known, TaskRow, Wait};
use toolbus_mcp::{HostReply, HostRequest, Rpc, RpcError};
use toolbus_protocol::{AgentRef, Body, ErrorCode, InboxKind, InboxMessage, MsgId};

/// How long the next task waits for a slow predecessor, whose server is starting or which waits for approval.
const MAX_QUEUE_WAIT: Duration = Duration::from_secs(5);
/// Retry interval while the host has reached its call limit.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

impl Host {
    /// Called before any message is received, so that redelivered requests find their task registered.
    pub fn resume_tasks(self: &Arc<Self>) {
        let Some(journal) = self.options.journal.clone() else { return };
        let rows = journal.unfinished_tasks();
        if !rows.is_empty() {
            tracing::info!(tasks = rows.len(), "resuming tasks of an earlier run");
        }
        let mut by_server: BTreeMap<String, Vec<Unfinished>> = BTreeMap::new();
        for row in rows {
            let (message, rpc) = match message_of(&journal, &row) {
                Ok(message) => message,
                Err(error) => {
                    self.tracker.spawn(fail_unreadable(Arc::clone(&journal), row.manifest.key.clone(), error));
                    continue;
                }
            };
            let caller = self.running.begin(Arc::clone(&message), self.options.limits.max_calls).ok();
            by_server.entry(rpc.server.clone()).or_default().push(Unfinished { row, message, rpc, caller });
        }
        for unfinished in by_server.into_values() {
            self.tracker.spawn(Arc::clone(self).resume_in_order(unfinished));
        }
    }

    /// Starts each task once its predecessor is queued at the server, or has taken too long.
    async fn resume_in_order(self: Arc<Self>, unfinished: Vec<Unfinished>) {
        for unfinished in unfinished {
            let queued = CancellationToken::new();
            self.tracker.spawn(Arc::clone(&self).resume(unfinished, queued.clone()));
            tokio::time::timeout(MAX_QUEUE_WAIT, queued.cancelled()).await.ok();
        }
    }

    async fn resume(self: Arc<Self>, unfinished: Unfinished, queued: CancellationToken) {
        let _over = queued.clone().drop_guard();
        let Unfinished { row, message, rpc, caller } = unfinished;
        let Some(caller) = self.wait_for_room(&message, caller).await else { return };
        let remaining = Duration::from_millis(row.manifest.expires_at().saturating_sub(now()));
        caller.cancel.expire_at(Instant::now() + remaining);
        let Some(journal) = self.options.journal.clone() else { return };
        let Some(server) = self.server(&rpc.server).map(Arc::clone) else {
            let record = always_journaled(Record::new(journal, &caller, &rpc));
            return self.fail_task(&caller, &rpc, &record, End::Failed, failure::unknown_server(&rpc.server)).await;
        };
        let (record, decision) = match self.admit(&caller, &server, &rpc, Form::Mcp) {
            Admission::Run(Some(record)) => return self.run_resumed(caller, server, (rpc, record), queued).await,
            Admission::Run(None) => return,
            Admission::Known(record, decision) => (always_journaled(*record), decision),
        };
        match self.decision_about(&record, &server, decision) {
            Decision::Run { attempt } => {
                self.run_resumed(caller, server, (rpc, record.in_attempt(attempt)), queued).await;
            }
            Decision::Unknown(start) => {
                let error = failure::outcome_unknown(&start);
                self.fail_task(&caller, &rpc, &record, End::Unknown, error).await;
            }
            Decision::Poisoned(start) => {
                let error = self.dead_letter(&record, &start).await;
                self.fail_task(&caller, &rpc, &record, End::Failed, error).await;
            }
            Decision::Reply { .. } | Decision::AlreadyRunning | Decision::OtherContent { .. } => {
                self.running.finish(&caller);
            }
        }
    }

    /// A task that is still marked as running was started by an earlier host of this process, which has ended.
    fn decision_about(&self, record: &Record, server: &Server, decision: Decision) -> Decision {
        match (decision, record.journal().look_up(&record.key, &record.content)) {
            (Decision::AlreadyRunning, Ok(Known::Running(start))) => {
                let replay = self.replay_of_call(server, record.named_tool(), start.safe);
                toolbus_journal::decide(Ok(Known::Interrupted(start)), replay, MAX_ATTEMPTS)
            }
            (decision, _) => decision,
        }
    }

    async fn wait_for_room(&self, message: &Arc<InboxMessage>, caller: Option<Caller>) -> Option<Caller> {
        if caller.is_some() {
            return caller;
        }
        loop {
            tokio::select! {
                () = tokio::time::sleep(RETRY_INTERVAL) => {}
                () = self.shutdown.cancelled() => return None,
            }
            // `begin_again`, because a redelivery may have been answered with the task's state meanwhile.
            if let Ok(caller) = self.running.begin_again(Arc::clone(message), self.options.limits.max_calls) {
                return Some(caller);
            }
        }
    }

    /// Authorises the task again, because the policy may have changed.
    async fn run_resumed(
        self: &Arc<Self>,
        caller: Caller,
        server: Arc<Server>,
        (rpc, record): (Rpc, Record),
        queued: CancellationToken,
    ) {
        let spare = always_journaled(Record::new(Arc::clone(record.journal()), &caller, &rpc));
        match self.task_job(&caller, &server, rpc.clone(), record) {
            Ok(mut job) => {
                job.queued = queued;
                RunningTask { job, permission: None }.run().await;
            }
            Err(error) => self.fail_task(&caller, &rpc, &spare, End::Failed, error).await,
        }
    }

    async fn fail_task(&self, caller: &Caller, rpc: &Rpc, record: &Record, end: End, error: RpcError) {
        let code = error.data.as_ref().and_then(|data| data["code"].as_str()).unwrap_or_default().to_owned();
        tracing::warn!(id = %caller.id(), tool = &*record.tool, code, "could not resume a task: {error}");
        let answer = Answer { body: Form::Mcp.error(&error), end, form: Form::Mcp };
        self.end_task(caller, record, answer).await;
        self.audit_outcome(caller, rpc, code).await;
    }
}

/// A task that an earlier host left unfinished.
struct Unfinished {
    row: TaskRow,
    message: Arc<InboxMessage>,
    rpc: Rpc,
    /// Its registration as a running call, unless the host had reached its call limit.
    caller: Option<Caller>,
}

fn always_journaled(mut record: Record) -> Record {
    record.always_journaled = true;
    record
}

/// The original request of the task.
fn message_of(journal: &Journal, row: &TaskRow) -> Result<(Arc<InboxMessage>, Rpc), RpcError> {
    if row.manifest.expires_at() <= now() {
        return Err(failure::bus(ErrorCode::Expired, "the task expired before it ran"));
    }
    let unreadable = |reason: String| {
        failure::bus(ErrorCode::JournalFailed, format!("cannot read the task from the journal: {reason}"))
    };
    let body = journal.request(&row.manifest.request).map_err(|error| unreadable(error.to_string()))?;
    let rpc = match HostRequest::parse(&String::from_utf8_lossy(&body)) {
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

async fn fail_unreadable(journal: Arc<Journal>, key: CallKey, error: RpcError) {
    let reply = HostReply::Rpc(error.into()).into_json();
    let reply_id = MsgId::new().into_inner();
    let finish = Finish { key, reply_id, reply: reply.into(), end: End::Failed, at: now() };
    if let Err(error) = journal.finish(finish, Wait::Synced).await {
        tracing::error!(%error, "could not journal the end of a task");
    }
}
