//! Tasks: calls that run without their caller. A task is authorised like any call, journaled before its caller gets the
//! task handle, and then runs whether or not its caller is connected. Its answer stays in the journal until the task
//! expires.
//!
//! A task has its own session at its server, because it outlives its caller's. No client answers requests of the
//! server, so none of these capabilities are announced.

mod admin;
mod detached;
mod memory;
mod permits;
mod resume;
mod view;

pub use memory::TaskMemory;
pub use permits::TaskPermits;

use crate::admission::Admission;
use crate::caller::Caller;
use crate::calls::{Job, NoAnswer, Permission, Stop};
use crate::failure;
use crate::host::Host;
use crate::journaled::{Record, now};
use crate::outbox::{Answer, Form};
use crate::running::Refused;
use crate::server::Server;
use crate::session::SessionId;
use bytestring::ByteString;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_journal::{End, JournalError, Task};
use toolbus_mcp::{HostReply, Members, Outcome, Rpc, RpcError, TaskView};
use toolbus_protocol::{ErrorCode, InboxMessage};

impl Host {
    /// Starts a task. It is registered as running at once, so that it can be cancelled.
    pub async fn begin_task(self: &Arc<Self>, message: Arc<InboxMessage>, rpc: Rpc) {
        let caller = match self.running.begin(Arc::clone(&message), self.options.limits.max_calls) {
            Ok(caller) => caller,
            // An earlier host may have ended after it journaled the task and before it replied.
            Err(Refused::Running | Refused::Finished) => return self.resend_task(&message).await,
            Err(Refused::TooMany) => {
                let max = self.options.limits.max_calls;
                let error =
                    failure::bus(ErrorCode::TooManyCalls, format!("call limit reached ({max} calls at this host)"));
                self.running.mark_finished(&message);
                return self.outbox.reply(&message, &HostReply::Rpc(error.into())).await;
            }
        };
        let host = Arc::clone(self);
        self.tracker.spawn(async move { host.admit_task(caller, rpc).await });
    }

    async fn admit_task(self: Arc<Self>, caller: Caller, rpc: Rpc) {
        // The task was journaled, but its reply was lost when the host ended.
        if self.is_known_task(&caller) {
            self.resend_task(&caller.request).await;
            return self.running.finish(&caller);
        }
        let Some(server) = self.server(&rpc.server).map(Arc::clone) else {
            return self.refuse_task(&caller, failure::unknown_server(&rpc.server).into()).await;
        };
        let record = match self.admit(&caller, &server, &rpc, Form::Mcp) {
            Admission::Run(Some(record)) => record,
            Admission::Run(None) => return self.refuse_task(&caller, no_tasks(&rpc).into()).await,
            Admission::Known(record, decision) => {
                return self.answer_known(caller, server, rpc, Form::Mcp, (record, decision)).await;
            }
        };
        match self.accept(&caller, &server, rpc, record).await {
            Ok((task, view)) => {
                self.outbox.reply(&caller.request, &HostReply::Task(view)).await;
                task.run().await;
            }
            Err(Stop::With(outcome)) => self.refuse_task(&caller, outcome).await,
            Err(Stop::Unknown(error)) => self.refuse_task(&caller, error.into()).await,
            Err(Stop::Cancelled) => self.reply(&caller, &HostReply::Cancelled).await,
            // The request stays in the mailbox.
            Err(Stop::HandedOver) => {}
        }
    }

    /// Authorises and journals a task. A returned task must run to its end.
    async fn accept(
        self: &Arc<Self>,
        caller: &Caller,
        server: &Arc<Server>,
        rpc: Rpc,
        record: Record,
    ) -> Result<(RunningTask, TaskView), Stop> {
        let wish = rpc.task.unwrap_or_default();
        let task = Task {
            key: record.key.clone(),
            server: record.server.clone(),
            tool: record.tool.clone(),
            content: record.content,
            request: caller.request.body.as_bytes().clone(),
            role: caller.role().map(ByteString::from),
            ttl_ms: wish.granted_ttl_ms(),
            at: now(),
        };
        let job = self.task_job(caller, server, rpc, record)?;
        let session = job.session_id();
        let journaled = self.journal_task(job, task).await;
        if journaled.is_err() {
            server.close_session(&session).await;
        }
        journaled
    }

