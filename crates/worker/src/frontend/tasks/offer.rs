//! Advertises tasks to clients: by a capability, and per tool where the era requires it.

use super::wire::object_member;
use crate::frontend::Frontend;
use crate::view::Upstream;
use crate::worker::lock;
use serde_json::{Value, json};
use toolbus_mcp::{Era, LATEST_LEGACY, Members, Raw, meta, raw};

/// The legacy tasks capability. Only the latest legacy version has it.
pub fn legacy_capability() -> Value {
    json!({"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}})
}

pub fn modern_capability() -> Value {
    json!({"extensions": {meta::TASKS_EXTENSION: {}}})
}

/// Adds our tasks to a server's `initialize` result if the server has tools and no tasks of its own.
pub fn in_initialize(result: Raw) -> Raw {
    let offered = || {
        let mut members = Members::of(Some(&result)).ok()?.clone();
        let capabilities = object_member(&members, "capabilities")?;
        let wanted = members.text("protocolVersion").as_deref() == Some(LATEST_LEGACY)
            && capabilities.contains("tools")
            && !capabilities.contains("tasks");
        let tasks = legacy_capability()["tasks"].take();
        wanted.then(|| members.edit("capabilities", |own| own.set("tasks", raw(&tasks))).ok())??;
        Some(members.into_raw())
    };
    offered().unwrap_or(result)
}

/// Adds our tasks to a server's `server/discover` result if the server has tools and no tasks of its own.
pub fn in_discover(result: Raw) -> Raw {
    let offered = || {
        let mut members = Members::of(Some(&result)).ok()?.clone();
        let mut capabilities = object_member(&members, "capabilities")?.clone();
        let own = object_member(&capabilities, "extensions").unwrap_or_default();
        if !capabilities.contains("tools") || own.contains(meta::TASKS_EXTENSION) {
            return None;
        }
        capabilities.edit("extensions", |own| own.set(meta::TASKS_EXTENSION, raw(&json!({})))).ok()?;
        let capabilities = capabilities.into_raw();
        members.set("capabilities", capabilities);
        Some(members.into_raw())
    };
    offered().unwrap_or(result)
}

/// Marks each tool in a `tools/list` result as callable as a task, unless its definition says otherwise.
pub fn in_tools(result: Raw) -> Raw {
    let marked = || {
        let mut members = Members::of(Some(&result)).ok()?.clone();
        let tools: Vec<Raw> = serde_json::from_str(members.get("tools")?.get()).ok()?;
        let tools: Vec<Raw> = tools.into_iter().map(mark_task_support).collect();
        members.set("tools", Raw::array(&tools));
        Some(members.into_raw())
    };
    marked().unwrap_or(result)
}

pub fn mark_task_support(tool: Raw) -> Raw {
    let marked = || {
        let mut members = Members::of(Some(&tool)).ok()?.clone();
        let mut execution = object_member(&members, "execution").unwrap_or_default().clone();
        if execution.contains("taskSupport") {
            return None;
        }
        execution.set("taskSupport", raw("optional"));
        let execution = execution.into_raw();
        members.set("execution", execution);
        Some(members.into_raw())
    };
    marked().unwrap_or(tool)
}

/// The `taskSupport` in the tool's definition.
pub fn task_support(upstream: &Upstream, tool: &str) -> Option<String> {
    let found = upstream.manifest().tools.iter().find_map(|item| {
        let members = Members::parse(item.text()).ok()?;
        (members.text("name").as_deref() == Some(tool)).then_some(members)
    })?;
    object_member(&found, "execution")?.text("taskSupport")
}

impl Frontend {
    /// Whether the negotiated version has tasks.
    pub(super) fn has_legacy_tasks(&self) -> bool {
        lock(&self.state).version.as_deref() == Some(LATEST_LEGACY)
    }

    /// Whether tools are marked as callable as tasks for this client: only if it declares tasks itself. Some other
    /// clients would turn every marked call into a task, and a server can't send client requests from within a task.
    pub fn marks_tools(&self, era: Era, upstream: &Upstream) -> bool {
        if era == Era::Modern || upstream.has_own_tasks(era) || !self.has_legacy_tasks() {
            return false;
        }
        let initialize = lock(&self.state).initialize.clone();
        let hello = Members::of(initialize.as_ref()).unwrap_or_default();
        object_member(hello, "capabilities").is_some_and(|capabilities| capabilities.contains("tasks"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(change: fn(Raw) -> Raw, json: &str) -> String {
        change(Raw::parse(json).expect("JSON")).get().to_owned()
    }

    #[test]
    fn an_initialize_result_gets_tasks_only_with_tools_and_without_own_tasks() {
        let offered = text(in_initialize, r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"x":1.0}"#);
        let tasks = r#"{"cancel":{},"list":{},"requests":{"tools":{"call":{}}}}"#;
        let expected =
            format!(r#"{{"protocolVersion":"2025-11-25","capabilities":{{"tools":{{}},"tasks":{tasks}}},"x":1.0}}"#);
        assert_eq!(offered, expected);
        for other in [
            r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}"#,
            r#"{"protocolVersion":"2025-11-25","capabilities":{"prompts":{}}}"#,
            r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"tasks":{"list":{}}}}"#,
            r#"{"protocolVersion":"2025-11-25"}"#,
        ] {
            assert_eq!(text(in_initialize, other), other);
        }
    }

    #[test]
    fn a_discover_result_keeps_the_extensions_of_the_server() {
        let offered = text(in_discover, r#"{"capabilities":{"tools":{},"extensions":{"a/b":{"c":1.0}}},"ttlMs":5}"#);
        let extensions = r#"{"a/b":{"c":1.0},"io.modelcontextprotocol/tasks":{}}"#;
        assert_eq!(offered, format!(r#"{{"capabilities":{{"tools":{{}},"extensions":{extensions}}},"ttlMs":5}}"#));
        assert_eq!(text(in_discover, &offered), offered);
        let without_tools = r#"{"capabilities":{"prompts":{}}}"#;
        assert_eq!(text(in_discover, without_tools), without_tools);
    }

    #[test]
    fn an_existing_task_support_is_kept() {
        let list = r#"{"tools":[{"name":"a"},{"name":"b","execution":{"taskSupport":"forbidden"}},{"name":"c","execution":{"x":1.0}}]}"#;
        let expected = r#"{"tools":[{"name":"a","execution":{"taskSupport":"optional"}},{"name":"b","execution":{"taskSupport":"forbidden"}},{"name":"c","execution":{"x":1.0,"taskSupport":"optional"}}]}"#;
        assert_eq!(text(in_tools, list), expected);
    }
}
