//! What becomes of a task, asked of its host. A task that only the broker has, because its host is away, is spoken of from
//! memory.

use super::wire;
use crate::bus::BusItem;
use crate::error;
use crate::front::away::when;
use crate::front::{Front, body};
use crate::worker::{Worker, lock};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_client::BrokerError;
use toolbus_mcp::{
    DeskRequest, Era, HostReply, HostRequest, Members, Outcome, Raw, TaskName, TaskStatus, TaskView, TaskWish, codes,
    raw,
};
use toolbus_protocol::ErrorCode;

/// How long a host waits for the end of a task before it says that there is none yet. Then it is asked again.
const WAIT_SLICE: Duration = Duration::from_secs(30);
/// The host is not asked more often.
const SHORTEST_SLICE: Duration = Duration::from_millis(500);
/// Tasks that are remembered because their hosts are away.
const MAX_LEFT: usize = 4096;

pub async fn get(front: Arc<Front>, era: Era, name: TaskName) -> Outcome {
    if let Some(view) = waiting(&front, &name).await {
        return Outcome::Result(shown(era, &name, &view, true));
    }
    // Only the modern era shows the answer together with the task.
    let request = match era {
        Era::Legacy => DeskRequest::TaskGet { id: name.id.clone() },
        Era::Modern => DeskRequest::TaskWait { id: name.id.clone(), limit_ms: 0 },
    };
    match view_of(ask(&front, &name.host, request, front.worker.options.call_deadline).await) {
        Ok(view) => Outcome::Result(shown(era, &name, &view, false)),
        Err(outcome) => outcome,
    }
}

/// A task that its host has not seen yet: as this worker remembers it, or as far as the broker can tell.
async fn waiting(front: &Front, name: &TaskName) -> Option<TaskView> {
    let since = front.worker.away_since(&name.host)?;
    if let Some(view) = front.worker.left_task(name) {
        return Some(view);
    }
    let age_ms = front.worker.bus.waits_since(&name.host, &name.id).await?;
    let message = format!("queued: host {} is away since {}", name.host, when(since));
    let unseen = unseen(&name.id);
    let began = unseen.created_ms.saturating_sub(age_ms);
    Some(TaskView { message: Some(message), created_ms: began, updated_ms: began, ..unseen })
}

/// What can be said of a task that only the broker has.
pub fn unseen(id: &str) -> TaskView {
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
    TaskView {
        id: id.to_owned(),
        agent: String::new(),
        server: String::new(),
        tool: String::new(),
        status: TaskStatus::Working,
        message: None,
        created_ms: now,
        updated_ms: now,
        ttl_ms: TaskWish::DEFAULT_TTL_MS,
        tool_failed: false,
        result: None,
        error: None,
    }
}

/// A legacy client waits for the end, however long it takes within the deadline of a call.
pub async fn result(front: Arc<Front>, name: TaskName) -> Outcome {
    let limit = front.worker.options.call_deadline;
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return error::call_timeout(limit).into();
        }
        let asked = Instant::now();
        match wait(&front, &name, left.min(WAIT_SLICE)).await {
            Ok(view) if view.status == TaskStatus::Cancelled => return error::task_cancelled().into(),
            Ok(view) if view.status.has_ended() => {
                return match wire::outcome(view) {
                    Some(Outcome::Result(result)) => Outcome::Result(wire::related(&result, &name)),
                    Some(error) => error,
                    None => error::bad_reply("an ended task without its answer").into(),
                };
            }
            // A host with too many who wait answers at once.
            Ok(_) => tokio::time::sleep_until(end.min(asked + SHORTEST_SLICE)).await,
            Err(outcome) => return outcome,
        }
    }
}

pub async fn cancel(front: Arc<Front>, era: Era, name: TaskName) -> Outcome {
    let request = DeskRequest::TaskCancel { id: name.id.clone() };
    let view = match waiting(&front, &name).await {
        Some(view) => cancel_later(&front, &name, view).await,
        None => view_of(ask(&front, &name.host, request, front.worker.options.call_deadline).await),
    };
    match (era, view) {
        (Era::Legacy, Ok(view)) => Outcome::Result(wire::legacy(&name, &view, false)),
        (Era::Modern, Ok(_)) => Outcome::Result(acknowledged()),
        // To the modern era it is all the same whether there was something to cancel.
        (Era::Modern, Err(outcome)) if code_of(&outcome).as_deref() == Some(ErrorCode::CallEnded.code()) => {
            Outcome::Result(acknowledged())
        }
        (_, Err(outcome)) => outcome,
    }
}

/// A task of the bus asks nothing, so there is nothing to be answered; but the task has to be there.
pub async fn update(front: Arc<Front>, name: TaskName) -> Outcome {
    let request = DeskRequest::TaskGet { id: name.id.clone() };
    if waiting(&front, &name).await.is_some() {
        return Outcome::Result(acknowledged());
    }
    match view_of(ask(&front, &name.host, request, front.worker.options.call_deadline).await) {
        Ok(_) => Outcome::Result(acknowledged()),
        Err(outcome) => outcome,
    }
}

/// The task with its answer, once it has ended or that time is over.
pub async fn wait(front: &Front, name: &TaskName, time: Duration) -> Result<TaskView, Outcome> {
    let request = DeskRequest::TaskWait { id: name.id.clone(), limit_ms: time.as_millis() as u64 };
    view_of(ask(front, &name.host, request, front.worker.options.call_deadline).await)
}