    async fn journal_task(&self, mut job: Job, task: Task) -> Result<(RunningTask, TaskView), Stop> {
        let (caller, time) = (job.caller.clone(), Duration::from_millis(task.ttl_ms));
        let permission = job.permission().await?;
        let _reservation = self.reserve_task(caller.agent())?;
        let journal = self.options.journal.as_ref().ok_or_else(|| no_tasks(&job.rpc))?;
        journal.accept(task).await.map_err(|error| match error {
            JournalError::TooManyTasks { .. } => failure::bus(ErrorCode::TooManyTasks, error.to_string()),
            error => {
                self.journal_failed(&error);
                failure::not_journaled(&error)
            }
        })?;
        caller.cancel.expire_at(Instant::now() + time);
        let row = journal.task(caller.id().as_str(), Some(caller.agent()));
        let view = row.map(|row| self.view_of_task(&row)).ok_or_else(|| no_tasks(&job.rpc))?;
        Ok((RunningTask { job, permission: Some(permission) }, view))
    }

    /// The call of a task, in its own session and without a client.
    fn task_job(
        self: &Arc<Self>,
        caller: &Caller,
        server: &Arc<Server>,
        rpc: Rpc,
        mut record: Record,
    ) -> Result<Job, RpcError> {
        // The outcome will be queried, however the task ends.
        record.always_journaled = true;
        let rpc = detached::without_client(rpc, &SessionId::of_task(caller.id()))?;
        Job::begin(self, caller.clone(), Arc::clone(server), rpc, Some(record))
    }

    /// Reserves room for one more task until it is journaled.
    fn reserve_task(&self, agent: &str) -> Result<memory::Reservation<'_>, RpcError> {
        let limits = &self.options.limits;
        let journal = self.options.journal.as_ref();
        let count = |agent| journal.map_or(0, |journal| journal.count_tasks(agent, now()));
        let reservation = self.task_memory.reserve(agent);
        let full = |of: &str, max: usize| {
            failure::bus(ErrorCode::TooManyTasks, format!("task limit reached ({max} tasks of {of} at this host)"))
        };
        if count(Some(agent)) + reservation.of_agent > limits.max_tasks_per_agent {
            return Err(full(&format!("agent '{agent}'"), limits.max_tasks_per_agent));
        }
        if count(None) + reservation.of_all > limits.max_tasks {
            return Err(full("all agents", limits.max_tasks));
        }
        Ok(reservation)
    }

    /// Refuses a task. Its worker may have accepted it while this host was away, so the refusal is remembered for
    /// queries.
    async fn refuse_task(&self, caller: &Caller, outcome: Outcome) {
        if let Outcome::Error(error) = &outcome {
            self.task_memory.note_refusal(caller.id(), caller.agent(), error.clone());
        }
        self.reply(caller, &HostReply::Rpc(outcome)).await;
    }

    fn is_known_task(&self, caller: &Caller) -> bool {
        let journal = self.options.journal.as_ref();
        journal.is_some_and(|journal| journal.task(caller.id().as_str(), Some(caller.agent())).is_some())
    }

    /// Replies with the current state of the task.
    async fn resend_task(&self, message: &InboxMessage) {
        let agent = toolbus_protocol::principal_of(&message.from.session_id);
        let row = self.options.journal.as_ref().and_then(|journal| journal.task(message.id.as_str(), Some(agent)));
        // Otherwise the task is being accepted or was refused, and its reply is on the way.
        if let Some(row) = row {
            self.outbox.reply(message, &HostReply::Task(self.view_of_task(&row))).await;
        }
    }

    /// Starts a task on behalf of another agent. Returns once it is journaled.
    pub async fn begin_task_for(self: &Arc<Self>, message: InboxMessage, rpc: Rpc) -> Result<TaskView, RpcError> {
        let server = self.server(&rpc.server).map(Arc::clone).ok_or_else(|| failure::unknown_server(&rpc.server))?;
        let begun = self.running.begin(Arc::new(message), self.options.limits.max_calls);
        let max = self.options.limits.max_calls;
        let full = |_| failure::bus(ErrorCode::TooManyCalls, format!("call limit reached ({max} calls at this host)"));
        let caller = begun.map_err(full)?;
        let accepted = match self.admit(&caller, &server, &rpc, Form::Mcp) {
            Admission::Run(Some(record)) => self.accept(&caller, &server, rpc, record).await,
            Admission::Run(None) => Err(no_tasks(&rpc).into()),
            Admission::Known(..) => {
                Err(failure::bus(ErrorCode::CallEnded, format!("the task {} was already started", caller.id())).into())
            }
        };
        match accepted {
            Ok((task, view)) => {
                self.tracker.spawn(task.run());
                Ok(view)
            }
            Err(stop) => {
                self.running.finish(&caller);
                Err(refusal(stop))
            }
        }
    }
}

