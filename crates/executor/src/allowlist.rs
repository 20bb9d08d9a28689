//! The tools of a host that each role may use.

use std::collections::{HashMap, HashSet};
use toolbus_policy::PolicySet;

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

    /// The same as rules of the policy, which decides.
    pub(crate) fn policy(&self) -> PolicySet {
        let set = PolicySet::of_tools(&self.entries);
        if self.deny_unlisted { set } else { set.with_others_unrestricted() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_policy::{Arguments, Effect, Item, Question};

    #[test]
    fn entries_restrict_roles_and_deny_unlisted_the_others() {
        let list = RoleToolAllowlist::from_entries([("researcher", vec!["click"]), ("locked", vec![])]);
        let check = |list: &RoleToolAllowlist, role, tool, expected| {
            let question = Question { role, server: "any", item: Item::Tool(tool), arguments: Arguments::Absent };
            let allows = list.policy().decide(&question).effect == Effect::Allow;
            assert_eq!(allows, expected, "{role:?} {tool}");
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
