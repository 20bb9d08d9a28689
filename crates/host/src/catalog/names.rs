//! The names under which workers see what servers have: prefixes on and off, and which server a name belongs to.

use std::collections::HashMap;
use toolbus_mcp::{ListKind, NameKey};

/// What model APIs accept as the name of a tool.
pub const LONGEST_TOOL_NAME: usize = 64;

/// Which server keeps which name: the first in the order of the configuration.
#[derive(Debug, Default, Clone)]
pub struct Owners(HashMap<(ListKind, String), usize>);

impl Owners {
    /// The earlier owner, if the name is taken.
    pub fn claim(&mut self, kind: ListKind, name: &str, server: usize) -> Option<usize> {
        let owner = *self.0.entry((kind, name.to_owned())).or_insert(server);
        (owner != server).then_some(owner)
    }

    /// The other server to which this name belongs.
    pub fn foreign_owner(&self, kind: ListKind, name: &str, server: usize) -> Option<usize> {
        let owner = *self.0.get(&(kind, name.to_owned()))?;
        (owner != server).then_some(owner)
    }

    pub fn owner(&self, kind: ListKind, name: &str) -> Option<usize> {
        self.0.get(&(kind, name.to_owned())).copied()
    }

    /// Where a name that belongs to somebody else is looked for, by what a request says.
    pub fn foreign_owner_of(&self, key: &NameKey, server: usize) -> Option<usize> {
        match key {
            NameKey::Tool(name) => self.foreign_owner(ListKind::Tools, name, server),
            NameKey::Prompt(name) => self.foreign_owner(ListKind::Prompts, name, server),
            NameKey::Uri(uri) => self.foreign_owner(ListKind::Resources, uri, server),
            NameKey::Task(_) => None,
        }
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
    format!("{}{own}", prefix.unwrap_or_default())
}
