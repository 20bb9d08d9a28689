//! What becomes of a task, asked of its host. Of a task that only the broker has, because its host is away, the broker is
//! asked.

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

/// How long a host waits for the end of a task before it says that there is none yet. Then it is asked again.
const WAIT_SLICE: Duration = Duration::from_secs(30);
/// The host is not asked more often.
const SHORTEST_SLICE: Duration = Duration::from_millis(500);
/// A host that is there answers what is asked of its admin at once.
const PATIENCE: Duration = Duration::from_secs(10);
/// Tasks that are remembered because their hosts are away.
const MAX_LEFT: usize = 4096;

pub async fn get(frontend: Arc<Frontend>, era: Era, name: TaskName) -> Outcome {
    match whereabouts(&frontend, &name).await {
        Whereabouts::Queued(view) => return Outcome::Result(shown(era, &name, &view, true)),
        Whereabouts::TakenBack(view) => return Outcome::Result(shown(era, &name, &view, false)),
        Whereabouts::Touched { since } | Whereabouts::WithAbsentHost { since } => return away(&frontend, &name, since),
        Whereabouts::AtHost => {}
    }
    // Only the modern era shows the answer together with the task.
    let request = match era {
        Era::Legacy => AdminRequest::TaskGet { id: name.id.clone() },
        Era::Modern => AdminRequest::TaskWait { id: name.id.clone(), limit_ms: 0 },
    };
    match view_of(ask(&frontend, &name.host, request, PATIENCE).await) {
        Ok(view) => Outcome::Result(shown(era, &name, &view, false)),
        Err(outcome) => outcome,
    }
}

/// Who knows about a task now.
enum Whereabouts {
    /// The host is there.
    AtHost,
    /// The broker alone has it: the host is away and was never brought it.
    Queued(TaskView),
    /// This worker took it back before any host got it.
    TakenBack(TaskView),
    /// The broker has it, and so may the host, which is away.
    Touched { since: u64 },
    /// Only the host can tell, and it is away.
    WithAbsentHost { since: u64 },
}

/// What this worker remembers counts only as far as the broker confirms it now: the host may have been there meanwhile.
async fn whereabouts(frontend: &Frontend, name: &TaskName) -> Whereabouts {
    let remembered = frontend.worker.left_task(name);
    if let Some(view) = remembered.as_ref().filter(|view| view.status == TaskStatus::Cancelled) {
        return Whereabouts::TakenBack(view.clone());
    }
    let Some(since) = frontend.worker.away_since(&name.host) else { return Whereabouts::AtHost };
    let age_ms = match frontend.worker.bus.waits(&name.host, &name.id).await {
        Some(waiting) if waiting.is_untouched => waiting.age_ms,
        Some(_) => return Whereabouts::Touched { since },
        None => return Whereabouts::WithAbsentHost { since },
    };
    let ahead = frontend.worker.bus.ahead(&name.host, &name.id).await;
    let position = ahead.map_or(String::new(), |ahead| format!(", position {}", ahead + 1));
    let message = Some(format!("queued: host {} is away since {}{position}", name.host, when(since)));
    let unseen = unseen(&name.id);
    let began = unseen.created_ms.saturating_sub(age_ms);
    let unseen = TaskView { created_ms: began, updated_ms: began, ..unseen };
    Whereabouts::Queued(TaskView { message, ..remembered.unwrap_or(unseen) })
}

fn away(frontend: &Frontend, name: &TaskName, since: u64) -> Outcome {
    match frontend.worker.options.fail_fast {
        true => error::host_offline(&name.host, &when(since)).into(),
        false => error::task_host_away(&name.host, &when(since)).into(),
    }
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

/// A legacy client waits for the end, however long it takes within the deadline of a call, and wherever the host is.
pub async fn result(frontend: Arc<Frontend>, name: TaskName) -> Outcome {
    let limit = frontend.worker.options.call_deadline;
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let since = frontend.worker.away_since(&name.host);
        if left.is_zero() {
            return since.map_or_else(|| error::call_timeout(limit).into(), |since| away(&frontend, &name, since));
        }
        let taken_back = frontend.worker.left_task(&name).is_some_and(|view| view.status == TaskStatus::Cancelled);
        if taken_back {
            return error::task_cancelled().into();
        }
        let asked = Instant::now();
        if since.is_some() && !frontend.worker.options.fail_fast {
            tokio::time::sleep_until(end.min(asked + SHORTEST_SLICE)).await;
            continue;
        }
        match wait(&frontend, &name, left.min(WAIT_SLICE)).await {
            Ok(view) if view.status == TaskStatus::Cancelled => return error::task_cancelled().into(),
            Ok(view) if view.status.has_ended() => {
                return match wire::outcome(view) {
                    Some(Outcome::Result(result)) => Outcome::Result(wire::related(&result, &name)),
                    Some(error) => error,
                    None => error::bad_reply("an ended task without its answer").into(),
                };
            }
            Err(outcome) if !has_code(&outcome, ErrorCode::CallTimeout) => return outcome,
            // A host with too many who wait answers at once.
            _ => tokio::time::sleep_until(end.min(asked + SHORTEST_SLICE)).await,
        }
    }
}

