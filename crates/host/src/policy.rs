//! Who may use what. One function decides for lists, calls, resources, prompts and completion alike, and it denies what
//! it doesn't know.

use globset::{Glob, GlobSet, GlobSetBuilder};
use std::collections::BTreeMap;

/// What a request is about, under the name that workers see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    Tool(&'a str),
    Resource(&'a str),
    Prompt(&'a str),
    /// Nothing that has a name: lists (their items are decided one by one), handshakes, pings.
    Other,
}

impl<'a> Item<'a> {
    pub fn name(self) -> Option<&'a str> {
        match self {
            Self::Tool(name) | Self::Resource(name) | Self::Prompt(name) => Some(name),
            Self::Other => None,
        }
    }

    pub fn noun(self) -> &'static str {
        match self {
            Self::Tool(_) => "tool",
            Self::Resource(_) => "resource",
            Self::Prompt(_) => "prompt",
            Self::Other => "server",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Allow,
    Deny,
}

pub trait Policy: Send + Sync {
    fn decide(&self, role: Option<&str>, server: &str, item: Item<'_>) -> Decision;

    /// The roles that have rules of their own. Whoever has none of them gets what `decide` says for no role.
    fn roles(&self) -> Vec<String>;

    fn allows(&self, role: Option<&str>, server: &str, item: Item<'_>) -> bool {
        self.decide(role, server, item) == Decision::Allow
    }
}

/// No roles are configured: everybody whom the broker let in may use everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllowAll;

impl Policy for AllowAll {
    fn decide(&self, _role: Option<&str>, _server: &str, _item: Item<'_>) -> Decision {
        Decision::Allow
    }

    fn roles(&self) -> Vec<String> {
        Vec::new()
    }
}

/// An allowlist for each role, of globs over `NAME` and `SERVER/NAME`. A role without an entry may use nothing.
#[derive(Debug, Clone, Default)]
pub struct RoleRules(BTreeMap<String, Rules>);

/// Patterns that name a server are kept apart: a tool of another server might be called `SERVER/NAME` all by itself.
#[derive(Debug, Clone)]
struct Rules {
    of_names: GlobSet,
    of_servers: GlobSet,
}

impl Rules {
    fn is_empty(&self) -> bool {
        self.of_names.is_empty() && self.of_servers.is_empty()
    }

    fn allow(&self, server: &str, name: &str) -> bool {
        self.of_names.is_match(name) || self.of_servers.is_match(format!("{server}/{name}"))
    }
}

/// Whether a pattern begins with the name of a server. `file:///x` begins with a scheme.
fn names_a_server(pattern: &str) -> bool {
    pattern.split_once('/').is_some_and(|(first, _)| !first.ends_with(':'))
}

#[derive(Debug, thiserror::Error)]
#[error("role {role:?} allows {pattern:?}, which is not a pattern: {source}")]
pub struct BadPattern {
    pub role: String,
    pub pattern: String,
    #[source]
    pub source: globset::Error,
}

impl RoleRules {
    pub fn new<P: AsRef<str>>(
        entries: impl IntoIterator<Item = (String, impl IntoIterator<Item = P>)>,
    ) -> Result<Self, BadPattern> {
        let mut rules = BTreeMap::new();
        for (role, patterns) in entries {
            let (mut of_names, mut of_servers) = (GlobSetBuilder::new(), GlobSetBuilder::new());
            for pattern in patterns {
                let pattern = pattern.as_ref();
                let bad = |source| BadPattern { role: role.clone(), pattern: pattern.to_owned(), source };
                let set = if names_a_server(pattern) { &mut of_servers } else { &mut of_names };
                set.add(Glob::new(pattern).map_err(bad)?);
            }
            let bad = |source| BadPattern { role: role.clone(), pattern: String::new(), source };
            let of_names = of_names.build().map_err(bad)?;
            let of_servers = of_servers.build().map_err(bad)?;
            rules.insert(role, Rules { of_names, of_servers });
        }
        Ok(Self(rules))
    }
}

impl Policy for RoleRules {
    fn decide(&self, role: Option<&str>, server: &str, item: Item<'_>) -> Decision {
        let Some(rules) = role.and_then(|role| self.0.get(role)) else { return Decision::Deny };
        let allowed = match item.name() {
            // `file:///pub/../etc` is what its server makes of it.
            Some(uri) if matches!(item, Item::Resource(_)) => {
                rules.allow(server, uri) && without_dots(uri).is_none_or(|plain| rules.allow(server, &plain))
            }
            Some(name) => rules.allow(server, name),
            // What has no name shows nothing by itself; an empty entry locks out all the same.
            None => !rules.is_empty(),
        };
        if allowed { Decision::Allow } else { Decision::Deny }
    }

    fn roles(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}

/// The address that is meant by one with `.` and `..` in its path, however they are written.
fn without_dots(uri: &str) -> Option<String> {
    let plain = uri.replace("%2e", ".").replace("%2E", ".").replace("%2f", "/").replace("%2F", "/").replace('\\', "/");
    let is_dots = |part: &str| part == "." || part == "..";
    if plain == uri && !plain.split('/').any(is_dots) {
        return None;
    }
    let (scheme, path) = plain.split_once("://").map_or(("", plain.as_str()), |(scheme, path)| (scheme, path));
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    Some(format!("{scheme}://{}", parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> RoleRules {
        RoleRules::new([
            ("reader".to_owned(), vec!["read_*", "files/stat", "file:///pub/**"]),
            ("operator".to_owned(), vec!["**"]),
            ("locked".to_owned(), vec![]),
        ])
        .expect("these are patterns")
    }

    #[track_caller]
    fn check(role: Option<&str>, server: &str, item: Item<'_>, allowed: bool) {
        assert_eq!(rules().allows(role, server, item), allowed, "{role:?} {server} {item:?}");
    }

    #[test]
    fn a_role_may_use_what_its_entry_names_and_nothing_else() {
        check(Some("reader"), "files", Item::Tool("read_file"), true);
        check(Some("reader"), "other", Item::Tool("read_file"), true);
        check(Some("reader"), "files", Item::Tool("stat"), true);
        check(Some("reader"), "other", Item::Tool("stat"), false);
        check(Some("reader"), "files", Item::Tool("write_file"), false);
        check(Some("reader"), "files", Item::Prompt("read_me"), true);
        check(Some("reader"), "files", Item::Resource("file:///pub/a/b.txt"), true);
        check(Some("reader"), "files", Item::Resource("file:///etc/passwd"), false);
        check(Some("operator"), "files", Item::Resource("file:///etc/passwd"), true);
    }

    #[test]
    fn a_pattern_that_names_a_server_is_about_that_server_only() {
        check(Some("reader"), "evil", Item::Tool("files/stat"), false);
        check(Some("reader"), "files", Item::Tool("files/stat"), false);
    }

    #[test]
    fn no_detour_leads_out_of_an_allowed_folder() {
        for uri in [
            "file:///pub/../etc/passwd",
            "file:///pub/%2e%2E/etc/passwd",
            "file:///pub/x/..%2f..%2Fetc",
            "file:///pub/..\\etc",
        ] {
            check(Some("reader"), "files", Item::Resource(uri), false);
        }
        check(Some("reader"), "files", Item::Resource("file:///pub/a/../b"), true);
    }

    #[test]
    fn unknown_and_absent_roles_and_empty_entries_are_locked_out() {
        for role in [None, Some("stranger"), Some("locked"), Some("Reader"), Some("")] {
            for item in [Item::Tool("read_file"), Item::Resource("x://y"), Item::Prompt("p"), Item::Other] {
                check(role, "files", item, false);
            }
        }
    }

    #[test]
    fn a_pattern_that_is_none_is_an_error_that_names_it() {
        let error = RoleRules::new([("reader".to_owned(), vec!["a["])]).expect_err("an open bracket");
        assert!(error.to_string().contains("\"a[\"") && error.to_string().contains("reader"), "{error}");
    }
}
