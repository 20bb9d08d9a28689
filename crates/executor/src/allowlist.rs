//! Which role may use which tools of a host.

use crate::tool::ToolSchema;
use std::collections::{HashMap, HashSet};

/// A role with an entry sees and calls what its entry names, and nothing else; an empty entry is a lockout. A role
/// without an entry, or no role at all, is unrestricted, unless [`RoleToolAllowlist::deny_unlisted`] says otherwise.
///
/// The role is the one that the broker vouches for. With one token shared by all agents, that is whatever the agent
/// says of itself: then the list guards against mistakes, not against malice.
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

    pub fn from_entries<R, T, I>(entries: I) -> Self
    where
        R: Into<String>,
        T: Into<String>,
        I: IntoIterator<Item = (R, Vec<T>)>,
    {
        entries.into_iter().fold(Self::default(), |list, (role, tools)| list.with_role(role, tools))
    }

    /// Adds a role's entry, or replaces it.
    pub fn with_role(mut self, role: impl Into<String>, tools: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.entries.insert(role.into(), tools.into_iter().map(Into::into).collect());
        self
    }

    /// Locks out every role that has no entry, and whoever has no role.
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

    /// What of a manifest the role may see.
    pub(crate) fn visible(&self, role: Option<&str>, mut tools: Vec<ToolSchema>) -> Vec<ToolSchema> {
        tools.retain(|tool| self.allows(role, &tool.function.name));
        tools
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_use_what() {
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
