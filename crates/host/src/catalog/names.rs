//! The names under which workers see items: prefixes, and which server owns a name.

use std::collections::{HashMap, HashSet};
use toolbus_mcp::{ListKind, NameKey};

/// Maximum length of a tool name in most model APIs.
pub const MAX_TOOL_NAME: usize = 64;

/// Which server owns which name: the first one in configuration order.
#[derive(Debug, Default, Clone)]
pub struct Owners {
    owners: HashMap<ListKind, HashMap<String, usize>>,
    /// Items that are hidden because an earlier server owns their name.
    shadowed: HashSet<(ListKind, String, usize)>,
}

impl Owners {
    /// Claims a name for a server; returns the owner if it is another server.
    pub fn claim(&mut self, kind: ListKind, name: &str, server: usize) -> Option<usize> {
        let owner = *self.owners.entry(kind).or_default().entry(name.to_owned()).or_insert(server);
        if owner == server {
            return None;
        }
        self.shadowed.insert((kind, name.to_owned(), server));
        Some(owner)
    }

    /// The owner of this name, if it is another server.
    pub fn foreign_owner(&self, kind: ListKind, name: &str, server: usize) -> Option<usize> {
        self.owner(kind, name).filter(|owner| *owner != server)
    }

    /// The server that owns this name.
    pub fn owner(&self, kind: ListKind, name: &str) -> Option<usize> {
        self.owners.get(&kind)?.get(name).copied()
    }

    /// The owner of the name in a request, if this server has an item of that name too but doesn't own it.
    pub fn lost_to(&self, key: &NameKey, server: usize) -> Option<usize> {
        if self.shadowed.is_empty() {
            return None;
        }
        let (kind, name) = match key {
            NameKey::Tool(name) => (ListKind::Tools, name),
            NameKey::Prompt(name) => (ListKind::Prompts, name),
            NameKey::Uri(uri) => (ListKind::Resources, uri),
            NameKey::Task(_) => return None,
        };
        self.shadowed.contains(&(kind, name.clone(), server)).then(|| self.owner(kind, name)).flatten()
    }
}

/// Whether items of this kind get a prefix. URIs don't, because results contain them as well.
pub fn is_prefixed(kind: ListKind) -> bool {
    matches!(kind, ListKind::Tools | ListKind::Prompts)
}

/// Removes the prefix from a visible name; `None` if it lacks the prefix.
pub fn own_name<'a>(prefix: Option<&str>, visible: &'a str) -> Option<&'a str> {
    prefix.map_or(Some(visible), |prefix| visible.strip_prefix(prefix))
}

pub fn visible_name(prefix: Option<&str>, own: &str) -> String {
    [prefix.unwrap_or_default(), own].concat()
}
