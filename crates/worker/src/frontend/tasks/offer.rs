//! How a client learns that calls can be tasks: by a capability, and tool by tool where its era wants that.

use super::wire::object_member;
use crate::frontend::Frontend;
use crate::view::Upstream;
use crate::worker::lock;
use serde_json::{Value, json};
use toolbus_mcp::{Era, LATEST_LEGACY, Members, Raw, meta, raw};

/// Tasks in the words of the legacy era. Only its latest version has them.
pub fn legacy_capability() -> Value {
    json!({"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}})
}

pub fn modern_capability() -> Value {
    json!({"extensions": {meta::TASKS_EXTENSION: {}}})
}

/// A server's answer to `initialize`, with our tasks if it has tools and no tasks of its own.
pub fn in_initialize(result: Raw) -> Raw {
    let offered = || {
        let mut members = Members::of(Some(&result)).ok()?;
        let capabilities = object_member(&members, "capabilities")?;
        let wanted = members.text("protocolVersion").as_deref() == Some(LATEST_LEGACY)
            && capabilities.contains("tools")
            && !capabilities.contains("tasks");
        let tasks = legacy_capability()["tasks"].take();
        wanted.then(|| members.edit("capabilities", |own| own.set("tasks", raw(&tasks))).ok())??;
        Some(members.to_raw())
    };
    offered().unwrap_or(result)
}

/// A server's answer to `server/discover`, likewise.
pub fn in_discover(result: Raw) -> Raw {
    let offered = || {
        let mut members = Members::of(Some(&result)).ok()?;
        let mut capabilities = object_member(&members, "capabilities")?;
        let own = object_member(&capabilities, "extensions").unwrap_or_default();
        if !capabilities.contains("tools") || own.contains(meta::TASKS_EXTENSION) {
            return None;
        }
        capabilities.edit("extensions", |own| own.set(meta::TASKS_EXTENSION, raw(&json!({})))).ok()?;
        let capabilities = capabilities.to_raw();
        members.set("capabilities", capabilities);
        Some(members.to_raw())
    };
    offered().unwrap_or(result)
}

/// A list of tools in which those can be tasks that say nothing about it.
pub fn in_tools(result: Raw) -> Raw {
    let marked = || {
        let mut members = Members::of(Some(&result)).ok()?;
        let tools: Vec<Raw> = serde_json::from_str(members.get("tools")?.get()).ok()?;
        let tools: Vec<Raw> = tools.into_iter().map(mark).collect();
        members.set("tools", raw(&tools));
        Some(members.to_raw())
    };
    marked().unwrap_or(result)
}

pub fn mark(tool: Raw) -> Raw {
    let marked = || {
        let mut members = Members::of(Some(&tool)).ok()?;
        let mut execution = object_member(&members, "execution").unwrap_or_default();
        if execution.contains("taskSupport") {
            return None;
        }
        execution.set("taskSupport", raw("optional"));
        let execution = execution.to_raw();
        members.set("execution", execution);
        Some(members.to_raw())
    };
    marked().unwrap_or(tool)
}

/// What the tool's definition says about tasks.
pub fn support_of(upstream: &Upstream, tool: &str) -> Option<String> {
    let found = upstream.manifest().tools.iter().find_map(|item| {
        let members = Members::of(Some(item)).ok()?;
        (members.text("name").as_deref() == Some(tool)).then_some(members)
    })?;
    object_member(&found, "execution")?.text("taskSupport")
}

impl Frontend {
    /// Whether the session has heard of our tasks.
    pub(super) fn has_legacy_tasks(&self) -> bool {
        lock(&self.state).version.as_deref() == Some(LATEST_LEGACY)
    }

    /// Whether tools are marked for this client: it has to speak of tasks itself. To others the mark is of no use, and some
    /// would make every call a task, in which a server can't ask them anything.
    pub fn marks_tools(&self, era: Era, upstream: &Upstream) -> bool {
        if era == Era::Modern || upstream.has_own_tasks(era) || !self.has_legacy_tasks() {
            return false;
        }
        let initialize = lock(&self.state).initialize.clone();
        let hello = Members::of(initialize.as_deref()).unwrap_or_default();
        object_member(&hello, "capabilities").is_some_and(|capabilities| capabilities.contains("tasks"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(change: fn(Raw) -> Raw, json: &str) -> String {
        change(serde_json::value::RawValue::from_string(json.to_owned()).expect("JSON")).get().to_owned()
    }

    #[test]
    fn a_greeting_gets_tasks_only_where_they_are_of_use_and_nothing_else_changes() {
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
    fn a_discovery_gets_the_extension_beside_those_of_the_server() {
        let offered = text(in_discover, r#"{"capabilities":{"tools":{},"extensions":{"a/b":{"c":1.0}}},"ttlMs":5}"#);
        let extensions = r#"{"a/b":{"c":1.0},"io.modelcontextprotocol/tasks":{}}"#;
        assert_eq!(offered, format!(r#"{{"capabilities":{{"tools":{{}},"extensions":{extensions}}},"ttlMs":5}}"#));
        assert_eq!(text(in_discover, &offered), offered);
        let without_tools = r#"{"capabilities":{"prompts":{}}}"#;
        assert_eq!(text(in_discover, without_tools), without_tools);
    }

    #[test]
    fn tools_that_say_something_about_tasks_keep_their_word() {
        let list = r#"{"tools":[{"name":"a"},{"name":"b","execution":{"taskSupport":"forbidden"}},{"name":"c","execution":{"x":1.0}}]}"#;
        let expected = r#"{"tools":[{"name":"a","execution":{"taskSupport":"optional"}},{"name":"b","execution":{"taskSupport":"forbidden"}},{"name":"c","execution":{"x":1.0,"taskSupport":"optional"}}]}"#;
        assert_eq!(text(in_tools, list), expected);
    }
}
