//! The JSON of tasks in each era.

use crate::frontend::away::when;
use toolbus_mcp::{Era, Members, Outcome, Raw, TaskName, TaskStatus, TaskView, meta, raw};

/// The poll interval recommended to clients.
const POLL_INTERVAL_MS: u64 = 1000;
/// The poll interval recommended to clients while the host is away.
const AWAY_POLL_INTERVAL_MS: u64 = 10_000;

/// The member, if it exists and is an object.
pub fn object_member<'a>(members: &'a Members, name: &str) -> Option<&'a Members> {
    members.get(name)?.members().ok()
}

/// Whether a modern request declares that its client accepts client requests (elicitation, sampling, roots).
pub fn accepts_client_requests(params: Option<&Raw>) -> bool {
    let Some(capabilities) = capabilities(params) else { return false };
    ["elicitation", "sampling", "roots"].into_iter().any(|name| capabilities.contains(name))
}

/// Whether a modern request declares the tasks extension.
pub fn declares_tasks(params: Option<&Raw>) -> bool {
    let extensions = capabilities(params).and_then(|capabilities| object_member(capabilities, "extensions"));
    extensions.is_some_and(|own| own.contains(meta::TASKS_EXTENSION))
}

fn capabilities(params: Option<&Raw>) -> Option<&Members> {
    object_member(object_member(params?.members().ok()?, meta::META)?, meta::CLIENT_CAPABILITIES)
}

/// The result of a call that became a task.
pub fn created(era: Era, name: &TaskName, view: &TaskView, away: bool) -> Raw {
    let mut result = Members::default();
    match era {
        Era::Legacy => result.set("task", legacy(name, view, away)),
        Era::Modern => {
            result.set("resultType", raw("task"));
            set_members(&mut result, Era::Modern, name, view, away);
        }
    }
    result.into_raw()
}

/// A legacy task, without its result.
pub fn legacy(name: &TaskName, view: &TaskView, away: bool) -> Raw {
    let mut task = Members::default();
    set_members(&mut task, Era::Legacy, name, view, away);
    task.into_raw()
}

/// The result of a modern `tasks/get`: the task, with its result or error if it has ended.
pub fn detailed(name: &TaskName, view: &TaskView, away: bool) -> Raw {
    let mut task = Members::default();
    task.set("resultType", raw("complete"));
    set_members(&mut task, Era::Modern, name, view, away);
    match (view.status, &view.result, &view.error) {
        (TaskStatus::Completed, Some(result), _) => task.set("result", result.clone()),
        (TaskStatus::Failed, _, Some(error)) => task.set("error", error.clone()),
        _ => {}
    }
    task.into_raw()
}

/// The outcome of the tool call; `None` if the task has not ended.
pub fn outcome(view: TaskView) -> Option<Outcome> {
    view.result.map(Outcome::Result).or(view.error.map(Outcome::Error))
}

/// Adds the related task to a legacy result, as the protocol requires for `tasks/result`.
pub fn with_related_task(result: &Raw, name: &TaskName) -> Raw {
    let mut related = Members::default();
    related.set("taskId", raw(&name.to_string()));
    meta::set(Some(result), meta::RELATED_TASK, related.into_raw()).unwrap_or_else(|_| result.clone())
}

fn set_members(task: &mut Members, era: Era, name: &TaskName, view: &TaskView, away: bool) {
    let (ttl, poll) = match era {
        Era::Legacy => ("ttl", "pollInterval"),
        Era::Modern => ("ttlMs", "pollIntervalMs"),
    };
    task.set("taskId", raw(&name.to_string()));
    task.set("status", raw(&status(era, view)));
    if let Some(message) = &view.message {
        task.set("statusMessage", raw(message));
    }
    task.set("createdAt", raw(&when(view.created_ms)));
    task.set("lastUpdatedAt", raw(&when(view.updated_ms)));
    task.set(ttl, raw(&view.ttl_ms));
    if !view.status.has_ended() {
        task.set(poll, raw(if away { &AWAY_POLL_INTERVAL_MS } else { &POLL_INTERVAL_MS }));
    }
}

/// A tool result with `isError` is a failed task in the legacy era and a completed one in the modern era.
fn status(era: Era, view: &TaskView) -> TaskStatus {
    match (era, view.status) {
        (Era::Legacy, TaskStatus::Completed) if view.tool_failed => TaskStatus::Failed,
        (_, status) => status,
    }
}
