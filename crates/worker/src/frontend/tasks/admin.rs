//! State, result and cancellation of a task, through the admin API of its host. While the host is away, the state of a
//! queued task comes from the broker.

use super::wire;
use crate::bus::BusItem;
use crate::error;
use crate::frontend::away::when;
use crate::frontend::{Frontend, body};
use crate::worker::{Worker, lock};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use toolbus_client::BrokerError;
use toolbus_mcp::{
    AdminRequest, Era, HostReply, HostRequest, Members, Outcome, Raw, TaskName, TaskStatus, TaskView, TaskWish, codes,
    raw,
};
use toolbus_protocol::ErrorCode;

/// How long one `TaskWait` query waits at the host for the end of a task before it is repeated.
const WAIT_SLICE: Duration = Duration::from_secs(30);
/// Minimum interval between two `TaskWait` queries.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout of an admin query, which a connected host answers immediately.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of remembered tasks of absent hosts. At the limit the table is cleared.
const MAX_QUEUED_TASKS: usize = 4096;

pub async fn get(frontend: Arc<Frontend>, era: Era, name: TaskName) -> Outcome {
    match locate(&frontend, &name).await {
        TaskLocation::Queued(view) => return Outcome::Result(to_result(era, &name, &view, true)),
        TaskLocation::Withdrawn(view) => return Outcome::Result(to_result(era, &name, &view, false)),
        TaskLocation::MaybeDelivered { since } | TaskLocation::HostAway { since } => {
            return away_error(&frontend, &name, since);
        }
        TaskLocation::AtHost => {}
    }
    // Only a modern `tasks/get` includes the result of the task.
    let request = match era {
        Era::Legacy => AdminRequest::TaskGet { id: name.id.clone() },
        Era::Modern => AdminRequest::TaskWait { id: name.id.clone(), limit_ms: 0 },
    };
    match view_of(query(&frontend, &name.host, request, ADMIN_TIMEOUT).await) {
        Ok(view) => Outcome::Result(to_result(era, &name, &view, false)),
        Err(outcome) => outcome,
    }
}

/// Where the state of a task is known.
enum TaskLocation {
    /// The host is connected.
    AtHost,
    /// The task is queued at the broker and was never delivered to the host, which is away.
    Queued(TaskView),
    /// This worker withdrew the task before it was delivered.
    Withdrawn(TaskView),
    /// The task is queued at the broker and may have been delivered to the host, which is away.
    MaybeDelivered { since: u64 },
    /// The task is not queued, and the host is away.
    HostAway { since: u64 },
}

/// Remembered tasks are verified at the broker, because the host may have been connected in the meantime.
async fn locate(frontend: &Frontend, name: &TaskName) -> TaskLocation {
    let remembered = frontend.worker.queued_task(name);
    if let Some(view) = remembered.as_ref().filter(|view| view.status == TaskStatus::Cancelled) {
        return TaskLocation::Withdrawn(view.clone());
    }
    let Some(since) = frontend.worker.away_since(&name.host) else { return TaskLocation::AtHost };
    let age_ms = match frontend.worker.bus.waits(&name.host, &name.id).await {
        Some(waiting) if waiting.is_untouched => waiting.age_ms,
        Some(_) => return TaskLocation::MaybeDelivered { since },
        None => return TaskLocation::HostAway { since },
    };
    let ahead = frontend.worker.bus.ahead(&name.host, &name.id).await;
    let position = ahead.map_or(String::new(), |ahead| format!(", position {}", ahead + 1));
    let message = Some(format!("queued: host {} has been away since {}{position}", name.host, when(since)));
    let placeholder = placeholder(&name.id);
    let began = placeholder.created_ms.saturating_sub(age_ms);
    let placeholder = TaskView { created_ms: began, updated_ms: began, ..placeholder };
    TaskLocation::Queued(TaskView { message, ..remembered.unwrap_or(placeholder) })
}

fn away_error(frontend: &Frontend, name: &TaskName, since: u64) -> Outcome {
    match frontend.worker.options.fail_fast {
        true => error::host_offline(&name.host, &when(since)).into(),
        false => error::task_host_away(&name.host, &when(since)).into(),
    }
}

/// The view of a task that no host has reported on yet.
pub fn placeholder(id: &str) -> TaskView {
    let now = toolbus_base::now_ms();
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

/// Legacy `tasks/result`: waits for the end of the task up to the call deadline, also while the host is away.
pub async fn result(frontend: Arc<Frontend>, name: TaskName) -> Outcome {
    let limit = frontend.worker.options.call_deadline;
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let since = frontend.worker.away_since(&name.host);
        if left.is_zero() {
            return since
                .map_or_else(|| error::call_timeout(limit).into(), |since| away_error(&frontend, &name, since));
        }
        let withdrawn = frontend.worker.queued_task(&name).is_some_and(|view| view.status == TaskStatus::Cancelled);
        if withdrawn {
            return error::task_cancelled().into();
        }
        let queried_at = Instant::now();
        if since.is_some() && !frontend.worker.options.fail_fast {
            tokio::time::sleep_until(end.min(queried_at + MIN_POLL_INTERVAL)).await;
            continue;
        }
        match wait(&frontend, &name, left.min(WAIT_SLICE)).await {
            Ok(view) if view.status == TaskStatus::Cancelled => return error::task_cancelled().into(),
            Ok(view) if view.status.has_ended() => {
                return match wire::outcome(view) {
                    Some(Outcome::Result(result)) => Outcome::Result(wire::with_related_task(&result, &name)),
                    Some(error) => error,
                    None => error::bad_reply("the task has ended without a result").into(),
                };
            }
            Err(outcome) if !has_code(&outcome, ErrorCode::CallTimeout) => return outcome,
            // A host at its limit of waiting queries answers immediately.
            _ => tokio::time::sleep_until(end.min(queried_at + MIN_POLL_INTERVAL)).await,
        }
    }
}

