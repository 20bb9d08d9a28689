//! Tasks: calls that go on by themselves. A task is decided about like any call, written to the journal before its caller
//! hears of it, and then runs whoever is connected. What came of it stays in the journal until its time is over.
//!
//! A task has a session of its own at its server, because it outlives that of its caller; and nobody is there whom a server
//! could ask anything, so servers are told that nothing can be asked.

mod admin;
mod alone;
mod board;
mod places;
mod resume;
mod view;

pub use board::TaskBoard;
pub use places::TaskPlaces;

use crate::arrival::Arrival;
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
    /// A request that is to be a task. Takes its place at once, so that whoever calls it off finds it.
    pub async fn begin_task(self: &Arc<Self>, message: Arc<InboxMessage>, rpc: Rpc) {
        let caller = match self.running.begin(Arc::clone(&message), self.options.limits.max_calls) {
            Ok(caller) => caller,
            // An earlier host may have ended after it wrote the task down and before it said so.
            Err(Refused::Running | Refused::Finished) => return self.repeat_task(&message).await,
            Err(Refused::TooMany) => {
                let most = self.options.limits.max_calls;
                let error = failure::bus(ErrorCode::TooManyCalls, format!("this host already has {most} calls"));
                self.running.answered(&message);
                return self.outbox.reply(&message, &HostReply::Rpc(error.into())).await;
            }
        };
        let host = Arc::clone(self);
        self.tasks.spawn(async move { host.arrived(caller, rpc).await });
    }

    async fn arrived(self: Arc<Self>, caller: Caller, rpc: Rpc) {
        // It was written down, and then its answer got lost with the host that gave it.
        if self.is_known_task(&caller) {
            self.repeat_task(&caller.request).await;
            return self.running.finish(&caller);
        }
        let Some(server) = self.server(&rpc.server).map(Arc::clone) else {
            return self.refuse_task(&caller, failure::unknown_server(&rpc.server).into()).await;
        };
        let record = match self.arrive(&caller, &server, &rpc, Form::Mcp) {
            Arrival::Run(Some(record)) => record,
            Arrival::Run(None) => return self.refuse_task(&caller, no_tasks(&rpc).into()).await,
            Arrival::Known(record, decision) => {
                return self.settle(caller, server, rpc, Form::Mcp, (record, decision)).await;
            }
        };
        match self.accept(&caller, &server, rpc, record).await {
            Ok((task, view)) => {
                self.outbox.reply(&caller.request, &HostReply::Task(view)).await;
                task.run().await;
            }
            Err(Stop::With(outcome)) => self.refuse_task(&caller, outcome).await,
            Err(Stop::Cancelled) => self.reply(&caller, &HostReply::Cancelled).await,
            // It stays in the mailbox.
            Err(Stop::HandedOver) => {}
        }
    }

    /// Decides about a task and writes it down. What is returned has been promised.
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
        let job = self.job(caller, server, rpc, record)?;
        let session = job.session_id();
        let promised = self.promise(job, task).await;
        if promised.is_err() {
            server.close_session(&session).await;
        }
        promised
    }

    async fn promise(&self, mut job: Job, task: Task) -> Result<(RunningTask, TaskView), Stop> {
        let (caller, time) = (job.caller.clone(), Duration::from_millis(task.ttl_ms));
        let permission = job.permission().await?;
        let _place = self.room_for(caller.agent())?;
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

    /// The call of a task, in a session of its own and without anybody to ask.
    fn job(
        self: &Arc<Self>,
        caller: &Caller,
        server: &Arc<Server>,
        rpc: Rpc,
        mut record: Record,
    ) -> Result<Job, RpcError> {
        // Somebody will ask what became of it, however it ends.
        record.is_kept = true;
        let rpc = alone::without_client(rpc, &SessionId::of_task(caller.id()))?;
        Job::begin(self, caller.clone(), Arc::clone(server), rpc, Some(record))
    }

    /// Room for one more, held until the task is written down.
    fn room_for(&self, agent: &str) -> Result<board::Accepting<'_>, RpcError> {
        let limits = &self.options.limits;
        let journal = self.options.journal.as_ref();
        let count = |agent| journal.map_or(0, |journal| journal.count_tasks(agent, now()));
        let accepting = self.task_board.accepting(agent);
        let full = |of: &str, most: usize| {
            failure::bus(ErrorCode::TooManyTasks, format!("{of} has {most} tasks at this host already"))
        };
        if count(Some(agent)) + accepting.of_agent > limits.max_tasks_per_agent {
            return Err(full(&format!("agent '{agent}'"), limits.max_tasks_per_agent));
        }
        if count(None) + accepting.of_all > limits.max_tasks {
            return Err(full("everybody together", limits.max_tasks));
        }
        Ok(accepting)
    }

    /// A caller that was told of a task before its host could look at it will ask what became of it.
    async fn refuse_task(&self, caller: &Caller, outcome: Outcome) {
        if let Outcome::Error(error) = &outcome {
            self.task_board.note_refusal(caller.id(), caller.agent(), error.clone());
        }
        self.reply(caller, &HostReply::Rpc(outcome)).await;
    }

    fn is_known_task(&self, caller: &Caller) -> bool {
        let journal = self.options.journal.as_ref();
        journal.is_some_and(|journal| journal.task(caller.id().as_str(), Some(caller.agent())).is_some())
    }

    /// The task as it is now, to whoever began it and has not heard.
    async fn repeat_task(&self, message: &InboxMessage) {
        let agent = toolbus_protocol::principal_of(&message.from.session_id);
        let row = self.options.journal.as_ref().and_then(|journal| journal.task(message.id.as_str(), Some(agent)));
        // Otherwise it is being accepted, or was refused: the answer is on its way.
        if let Some(row) = row {
            self.outbox.reply(message, &HostReply::Task(self.view_of_task(&row))).await;
        }
    }

    /// Begins a task in somebody's name. Returns once it is written down.
    pub async fn begin_task_for(self: &Arc<Self>, message: InboxMessage, rpc: Rpc) -> Result<TaskView, RpcError> {
        let server = self.server(&rpc.server).map(Arc::clone).ok_or_else(|| failure::unknown_server(&rpc.server))?;
        let begun = self.running.begin(Arc::new(message), self.options.limits.max_calls);
        let most = self.options.limits.max_calls;
        let full = |_| failure::bus(ErrorCode::TooManyCalls, format!("this host already has {most} calls"));
        let caller = begun.map_err(full)?;
        let accepted = match self.arrive(&caller, &server, &rpc, Form::Mcp) {
            Arrival::Run(Some(record)) => self.accept(&caller, &server, rpc, record).await,
            Arrival::Run(None) => Err(no_tasks(&rpc).into()),
            Arrival::Known(..) => {
                Err(failure::bus(ErrorCode::CallEnded, format!("the task {} was begun before", caller.id())).into())
            }
        };
        match accepted {
            Ok((task, view)) => {
                self.tasks.spawn(task.run());
                Ok(view)
            }
            Err(stop) => {
                self.running.finish(&caller);
                Err(refusal(stop))
            }
        }
    }
}

