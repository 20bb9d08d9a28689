//! Tasks that an earlier host left unfinished. What was not begun runs; what was begun runs again if it may, and otherwise it
//! is said that nobody knows.

use super::RunningTask;
use crate::arrival::Arrival;
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

/// How long the next task waits for one that is slow to get its place, because its server starts or somebody has to approve it.
const LONGEST_TURN: Duration = Duration::from_secs(5);
/// How long a task waits that finds this host full of calls.
const ROOM_AGAIN_AFTER: Duration = Duration::from_millis(200);

impl Host {
    /// Before anything is received: whoever asks for a task finds it on its way.
    pub fn resume_tasks(self: &Arc<Self>) {
        let Some(journal) = self.options.journal.clone() else { return };
        let rows = journal.unfinished_tasks();
        if !rows.is_empty() {
            tracing::info!(tasks = rows.len(), "tasks of an earlier run are taken up");
        }
        let mut by_server: BTreeMap<String, Vec<Left>> = BTreeMap::new();
        for row in rows {
            let (message, rpc) = match message_of(&journal, &row) {
                Ok(message) => message,
                Err(error) => {
                    self.tasks.spawn(give_up(Arc::clone(&journal), row.manifest.key.clone(), error));
                    continue;
                }
            };
            let place = self.running.begin(Arc::clone(&message), self.options.limits.max_calls).ok();
            by_server.entry(rpc.server.clone()).or_default().push(Left { row, message, rpc, place });
        }
        for left in by_server.into_values() {
            self.tasks.spawn(Arc::clone(self).resume_in_order(left));
        }
    }

    /// Each follows when the one before has its place at the server, or takes long to get it.
    async fn resume_in_order(self: Arc<Self>, left: Vec<Left>) {
        for left in left {
            let in_line = CancellationToken::new();
            self.tasks.spawn(Arc::clone(&self).resume(left, in_line.clone()));
            tokio::time::timeout(LONGEST_TURN, in_line.cancelled()).await.ok();
        }
    }

    async fn resume(self: Arc<Self>, left: Left, in_line: CancellationToken) {
        let _over = in_line.clone().drop_guard();
        let Left { row, message, rpc, place } = left;
        let Some(caller) = self.place(&message, place).await else { return };
        let left = Duration::from_millis(row.manifest.expires_at().saturating_sub(now()));
        caller.cancel.expire_at(Instant::now() + left);
        let Some(journal) = self.options.journal.clone() else { return };
        let Some(server) = self.server(&rpc.server).map(Arc::clone) else {
            let record = kept(Record::new(journal, &caller, &rpc));
            return self.fail_task(&caller, &rpc, &record, End::Failed, failure::unknown_server(&rpc.server)).await;
        };
        let (record, decision) = match self.arrive(&caller, &server, &rpc, Form::Mcp) {
            Arrival::Run(Some(record)) => return self.run_again(caller, server, (rpc, record), in_line).await,
            Arrival::Run(None) => return,
            Arrival::Known(record, decision) => (kept(*record), decision),
        };
        match self.decision_about(&record, &server, decision) {
            Decision::Run { attempt } => {
                self.run_again(caller, server, (rpc, record.in_attempt(attempt)), in_line).await;
            }
            Decision::Unknown(start) => {
                let error = failure::outcome_unknown(&start);
                self.fail_task(&caller, &rpc, &record, End::Unknown, error).await;
            }
            Decision::Poisoned(start) => {
                let error = self.bury(&record, &start).await;
                self.fail_task(&caller, &rpc, &record, End::Failed, error).await;
            }
            Decision::Reply { .. } | Decision::AlreadyRunning | Decision::OtherContent { .. } => {
                self.running.finish(&caller);
            }
        }
    }

    /// An earlier host of this same process began it; that host is gone too.
    fn decision_about(&self, record: &Record, server: &Server, decision: Decision) -> Decision {
        match (decision, record.journal().look_up(&record.key, &record.content)) {
            (Decision::AlreadyRunning, Ok(Known::Running(start))) => {
                let replay = self.replay_of_call(server, record.named_tool(), start.safe);
                toolbus_journal::decide(Ok(Known::Interrupted(start)), replay, MAX_ATTEMPTS)
            }
            (decision, _) => decision,
        }
    }

    async fn place(&self, message: &Arc<InboxMessage>, place: Option<Caller>) -> Option<Caller> {
        if place.is_some() {
            return place;
        }
        loop {
            tokio::select! {
                () = tokio::time::sleep(ROOM_AGAIN_AFTER) => {}
                () = self.shutdown.cancelled() => return None,
            }
            // The message itself may have come again meanwhile, and was answered with what is known of the task.
            if let Ok(caller) = self.running.begin_again(Arc::clone(message), self.options.limits.max_calls) {
                return Some(caller);
            }
        }
    }

    /// Rules may have changed meanwhile, so it is decided about anew.
    async fn run_again(
        self: &Arc<Self>,
        caller: Caller,
        server: Arc<Server>,
        (rpc, record): (Rpc, Record),
        in_line: CancellationToken,
    ) {
        let spare = kept(Record::new(Arc::clone(record.journal()), &caller, &rpc));
        match self.job(&caller, &server, rpc.clone(), record) {
            Ok(mut job) => {
                job.in_line = in_line;
                RunningTask { job, permission: None }.run().await;
            }
            Err(error) => self.fail_task(&caller, &rpc, &spare, End::Failed, error).await,
        }
    }

    async fn fail_task(&self, caller: &Caller, rpc: &Rpc, record: &Record, end: End, error: RpcError) {
        let code = error.data.as_ref().and_then(|data| data["code"].as_str()).unwrap_or_default().to_owned();
        tracing::warn!(id = %caller.id(), tool = &*record.tool, code, "a task could not be taken up: {error}");
        let answer = Answer { body: Form::Mcp.error(&error), end, form: Form::Mcp };
        self.end_task(caller, record, answer).await;
        self.write_down(caller, rpc, code).await;
    }
}

/// A task that an earlier host left.
struct Left {
    row: TaskRow,
    message: Arc<InboxMessage>,
    rpc: Rpc,
    /// Among the calls of this host, unless there was no room.
    place: Option<Caller>,
}

fn kept(mut record: Record) -> Record {
    record.is_kept = true;
    record
}

/// The message that began the task, as it came.
fn message_of(journal: &Journal, row: &TaskRow) -> Result<(Arc<InboxMessage>, Rpc), RpcError> {
    if row.manifest.expires_at() <= now() {
        return Err(failure::bus(ErrorCode::Expired, "the task's time was over before it ran"));
    }
    let unreadable = |reason: String| {
        failure::bus(ErrorCode::JournalFailed, format!("the task can't be read from the journal: {reason}"))
    };
    let body = journal.request(&row.manifest.request).map_err(|error| unreadable(error.to_string()))?;
    let rpc = match HostRequest::parse(&String::from_utf8_lossy(&body)) {
        Ok(HostRequest::Rpc(rpc)) => rpc,
        Ok(_) => return Err(unreadable("it is no call".to_owned())),
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

async fn give_up(journal: Arc<Journal>, key: CallKey, error: RpcError) {
    let reply = HostReply::Rpc(error.into()).into_json();
    let reply_id = MsgId::new().into_inner();
    let finish = Finish { key, reply_id, reply: reply.into(), end: End::Failed, at: now() };
    if let Err(error) = journal.finish(finish, Wait::Synced).await {
        tracing::error!(%error, "the end of a task could not be written down");
    }
}