pub async fn cancel(frontend: Arc<Frontend>, era: Era, name: TaskName) -> Outcome {
    let request = AdminRequest::TaskCancel { id: name.id.clone() };
    let view = match locate(&frontend, &name).await {
        TaskLocation::AtHost => view_of(query(&frontend, &name.host, request, ADMIN_TIMEOUT).await),
        TaskLocation::Queued(view) => cancel_queued(&frontend, &name, view).await,
        TaskLocation::MaybeDelivered { .. } => cancel_later(&frontend, &name, placeholder(&name.id)).await,
        TaskLocation::Withdrawn(view) => Ok(view),
        TaskLocation::HostAway { since } => Err(away_error(&frontend, &name, since)),
    };
    match (era, view) {
        (Era::Legacy, Ok(view)) => Outcome::Result(wire::legacy(&name, &view, false)),
        (Era::Modern, Ok(_)) => Outcome::Result(acknowledged()),
        // A modern `tasks/cancel` of an ended task succeeds.
        (Era::Modern, Err(outcome)) if has_code(&outcome, ErrorCode::CallEnded) => Outcome::Result(acknowledged()),
        (_, Err(outcome)) => outcome,
    }
}

/// Tasks of the bus never request input, so `tasks/update` only verifies that the task exists.
pub async fn update(frontend: Arc<Frontend>, name: TaskName) -> Outcome {
    let request = AdminRequest::TaskGet { id: name.id.clone() };
    let known = match locate(&frontend, &name).await {
        TaskLocation::AtHost => view_of(query(&frontend, &name.host, request, ADMIN_TIMEOUT).await).map(drop),
        TaskLocation::HostAway { since } => Err(away_error(&frontend, &name, since)),
        TaskLocation::Queued(_) | TaskLocation::Withdrawn(_) | TaskLocation::MaybeDelivered { .. } => Ok(()),
    };
    known.map_or_else(|outcome| outcome, |()| Outcome::Result(acknowledged()))
}

/// The task with its result, once it has ended or `time` has passed.
pub async fn wait(frontend: &Frontend, name: &TaskName, time: Duration) -> Result<TaskView, Outcome> {
    let request = AdminRequest::TaskWait { id: name.id.clone(), limit_ms: time.as_millis() as u64 };
    view_of(query(frontend, &name.host, request, time + ADMIN_TIMEOUT).await)
}

pub async fn query(frontend: &Frontend, host: &str, request: AdminRequest, limit: Duration) -> Result<Raw, Outcome> {
    if frontend.worker.options.fail_fast
        && let Some(since) = frontend.worker.away_since(host)
    {
        return Err(error::host_offline(host, &when(since)).into());
    }
    let call = frontend.worker.bus.start_call(host, body(HostRequest::Admin(request)), limit).await;
    let mut call = call.map_err(|error| error::from_bus(&error))?;
    let reply = loop {
        if let BusItem::Reply(reply) = call.next().await {
            break reply;
        }
    };
    let reply = match reply {
        Ok(reply) => reply,
        Err(BrokerError::Timeout(_)) => return Err(error::task_query_timeout(host, limit).into()),
        Err(error) => return Err(error::from_bus(&error).into()),
    };
    match reply.text().map(HostReply::parse) {
        Ok(Ok(HostReply::Rpc(Outcome::Result(result)))) => Ok(result),
        Ok(Ok(HostReply::Rpc(error))) => Err(to_mcp_error(error)),
        Ok(Ok(_)) => Err(error::bad_reply("the reply is neither a result nor an error").into()),
        Ok(Err(error)) => Err(error::bad_reply(&error.reason).into()),
        Err(error) => Err(error::bad_reply(&error.to_string()).into()),
    }
}

/// Withdraws the task from the broker so that it never runs; if that fails, sends the cancellation to the host.
async fn cancel_queued(frontend: &Frontend, name: &TaskName, view: TaskView) -> Result<TaskView, Outcome> {
    if !frontend.worker.bus.withdraw(&name.host, &name.id).await {
        return cancel_later(frontend, name, view).await;
    }
    let message = Some("cancelled before it was delivered to its host".to_owned());
    let cancelled = TaskView { status: TaskStatus::Cancelled, message, ..view };
    frontend.worker.remember_queued_task(name, cancelled.clone());
    Ok(cancelled)
}

