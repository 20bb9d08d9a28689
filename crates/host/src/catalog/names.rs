//! The names under which workers see items: prefixes, and which server owns a name.

use super::Entry;
use super::page::item_of;
use hashbrown::{HashMap, HashSet};
use toolbus_mcp::{ListKind, Members, NameKey};

/// Maximum problems in a manifest; the rest is only counted.
pub(super) const MAX_PROBLEMS: usize = 20;
/// Maximum length of a tool name in most model APIs.
const MAX_TOOL_NAME: usize = 64;

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

/// Assigns each name to the first server that has it, and collects problems for the operator.
pub(super) fn assign_names(entries: &[Entry]) -> (Owners, Vec<String>) {
    let mut owners = Owners::default();
    let mut problems = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        problems.extend(entry.remarks.iter().map(|remark| format!("server {:?}: {remark}", entry.name)));
        problems.extend(entry.held_back_problem());
        problems.extend(entry.tripped.clone());
        for kind in ListKind::ALL {
            let prefix = entry.prefix.as_deref().filter(|_| is_prefixed(kind));
            for item in entry.lists.of(kind) {
                let Some(own) = Members::of(Some(item)).ok().and_then(|item| item.text(kind.key())) else { continue };
                let visible = visible_name(prefix, &own);
                if let Some(owner) = owners.claim(kind, &visible, index) {
                    problems.push(collision(kind, &visible, &entries[owner].name, &entry.name));
                }
                let length = visible.chars().count();
                if kind == ListKind::Tools && length > MAX_TOOL_NAME && prefix.is_some() {
                    problems.push(format!(
                        "tool {visible:?} of server {:?} has a name of {length} characters with its prefix; most model \
                         APIs take {MAX_TOOL_NAME}. Choose a shorter `prefix`.",
                        entry.name
                    ));
                }
            }
        }
    }
    if problems.len() > MAX_PROBLEMS {
        let more = problems.len() - MAX_PROBLEMS;
        problems.truncate(MAX_PROBLEMS);
        problems.push(format!("and {more} more problems"));
    }
    (owners, problems)
}

/// The longest name that all clients accept behind the name of the server, which they prepend.
const MAX_ACCEPTED_NAME: usize = 50;

/// Why some clients refuse or change this name of a tool. `None` if all of them accept it.
pub(super) fn refusing_clients(name: &str) -> Option<String> {
    let length = name.chars().count();
    let is_odd = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let mut reasons = Vec::new();
    if length > MAX_ACCEPTED_NAME {
        reasons.push(format!(
            "its name has {length} characters: with the server's name that clients prepend, Cursor refuses more than 60, \
             Gemini CLI shortens more than 63, and Claude Desktop, VS Code, Cline, Roo, Zed and Goose refuse more than 64"
        ));
    }
    if let Some(odd) = name.chars().find(|c| is_odd(*c)) {
        reasons.push(format!(
            "its name has {odd:?}: Claude Desktop refuses characters outside of A-Z, a-z, 0-9, _ and -, and Codex replaces \
             them"
        ));
    }
    (!reasons.is_empty()).then(|| format!("some clients can't use a tool: {}", reasons.join("; ")))
}

/// Names both servers and the setting that resolves the collision.
pub fn collision(kind: ListKind, name: &str, owner: &str, other: &str) -> String {
    let noun = item_of(kind, name).noun();
    let advice = if is_prefixed(kind) {
        format!("set `prefix` for one of them, for example prefix = \"{other}_\"")
    } else {
        "a `prefix` does not change URIs, so only one of the two servers can offer it".to_owned()
    };
    format!("{noun} {name:?} is offered by servers {owner:?} and {other:?}; {owner:?} keeps it. {advice}")
}

#[cfg(test)]
mod tests {
    use super::refusing_clients;

    #[test]
    fn names_that_some_clients_refuse_are_explained() {
        assert_eq!(refusing_clients("read_file-2"), None);
        assert_eq!(refusing_clients(&"a".repeat(50)), None);
        let long = refusing_clients(&"a".repeat(51)).expect("too long for Cursor");
        assert!(long.contains("51 characters") && long.contains("Cursor") && long.contains("Gemini CLI"), "{long}");
        let odd = refusing_clients("files.read").expect("refused by Claude Desktop");
        assert!(odd.contains("'.'") && odd.contains("Claude Desktop") && odd.contains("Codex"), "{odd}");
    }
}
