//! The tools of a host that each role may use.

use crate::tool::ToolSchema;
use std::collections::{HashMap, HashSet};

/// The tools that each role may list and call.
///
/// A role with an entry may use only the tools in it; an empty entry denies all tools. A role without an entry, or a
/// caller without a role, is unrestricted unless [`RoleToolAllowlist::deny_unlisted`] is set.
///
/// The role is the one that the broker stamps on messages. With a token shared by all agents the broker can't verify
/// it: then the allowlist guards against mistakes, not against malicious agents.
#[derive(Debug, Clone, Default)]
pub struct RoleToolAllowlist {
    entries: HashMap<String, HashSet<String>>,
    deny_unlisted: bool,
}

impl RoleToolAllowlist {
    /// Every role may use every tool.
    pub fn unrestricted() -> Self {
        Self::default()
    }

    /// An allowlist with these entries of a role and its tools.
    pub fn from_entries<R, T, I>(entries: I) -> Self
    where
        R: Into<String>,
        T: Into<String>,
        I: IntoIterator<Item = (R, Vec<T>)>,
    {
        entries.into_iter().fold(Self::default(), |list, (role, tools)| list.with_role(role, tools))
    }

    /// Adds or replaces the entry of a role.
    pub fn with_role(mut self, role: impl Into<String>, tools: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.entries.insert(role.into(), tools.into_iter().map(Into::into).collect());
        self
    }

    /// Denies all tools to roles without an entry and to callers without a role.
    pub fn deny_unlisted(mut self) -> Self {
        self.deny_unlisted = true;
        self
    }

    pub(crate) fn allows(&self, role: Option<&str>, tool: &str) -> bool {
        match role.and_then(|role| self.entries.get(role)) {
            Some(tools) => tools.contains(tool),
            None => !self.deny_unlisted,
        }
    }

    /// The tools of the manifest that the role may use.
    pub(crate) fn visible(&self, role: Option<&str>, mut tools: Vec<ToolSchema>) -> Vec<ToolSchema> {
        tools.retain(|tool| self.allows(role, &tool.function.name));
        tools
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_restrict_roles_and_deny_unlisted_the_others() {
        let list = RoleToolAllowlist::from_entries([("researcher", vec!["click"]), ("locked", vec![])]);
        let check = |list: &RoleToolAllowlist, role, tool, expected| {
            assert_eq!(list.allows(role, tool), expected, "{role:?} {tool}");
        };
        check(&list, Some("researcher"), "click", true);
        check(&list, Some("researcher"), "type", false);
        check(&list, Some("locked"), "click", false);
        check(&list, Some("operator"), "click", true);
        check(&list, None, "click", true);
        check(&RoleToolAllowlist::unrestricted(), Some("researcher"), "type", true);
        let list = list.with_role("researcher", ["type"]).deny_unlisted();
        check(&list, Some("researcher"), "click", false);
        check(&list, Some("researcher"), "type", true);
        check(&list, Some("operator"), "type", false);
        check(&list, None, "type", false);
    }
}
