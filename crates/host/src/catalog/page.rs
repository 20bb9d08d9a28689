//! Filters and renames one page of a server's list for a worker.

use super::names::{Owners, is_prefixed, visible_name};
use crate::pins::{PinnedServer, Pins};
use std::borrow::Cow;
use toolbus_mcp::{Era, ListKind, Members, MembersError, Raw, raw};
use toolbus_policy::{Arguments, Item, PolicySet, Question};
use toolbus_upstream::PinMode;

/// The view of a role on the lists of one server.
pub struct Viewer<'a> {
    /// The viewer's role.
    pub role: Option<&'a str>,
    /// The policy in force.
    pub policy: &'a PolicySet,
    /// The owners of all names.
    pub owners: &'a Owners,
    /// The server's name.
    pub server: &'a str,
    /// The server's index.
    pub index: usize,
    /// The prefix of the server's tools and prompts.
    pub prefix: Option<&'a str>,
    /// The pins of the host.
    pub pins: &'a Pins,
    /// The server's own pin mode, if it has one.
    pub pin: Option<PinMode>,
    /// The era in which the server gave the list, if known.
    pub era: Option<Era>,
}

/// The policy item of a list entry.
pub fn item_of(kind: ListKind, name: &str) -> Item<'_> {
    match kind {
        ListKind::Tools => Item::Tool(name),
        ListKind::Prompts => Item::Prompt(name),
        ListKind::Resources | ListKind::ResourceTemplates => Item::Resource(name),
    }
}

impl Viewer<'_> {
    /// Filters and renames the fresh result of a list request. Cursors are kept; a page may become empty.
    pub fn page(&self, kind: ListKind, result: Raw) -> Result<Raw, MembersError> {
        let (mut members, items) = Members::with_items(&result, kind.items())?;
        let Some(items) = items else { return Ok(result) };
        if kind == ListKind::Tools {
            self.inspect_tools(&items);
        }
        let kept: Vec<Cow<'_, Raw>> = items.iter().filter_map(|item| self.shown(kind, item)).collect();
        let same = kept.len() == items.len() && kept.iter().all(|item| matches!(item, Cow::Borrowed(_)));
        // One role's page must not be cached for another.
        let private = !self.policy.is_everyone() && members.contains("cacheScope");
        if same && !private {
            return Ok(result);
        }
        members.set(kind.items(), Raw::array(kept.iter().map(|item| &**item)));
        if private {
            members.set("cacheScope", raw("private"));
        }
        Ok(members.into_raw())
    }

    /// Checks the pins of all tools on the page, including those that this viewer may not see.
    fn inspect_tools(&self, tools: &[Raw]) {
        for tool in tools {
            if let Some(name) = toolbus_mcp::member_text(tool, ListKind::Tools.key()) {
                self.pins.holds_back(self.pinned(), self.era, &name, tool);
            }
        }
    }

    fn pinned(&self) -> PinnedServer<'_> {
        PinnedServer { name: self.server, mode: self.pin }
    }

    /// Whether the item may be used with at least some arguments.
    pub fn may_use(&self, item: Item<'_>) -> bool {
        let (role, server, arguments) = (self.role, self.server, Arguments::Unknown);
        self.policy.decide(&Question { role, server, item, arguments }).is_shown()
    }

    /// Whether no other server owns the name, and the viewer may use it.
    pub fn owns_usable(&self, kind: ListKind, visible: &str) -> bool {
        self.owners.foreign_owner(kind, visible, self.index).is_none() && self.may_use(item_of(kind, visible))
    }

    /// The item under its visible name; `None` if it is hidden from this viewer.
    pub fn shown<'a>(&self, kind: ListKind, item: &'a Raw) -> Option<Cow<'a, Raw>> {
        let own = toolbus_mcp::member_text(item, kind.key())?;
        let prefix = self.prefix.filter(|_| is_prefixed(kind));
        let visible = visible_name(prefix, &own);
        if !self.owns_usable(kind, &visible) {
            return None;
        }
        if kind == ListKind::Tools && self.pins.hides(self.pinned(), self.era, &own, item) {
            return None;
        }
        if prefix.is_none() {
            return Some(Cow::Borrowed(item));
        }
        let mut members = Members::parse(item.text()).ok()?;
        members.set(kind.key(), raw(&visible));
        Some(Cow::Owned(members.into_raw()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn viewer<'a>(policy: &'a PolicySet, owners: &'a Owners, prefix: Option<&'a str>) -> Viewer<'a> {
        static PINS: std::sync::LazyLock<Pins> = std::sync::LazyLock::new(Pins::in_memory);
        let (pins, pin, era) = (&*PINS, Some(PinMode::Off), None);
        Viewer { role: Some("reader"), policy, owners, server: "files", index: 1, prefix, pins, pin, era }
    }

    #[test]
    fn a_page_without_changes_keeps_its_text() {
        let text = r#"{ "tools":[ {"name":"a","n":1.0} ],"nextCursor":"x"}"#;
        let page = Raw::parse(text).expect("JSON");
        let owners = Owners::default();
        assert_eq!(
            viewer(&PolicySet::everyone(), &owners, None).page(ListKind::Tools, page).expect("a page").get(),
            text
        );
    }

    #[test]
    fn a_page_is_filtered_by_role_and_keeps_its_cursor() {
        let rules = PolicySet::read("[roles.reader]\nallow = ['fs_read']").expect("patterns").0;
        let page =
            raw(&json!({"tools": [{"name": "read"}, {"name": "write"}], "nextCursor": "x", "cacheScope": "public"}));
        let page = viewer(&rules, &Owners::default(), Some("fs_")).page(ListKind::Tools, page).expect("a page");
        assert_eq!(page.get(), r#"{"cacheScope":"private","nextCursor":"x","tools":[{"name":"fs_read"}]}"#);
    }

    #[test]
    fn a_name_that_belongs_to_an_earlier_server_is_hidden() {
        let mut owners = Owners::default();
        assert_eq!(owners.claim(ListKind::Tools, "a", 0), None);
        assert_eq!(owners.claim(ListKind::Tools, "a", 1), Some(0));
        assert_eq!(owners.claim(ListKind::Prompts, "a", 1), None);
        let page = raw(&json!({"tools": [{"name": "a"}, {"name": "b"}]}));
        let page = viewer(&PolicySet::everyone(), &owners, None).page(ListKind::Tools, page).expect("a page");
        assert_eq!(page.get(), r#"{"tools":[{"name":"b"}]}"#);
        let page = raw(&json!({"prompts": [{"name": "a"}]}));
        let page = viewer(&PolicySet::everyone(), &owners, None).page(ListKind::Prompts, page).expect("a page");
        assert_eq!(page.get(), r#"{"prompts":[{"name":"a"}]}"#);
    }

    #[test]
    fn uris_get_no_prefix() {
        let page = raw(&json!({"resources": [{"uri": "a://b", "name": "n"}]}));
        let text = page.get().to_owned();
        let page = viewer(&PolicySet::everyone(), &Owners::default(), Some("p_"))
            .page(ListKind::Resources, page)
            .expect("a page");
        assert_eq!(page.get(), text);
    }
}
