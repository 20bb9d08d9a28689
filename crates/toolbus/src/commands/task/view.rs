//! Tasks as a table, as JSON, and by a part of their name.

use super::Named;
use crate::table::{age, fitted, short_ids};
use serde_json::json;
use toolbus_base::{now_ms, terminal_line};
use toolbus_mcp::{Members, Raw, TaskName, TaskStatus, TaskView, raw};

/// The only task with that name, or whose name or id begins so.
pub fn pick(mut names: Vec<TaskName>, id: &str) -> Option<TaskName> {
    if let Some(exact) = names.iter().position(|name| name.id == id || name.to_string() == id) {
        return Some(names.swap_remove(exact));
    }
    let mut matches = names.into_iter().filter(|name| name.id.starts_with(id) || name.to_string().starts_with(id));
    let first = matches.next();
    first.filter(|_| matches.next().is_none())
}

/// The displayed status. A completed task whose result has `isError` is shown as failed.
pub fn status_name(view: &TaskView) -> &'static str {
    match view.status {
        TaskStatus::Working => "working",
        TaskStatus::InputRequired => "input_required",
        TaskStatus::Completed if view.tool_failed => "failed",
        TaskStatus::Completed => "completed",
        TaskStatus::Failed => "failed",
        TaskStatus::Cancelled => "cancelled",
    }
}

pub fn as_json(name: &TaskName, view: &TaskView) -> Raw {
    let mut task = Members::default();
    let members = json!({"task": name.to_string(), "host": name.host, "agent": view.agent, "server": view.server,
        "tool": view.tool, "status": status_name(view), "message": view.message, "created_ms": view.created_ms,
        "updated_ms": view.updated_ms, "ttl_ms": view.ttl_ms});
    for (name, value) in members.as_object().into_iter().flatten() {
        task.set(name.clone(), raw(value));
    }
    // Raw JSON, as the tool wrote it.
    if let Some(result) = &view.result {
        task.set("result", result.clone());
    }
    if let Some(error) = &view.error {
        task.set("error", error.clone());
    }
    task.into_raw()
}

/// With a width, the table is made to fit.
pub fn as_table(tasks: &[Named], all: bool, width: Option<usize>) -> String {
    let now = now_ms();
    let ids = short_ids(tasks.iter().map(|task| task.name.id.as_str()));
    let mut rows = vec![["TASK", "HOST", "TOOL", "AGENT", "STATUS", "AGE", "KEPT", "MESSAGE"].map(str::to_owned)];
    for (id, Named { name, view }) in ids.into_iter().zip(tasks) {
        rows.push([
            id,
            name.host.clone(),
            format!("{}/{}", view.server, view.tool),
            view.agent.clone(),
            status_name(view).to_owned(),
            age(now.saturating_sub(view.created_ms)),
            age((view.created_ms + view.ttl_ms).saturating_sub(now)),
            view.message.as_deref().map(terminal_line).unwrap_or_default(),
        ]);
    }
    if all {
        return fitted(&rows, width);
    }
    let own =
        |[task, host, tool, _, status, age, kept, message]: [String; 8]| [task, host, tool, status, age, kept, message];
    fitted(&rows.into_iter().map(own).collect::<Vec<_>>(), width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(host: &str, id: &str) -> Named {
        let view = json!({
            "id": id, "agent": "build-agent-7", "server": "filesystem", "tool": "search_for_files", "status": "working",
            "created_ms": now_ms() - 5_000, "updated_ms": 0, "ttl_ms": 86_400_000,
            "message": "searched 1200 of 5000 folders, and found nothing so far",
        });
        let view = serde_json::from_value(view).expect("a task");
        Named { name: TaskName { host: host.to_owned(), id: id.to_owned() }, view }
    }

    const FIRST: &str = "7c0e1f42-0000-4000-8000-000000000001";
    const SECOND: &str = "7c0e1f43-0000-4000-8000-000000000002";

    #[test]
    fn the_table_fits_80_columns_and_every_column_has_a_header() {
        for all in [false, true] {
            let text = as_table(&[named("attic", FIRST), named("a-host-with-a-long-name", SECOND)], all, Some(80));
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
            assert!(text.contains("MESSAGE") && text.contains("7c0e1f42 ") && text.contains("7c0e1f43 "), "{text}");
        }
    }

    #[test]
    fn a_task_is_found_by_each_unambiguous_part_of_its_name() {
        let find = |id: &str| {
            let names = [named("attic", FIRST), named("b", SECOND)].map(|task| task.name);
            pick(names.into(), id).map(|name| name.id)
        };
        for id in [FIRST, "7c0e1f42", "toolbus:attic:7c0e", "toolbus:attic:", &format!("toolbus:attic:{FIRST}")] {
            assert_eq!(find(id).as_deref(), Some(FIRST), "{id}");
        }
        assert_eq!((find("7c0e"), find("8"), find("toolbus:c:7c")), (None, None, None));
        let again = [named("a", FIRST), named("a", &format!("{FIRST}.again"))].map(|task| task.name);
        assert_eq!(pick(again.into(), FIRST).map(|name| name.id).as_deref(), Some(FIRST), "an exact match wins");
    }
}
