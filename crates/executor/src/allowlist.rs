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

    /// Like [`from_entries`](Self::from_entries), for entries of a configuration file: trims names, leaves empty ones out,
    /// and logs a warning for each of them, for a role that is listed twice (the last entry counts), and for tools that are
    /// not among `known_tools`, unless that is empty. Such a tool stays listed: it may come later.
    pub fn from_config<R, T, I>(entries: I, known_tools: &HashSet<String>) -> Self
    where
        R: Into<String>,
        T: Into<String>,
        I: IntoIterator<Item = (R, Vec<T>)>,
    {
        let mut list = Self::default();
        for (role, tools) in entries {
            let role = role.into().trim().to_owned();
            let mut tools: HashSet<String> = tools.into_iter().map(|tool| tool.into().trim().to_owned()).collect();
            if role.is_empty() {
                tracing::warn!("allowlist: an entry without a role is left out; no agent has that role");
                continue;
            }
            if tools.remove("") {
                tracing::warn!(role, "allowlist: a tool without a name is left out");
            }
            for tool in tools.iter().filter(|tool| !known_tools.is_empty() && !known_tools.contains(*tool)) {
                tracing::warn!(role, tool, "allowlist: there is no such tool now; check its spelling");
            }
            if list.entries.insert(role.clone(), tools).is_some() {
                tracing::warn!(role, "allowlist: the role is listed twice; the last entry counts");
            }
        }
        list
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use toolbus_policy::{Arguments, Effect, Item, Question};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

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

    #[test]
    fn entries_of_a_configuration_are_cleaned_and_warned_about() {
        let warnings = Warnings::default();
        let entries = [
            (" researcher ", vec!["type"]),
            ("researcher", vec![" click", "", "clikc"]),
            ("  ", vec!["click"]),
            ("locked", vec![]),
        ];
        let known = HashSet::from(["click".to_owned(), "type".to_owned()]);
        let list =
            tracing::subscriber::with_default(warnings.clone(), || RoleToolAllowlist::from_config(entries, &known));
        let expected = RoleToolAllowlist::from_entries([("researcher", vec!["click", "clikc"]), ("locked", vec![])]);
        assert_eq!(list.entries, expected.entries);
        assert_eq!(warnings.0.load(Ordering::Relaxed), 4, "a role, a tool, a misspelling, a role twice");
        tracing::subscriber::with_default(warnings.clone(), || {
            RoleToolAllowlist::from_config([("researcher", vec!["clikc"])], &HashSet::new())
        });
        assert_eq!(warnings.0.load(Ordering::Relaxed), 4, "no tool is known");
    }

    /// Counts the events of its thread.
    #[derive(Clone, Default)]
    struct Warnings(Arc<AtomicUsize>);

    impl Subscriber for Warnings {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }
}