pub async fn ask(front: &Front, host: &str, request: DeskRequest, limit: Duration) -> Result<Raw, Outcome> {
    if front.worker.options.fail_fast
        && let Some(since) = front.worker.away_since(host)
    {
        return Err(error::host_offline(host, &when(since)).into());
    }
    let call = front.worker.bus.start_call(host, body(HostRequest::Desk(request)), limit).await;
    let mut call = call.map_err(|error| error::from_bus(&error))?;
    let reply = loop {
        if let BusItem::Reply(reply) = call.next().await {
            break reply;
        }
    };
    let reply = match reply {
        Ok(reply) => reply,
        Err(BrokerError::Timeout(_)) => return Err(error::call_timeout(limit).into()),
        Err(error) => return Err(error::from_bus(&error).into()),
    };
    match std::str::from_utf8(reply.as_bytes()).map(HostReply::parse) {
        Ok(Ok(HostReply::Rpc(Outcome::Result(result)))) => Ok(result),
        Ok(Ok(HostReply::Rpc(error))) => Err(in_clients_terms(error)),
        Ok(Ok(_)) => Err(error::bad_reply("neither a result nor an error").into()),
        Ok(Err(error)) => Err(error::bad_reply(&error.reason).into()),
        Err(error) => Err(error::bad_reply(&error.to_string()).into()),
    }
}

/// The host is told when it is back, after the task itself: messages of one worker arrive in order.
async fn cancel_later(front: &Front, name: &TaskName, view: TaskView) -> Result<TaskView, Outcome> {
    let request = HostRequest::Desk(DeskRequest::TaskCancel { id: name.id.clone() });
    let limit = Duration::from_millis(view.ttl_ms);
    let sent = front.worker.bus.deliver(&name.host, body(request), limit).await;
    sent.map_err(|error| error::from_bus(&error))?;
    let message = Some("cancelled before its host was back".to_owned());
    let cancelled = TaskView { status: TaskStatus::Cancelled, message, ..view };
    front.worker.leave_task(name, cancelled.clone());
    Ok(cancelled)
}

fn view_of(answer: Result<Raw, Outcome>) -> Result<TaskView, Outcome> {
    serde_json::from_str(answer?.get()).map_err(|error| error::bad_reply(&error.to_string()).into())
}

fn shown(era: Era, name: &TaskName, view: &TaskView, away: bool) -> Raw {
    match era {
        Era::Legacy => wire::legacy(name, view, away),
        Era::Modern => wire::detailed(name, view, away),
    }
}

fn acknowledged() -> Raw {
    let mut result = Members::default();
    result.set("resultType", raw("complete"));
    result.to_raw()
}

/// A task that is not there, or has ended, is a bad parameter to MCP.
fn in_clients_terms(outcome: Outcome) -> Outcome {
    let code = code_of(&outcome);
    let Outcome::Error(error) = &outcome else { return outcome };
    let unusable = [ErrorCode::UnknownTask, ErrorCode::CallEnded].map(|code| code.code());
    if !code.is_some_and(|code| unusable.contains(&code.as_str())) {
        return outcome;
    }
    let Ok(mut error) = Members::of(Some(error)) else { return outcome };
    error.set("code", raw(&codes::INVALID_PARAMS));
    Outcome::Error(error.to_raw())
}

fn code_of(outcome: &Outcome) -> Option<String> {
    let Outcome::Error(error) = outcome else { return None };
    let error = Members::of(Some(error)).ok()?;
    wire::object_member(&error, "data")?.text("code")
}

impl Worker {
    /// Whether this worker uses that host at all.
    pub(crate) fn knows_host(&self, host: &str) -> bool {
        let allowed = self.options.host.as_deref().is_none_or(|only| only == host);
        allowed && self.hosts().borrow().iter().any(|entry| entry.name == host)
    }

    pub(crate) fn away_since(&self, host: &str) -> Option<u64> {
        self.hosts().borrow().iter().find(|entry| entry.name == host)?.away_since_ms
    }

    /// Returns while the host is not there.
    pub(crate) async fn host_leaves(&self, host: &str) {
        let there = |entry: &crate::bus::HostEntry| entry.name == host && entry.away_since_ms.is_none();
        let mut hosts = self.hosts();
        // A bus that is gone for good changes no more; the call itself ends then.
        if hosts.wait_for(|hosts| !hosts.iter().any(there)).await.is_err() {
            std::future::pending().await
        }
    }

    pub(crate) fn leave_task(&self, name: &TaskName, view: TaskView) {
        let mut left = lock(&self.left_tasks);
        if left.len() >= MAX_LEFT {
            left.clear();
        }
        left.insert(name.clone(), view);
    }

    /// A task of a host that is still away. Of one that is back the host itself knows more.
    pub(crate) fn left_task(&self, name: &TaskName) -> Option<TaskView> {
        let mut left = lock(&self.left_tasks);
        if self.away_since(&name.host).is_none() {
            left.remove(name);
            return None;
        }
        left.get(name).cloned()
    }

    /// All of those.
    pub(crate) fn left_tasks(&self) -> Vec<(TaskName, TaskView)> {
        let left = lock(&self.left_tasks);
        let away = left.iter().filter(|(name, _)| self.away_since(&name.host).is_some());
        away.map(|(name, view)| (name.clone(), view.clone())).collect()
    }
}