/// A task that is written down and on its way.
struct RunningTask {
    job: Job,
    /// What was decided about it, where that was just now.
    permission: Option<Permission>,
}

impl RunningTask {
    async fn run(self) {
        let Self { job, permission } = self;
        let (host, caller, server) = (Arc::clone(&job.host), job.caller.clone(), Arc::clone(&job.server));
        let session = job.session_id();
        // However long it waits, its session stays.
        let _in_use = server.known_session(&session).map(|session| session.begin_use());
        let (answer, record) = job.answer_to(permission).await;
        server.close_session(&session).await;
        let Some(record) = record else { return };
        let reply = match answer {
            // What the host's own end broke off is taken up, or reported, by the next.
            Ok(outcome) if host.shutdown.is_cancelled() && failure::is_of_server(&outcome) => return,
            Ok(outcome) => HostReply::Rpc(answered_alone(outcome)),
            Err(NoAnswer::Cancelled) => HostReply::Cancelled,
            Err(NoAnswer::HandedOver) => return,
        };
        host.end_task(&caller, &record, task_answer(&reply)).await;
    }
}

impl Host {
    /// Writes down what came of a task, and lets those know who wait for it.
    async fn end_task(&self, caller: &Caller, record: &Record, answer: Answer) {
        self.write_end(&caller.request, Some(record), answer, None).await;
        self.task_board.forget(caller.id());
        self.running.finish(caller);
    }
}

/// A tool that says itself that it failed counts as failed where nobody looks closer.
fn task_answer(reply: &HostReply) -> Answer {
    let mut answer = Answer::of(reply);
    if let HostReply::Rpc(Outcome::Result(result)) = reply {
        let failed = Members::of(Some(result)).ok().and_then(|result| Some(result.get("isError")?.get() == "true"));
        answer.end = if failed == Some(true) { End::Failed } else { End::Done };
    }
    answer
}

/// A modern server that asks for more gives no result; and nobody is there to give it more.
fn answered_alone(outcome: Outcome) -> Outcome {
    let Outcome::Result(result) = &outcome else { return outcome };
    let kind = Members::of(Some(result)).ok().and_then(|result| result.text("resultType"));
    match kind.as_deref() {
        Some("input_required") => alone::nobody_to_ask("the server asked for input").into(),
        _ => outcome,
    }
}

fn no_tasks(rpc: &Rpc) -> RpcError {
    match rpc.method.as_str() {
        "tools/call" => failure::bus(ErrorCode::JournalFailed, "this host keeps no journal, and so no tasks"),
        method => RpcError::invalid_params(format!("{method} can't be a task, only tools/call can")),
    }
}

fn refusal(stop: Stop) -> RpcError {
    let message = match stop {
        Stop::With(Outcome::Error(error)) => {
            return serde_json::from_str(error.get())
                .unwrap_or_else(|_| RpcError::invalid_params("the task was refused"));
        }
        Stop::With(Outcome::Result(_)) | Stop::HandedOver => "the host is about to end",
        Stop::Cancelled => "the task was cancelled",
    };
    failure::bus(ErrorCode::Cancelled, message)
}