/// Queues the cancellation behind the task. Whether it comes in time is unknown until the host is back.
async fn cancel_later(frontend: &Frontend, name: &TaskName, view: TaskView) -> Result<TaskView, Outcome> {
    let request = HostRequest::Admin(AdminRequest::TaskCancel { id: name.id.clone() });
    let limit = Duration::from_millis(TaskWish::LONGEST_TTL_MS);
    let sent = frontend.worker.bus.deliver(&name.host, body(request), limit).await;
    sent.map_err(|error| error::from_bus(&error))?;
    let message = Some(format!("cancel requested; host {} will process it when it is back", name.host));
    Ok(TaskView { message, ..view })
}

fn view_of(answer: Result<Raw, Outcome>) -> Result<TaskView, Outcome> {
    serde_json::from_str(answer?.get()).map_err(|error| error::bad_reply(&error.to_string()).into())
}

fn to_result(era: Era, name: &TaskName, view: &TaskView, away: bool) -> Raw {
    match era {
        Era::Legacy => wire::legacy(name, view, away),
        Era::Modern => wire::detailed(name, view, away),
    }
}

fn acknowledged() -> Raw {
    let mut result = Members::default();
    result.set("resultType", raw("complete"));
    result.into_raw()
}

/// MCP reports an unknown or ended task as invalid params.
fn to_mcp_error(outcome: Outcome) -> Outcome {
    let code = code_of(&outcome);
    let Outcome::Error(error) = &outcome else { return outcome };
    let unusable = [ErrorCode::UnknownTask, ErrorCode::CallEnded].map(|code| code.code());
    if !code.is_some_and(|code| unusable.contains(&code.as_str())) {
        return outcome;
    }
    let Ok(error) = Members::of(Some(error)) else { return outcome };
    let mut error = error.clone();
    error.set("code", raw(&codes::INVALID_PARAMS));
    Outcome::Error(error.into_raw())
}

pub fn has_code(outcome: &Outcome, code: ErrorCode) -> bool {
    code_of(outcome).as_deref() == Some(code.code())
}

fn code_of(outcome: &Outcome) -> Option<String> {
    let Outcome::Error(error) = outcome else { return None };
    let error = Members::of(Some(error)).ok()?;
    wire::object_member(error, "data")?.text("code")
}

impl Worker {
    /// Whether this worker may use the host.
    pub(crate) fn knows_host(&self, host: &str) -> bool {
        let allowed = self.options.host.as_deref().is_none_or(|only| only == host);
        allowed && self.hosts().borrow().iter().any(|entry| entry.name == host)
    }

    pub(crate) fn away_since(&self, host: &str) -> Option<u64> {
        self.hosts().borrow().iter().find(|entry| entry.name == host)?.away_since_ms
    }

    /// Resolves as soon as the host is not connected.
    pub(crate) async fn host_disconnected(&self, host: &str) {
        let connected = |entry: &crate::bus::HostEntry| entry.name == host && entry.away_since_ms.is_none();
        let mut hosts = self.hosts();
        // A closed bus ends the call itself.
        if hosts.wait_for(|hosts| !hosts.iter().any(connected)).await.is_err() {
            std::future::pending().await
        }
    }

    pub(crate) fn remember_queued_task(&self, name: &TaskName, view: TaskView) {
        let mut queued = lock(&self.queued_tasks);
        if queued.len() >= MAX_QUEUED_TASKS {
            queued.clear();
        }
        queued.insert(name.clone(), view);
    }

    /// The remembered state of a queued task. Once the host is back, only withdrawn tasks are remembered: the host
    /// never receives them and can't report on them.
    pub(crate) fn queued_task(&self, name: &TaskName) -> Option<TaskView> {
        let is_connected = self.away_since(&name.host).is_none();
        let mut queued = lock(&self.queued_tasks);
        if is_connected {
            queued.retain(|queued, view| queued.host != name.host || view.status == TaskStatus::Cancelled);
        }
        queued.get(name).cloned()
    }

    /// The tasks that are queued for absent hosts, as verified at the broker, and the withdrawn tasks.
    pub(crate) async fn queued_tasks(&self) -> Vec<(TaskName, TaskView)> {
        let mut tasks: Vec<(TaskName, TaskView)> =
            lock(&self.queued_tasks).iter().map(|(name, view)| (name.clone(), view.clone())).collect();
        let hosts: BTreeSet<String> = tasks.iter().map(|(name, _)| name.host.clone()).collect();
        for host in hosts.into_iter().filter(|host| self.away_since(host).is_some()) {
            let waiting = self.bus.waiting(&host).await.unwrap_or_default();
            let untouched: HashSet<String> =
                waiting.into_iter().filter(|waiting| waiting.is_untouched).map(|waiting| waiting.id).collect();
            let is_current = |view: &TaskView| view.status == TaskStatus::Cancelled || untouched.contains(&view.id);
            tasks.retain(|(name, view)| name.host != host || is_current(view));
        }
        let is_away = |name: &TaskName| self.away_since(&name.host).is_some();
        tasks.retain(|(name, view)| view.status == TaskStatus::Cancelled || is_away(name));
        tasks
    }
}