/// A journaled task that runs.
struct RunningTask {
    job: Job,
    /// The authorisation, if it was just made.
    permission: Option<Permission>,
}

impl RunningTask {
    async fn run(self) {
        let Self { job, permission } = self;
        let (host, caller, server) = (Arc::clone(&job.host), job.caller.clone(), Arc::clone(&job.server));
        let session = job.session_id();
        // Keeps the session from being reaped while the task waits.
        let _in_use = server.known_session(&session).map(|session| session.begin_use());
        let (answer, record) = job.answer_to(permission).await;
        server.close_session(&session).await;
        let Some(record) = record else { return };
        let reply = match answer {
            Ok(outcome) => HostReply::Rpc(input_refused(outcome)),
            Err(NoAnswer::Cancelled) => HostReply::Cancelled,
            // The next host resumes a task that this host's shutdown interrupted, or reports its outcome as unknown.
            Err(NoAnswer::HandedOver | NoAnswer::Unknown(_)) => return,
        };
        host.end_task(&caller, &record, task_answer(&reply)).await;
    }
}

impl Host {
    /// Journals the answer of a task, and wakes those that wait for it.
    async fn end_task(&self, caller: &Caller, record: &Record, answer: Answer) {
        self.journal_end(&caller.request, Some(record), answer, None).await;
        self.task_memory.forget(caller.id());
        self.running.finish(caller);
    }
}

/// A task whose tool reports an error (`isError`) is listed as failed.
fn task_answer(reply: &HostReply) -> Answer {
    let mut answer = Answer::of(reply);
    if let HostReply::Rpc(Outcome::Result(result)) = reply {
        let failed = Members::of(Some(result)).ok().and_then(|result| Some(result.get("isError")?.get() == "true"));
        answer.end = if failed == Some(true) { End::Failed } else { End::Done };
    }
    answer
}

/// Turns an `input_required` result of a modern server into an error, because a task has no client to answer it.
fn input_refused(outcome: Outcome) -> Outcome {
    let Outcome::Result(result) = &outcome else { return outcome };
    let kind = Members::of(Some(result)).ok().and_then(|result| result.text("resultType"));
    match kind.as_deref() {
        Some("input_required") => detached::no_client_to_ask("the server asked for input").into(),
        _ => outcome,
    }
}

fn no_tasks(rpc: &Rpc) -> RpcError {
    match rpc.method.as_str() {
        "tools/call" => failure::bus(ErrorCode::JournalFailed, "this host has no journal, so it can't run tasks"),
        method => RpcError::invalid_params(format!("{method} can't run as a task, only tools/call can")),
    }
}

fn refusal(stop: Stop) -> RpcError {
    let message = match stop {
        Stop::With(Outcome::Error(error)) => {
            return serde_json::from_str(error.get())
                .unwrap_or_else(|_| RpcError::invalid_params("the task was refused"));
        }
        Stop::Unknown(error) => return error,
        Stop::With(Outcome::Result(_)) | Stop::HandedOver => "the host is shutting down",
        Stop::Cancelled => "the task was cancelled",
    };
    failure::bus(ErrorCode::Cancelled, message)
}
