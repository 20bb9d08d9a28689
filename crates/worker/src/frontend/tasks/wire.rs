//! A task in the words of each era.

use crate::frontend::away::when;
use serde_json::value::RawValue;
use toolbus_mcp::{Era, Members, Outcome, Raw, TaskName, TaskStatus, TaskView, meta, raw};

/// How often a client should ask, in milliseconds.
const POLL_INTERVAL_MS: u64 = 1000;
/// The same while the host is away: it may take a while.
const AWAY_POLL_INTERVAL_MS: u64 = 10_000;

/// The member, if it is there and an object.
pub fn object_member<'a>(members: &'a Members<'_>, name: &str) -> Option<Members<'a>> {
    Members::of(Some(members.get(name)?)).ok()
}

/// Whether a modern request says that a server may ask its client something before it answers.
pub fn can_be_asked(params: Option<&RawValue>) -> bool {
    let Some(capabilities) = meta::get(params, meta::CLIENT_CAPABILITIES) else { return false };
    let capabilities = Members::of(Some(&capabilities)).unwrap_or_default();
    ["elicitation", "sampling", "roots"].into_iter().any(|name| capabilities.contains(name))
}

/// Whether a modern request says that its client knows tasks.
pub fn declares_tasks(params: Option<&RawValue>) -> bool {
    let Some(capabilities) = meta::get(params, meta::CLIENT_CAPABILITIES) else { return false };
    let capabilities = Members::of(Some(&capabilities)).unwrap_or_default();
    object_member(&capabilities, "extensions").is_some_and(|own| own.contains(meta::TASKS_EXTENSION))
}

/// The answer to a call that became a task.
pub fn created(era: Era, name: &TaskName, view: &TaskView, away: bool) -> Raw {
    let mut result = Members::default();
    match era {
        Era::Legacy => result.set("task", legacy(name, view, away)),
        Era::Modern => {
            result.set("resultType", raw("task"));
            put(&mut result, Era::Modern, name, view, away);
        }
    }
    result.to_raw()
}

/// A task as the legacy era speaks of it, without its result.
pub fn legacy(name: &TaskName, view: &TaskView, away: bool) -> Raw {
    let mut task = Members::default();
    put(&mut task, Era::Legacy, name, view, away);
    task.to_raw()
}

/// The answer to a modern `tasks/get`: the task, with its result or error once there is one.
pub fn detailed(name: &TaskName, view: &TaskView, away: bool) -> Raw {
    let mut task = Members::default();
    task.set("resultType", raw("complete"));
    put(&mut task, Era::Modern, name, view, away);
    match (view.status, &view.result, &view.error) {
        (TaskStatus::Completed, Some(result), _) => task.set("result", result.clone()),
        (TaskStatus::Failed, _, Some(error)) => task.set("error", error.clone()),
        _ => {}
    }
    task.to_raw()
}

/// What the call itself would have been answered with.
pub fn outcome(view: TaskView) -> Option<Outcome> {
    view.result.map(Outcome::Result).or(view.error.map(Outcome::Error))
}

/// A legacy result that comes by way of a task says so.
pub fn related(result: &Raw, name: &TaskName) -> Raw {
    let mut related = Members::default();
    related.set("taskId", raw(&name.to_string()));
    meta::set(Some(result), meta::RELATED_TASK, related.to_raw()).unwrap_or_else(|_| result.clone())
}

fn put(task: &mut Members<'_>, era: Era, name: &TaskName, view: &TaskView, away: bool) {
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

/// What a tool itself calls an error is a failed task to the legacy era, and a completed one to the modern.
fn status(era: Era, view: &TaskView) -> TaskStatus {
    match (era, view.status) {
        (Era::Legacy, TaskStatus::Completed) if view.tool_failed => TaskStatus::Failed,
        (_, status) => status,
    }
}