pub async fn cancel(frontend: Arc<Frontend>, era: Era, name: TaskName) -> Outcome {
    let request = AdminRequest::TaskCancel { id: name.id.clone() };
    let view = match whereabouts(&frontend, &name).await {
        Whereabouts::AtHost => view_of(ask(&frontend, &name.host, request, PATIENCE).await),
        Whereabouts::Queued(view) => cancel_queued(&frontend, &name, view).await,
        Whereabouts::Touched { .. } => cancel_later(&frontend, &name, unseen(&name.id)).await,
        Whereabouts::TakenBack(view) => Ok(view),
        Whereabouts::WithAbsentHost { since } => Err(away(&frontend, &name, since)),
    };
    match (era, view) {
        (Era::Legacy, Ok(view)) => Outcome::Result(wire::legacy(&name, &view, false)),
        (Era::Modern, Ok(_)) => Outcome::Result(acknowledged()),
        // To the modern era it is all the same whether there was something to cancel.
        (Era::Modern, Err(outcome)) if has_code(&outcome, ErrorCode::CallEnded) => Outcome::Result(acknowledged()),
        (_, Err(outcome)) => outcome,
    }
}

/// A task of the bus asks nothing, so there is nothing to be answered; but the task has to be there.
pub async fn update(frontend: Arc<Frontend>, name: TaskName) -> Outcome {
    let request = AdminRequest::TaskGet { id: name.id.clone() };
    let known = match whereabouts(&frontend, &name).await {
        Whereabouts::AtHost => view_of(ask(&frontend, &name.host, request, PATIENCE).await).map(drop),
        Whereabouts::WithAbsentHost { since } => Err(away(&frontend, &name, since)),
        Whereabouts::Queued(_) | Whereabouts::TakenBack(_) | Whereabouts::Touched { .. } => Ok(()),
    };
    known.map_or_else(|outcome| outcome, |()| Outcome::Result(acknowledged()))
}

/// The task with its answer, once it has ended or that time is over.
pub async fn wait(frontend: &Frontend, name: &TaskName, time: Duration) -> Result<TaskView, Outcome> {
    let request = AdminRequest::TaskWait { id: name.id.clone(), limit_ms: time.as_millis() as u64 };
    view_of(ask(frontend, &name.host, request, time + PATIENCE).await)
}

pub async fn ask(frontend: &Frontend, host: &str, request: AdminRequest, limit: Duration) -> Result<Raw, Outcome> {
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
        Err(BrokerError::Timeout(_)) => return Err(error::no_word_of_task(host, limit).into()),
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

/// Taken back at the broker, so that nobody ever runs it; else its host is told.
async fn cancel_queued(frontend: &Frontend, name: &TaskName, view: TaskView) -> Result<TaskView, Outcome> {
    if !frontend.worker.bus.withdraw(&name.host, &name.id).await {
        return cancel_later(frontend, name, view).await;
    }
    let message = Some("cancelled before its host was back".to_owned());
    let cancelled = TaskView { status: TaskStatus::Cancelled, message, ..view };
    frontend.worker.leave_task(name, cancelled.clone());
    Ok(cancelled)
}

/// The host is told when it is back, after the task itself. Until then nobody knows whether it comes in time.
async fn cancel_later(frontend: &Frontend, name: &TaskName, view: TaskView) -> Result<TaskView, Outcome> {
    let request = HostRequest::Admin(AdminRequest::TaskCancel { id: name.id.clone() });
    let limit = Duration::from_millis(TaskWish::LONGEST_TTL_MS);
    let sent = frontend.worker.bus.deliver(&name.host, body(request), limit).await;
    sent.map_err(|error| error::from_bus(&error))?;
    let message = Some(format!("cancel requested; host {} is told when it is back", name.host));
    Ok(TaskView { message, ..view })
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

pub fn has_code(outcome: &Outcome, code: ErrorCode) -> bool {
    code_of(outcome).as_deref() == Some(code.code())
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

    /// What is remembered of a task that was left to the broker. Of a host that is back nothing is, but what was taken back
    /// before: that it never gets.
    pub(crate) fn left_task(&self, name: &TaskName) -> Option<TaskView> {
        let is_there = self.away_since(&name.host).is_none();
        let mut left = lock(&self.left_tasks);
        if is_there {
            left.retain(|left, view| left.host != name.host || view.status == TaskStatus::Cancelled);
        }
        left.get(name).cloned()
    }

    /// Those that wait for hosts that are away, as the broker confirms now, and those that were taken back.
    pub(crate) async fn left_tasks(&self) -> Vec<(TaskName, TaskView)> {
        let mut tasks: Vec<(TaskName, TaskView)> =
            lock(&self.left_tasks).iter().map(|(name, view)| (name.clone(), view.clone())).collect();
        let hosts: BTreeSet<String> = tasks.iter().map(|(name, _)| name.host.clone()).collect();
        for host in hosts.into_iter().filter(|host| self.away_since(host).is_some()) {
            let waiting = self.bus.waiting(&host).await.unwrap_or_default();
            let untouched: HashSet<String> =
                waiting.into_iter().filter(|waiting| waiting.is_untouched).map(|waiting| waiting.id).collect();
            let is_true = |view: &TaskView| view.status == TaskStatus::Cancelled || untouched.contains(&view.id);
            tasks.retain(|(name, view)| name.host != host || is_true(view));
        }
        let is_away = |name: &TaskName| self.away_since(&name.host).is_some();
        tasks.retain(|(name, view)| view.status == TaskStatus::Cancelled || is_away(name));
        tasks
    }
}
