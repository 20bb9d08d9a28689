//! The names under which workers see what servers have: prefixes on and off, and which server a name belongs to.

use std::collections::{HashMap, HashSet};
use toolbus_mcp::{ListKind, NameKey};

/// What model APIs accept as the name of a tool.
pub const LONGEST_TOOL_NAME: usize = 64;

/// Which server keeps which name: the first in the order of the configuration.
#[derive(Debug, Default, Clone)]
pub struct Owners {
    owners: HashMap<ListKind, HashMap<String, usize>>,
    /// Servers that have something under a name which an earlier one keeps.
    losers: HashSet<(ListKind, String, usize)>,
}

impl Owners {
    /// The earlier owner, if the name is taken.
    pub fn claim(&mut self, kind: ListKind, name: &str, server: usize) -> Option<usize> {
        let owner = *self.owners.entry(kind).or_default().entry(name.to_owned()).or_insert(server);
        if owner == server {
            return None;
        }
        self.losers.insert((kind, name.to_owned(), server));
        Some(owner)
    }

    /// The other server to which this name belongs.
    pub fn foreign_owner(&self, kind: ListKind, name: &str, server: usize) -> Option<usize> {
        self.owner(kind, name).filter(|owner| *owner != server)
    }

    pub fn owner(&self, kind: ListKind, name: &str) -> Option<usize> {
        self.owners.get(&kind)?.get(name).copied()
    }

    /// The server that keeps a name which this one offers in vain, by what a request says.
    pub fn lost_to(&self, key: &NameKey, server: usize) -> Option<usize> {
        if self.losers.is_empty() {
            return None;
        }
        let (kind, name) = match key {
            NameKey::Tool(name) => (ListKind::Tools, name),
            NameKey::Prompt(name) => (ListKind::Prompts, name),
            NameKey::Uri(uri) => (ListKind::Resources, uri),
            NameKey::Task(_) => return None,
        };
        self.losers.contains(&(kind, name.clone(), server)).then(|| self.owner(kind, name)).flatten()
    }
}

/// Whether items of this kind get a prefix. A URI has to stay what it is, because it also stands inside of results.
pub fn is_prefixed(kind: ListKind) -> bool {
    matches!(kind, ListKind::Tools | ListKind::Prompts)
}

/// The name by which the server knows what workers see under this one.
pub fn own_name<'a>(prefix: Option<&str>, visible: &'a str) -> Option<&'a str> {
    prefix.map_or(Some(visible), |prefix| visible.strip_prefix(prefix))
}

pub fn visible_name(prefix: Option<&str>, own: &str) -> String {
    [prefix.unwrap_or_default(), own].concat()
}
