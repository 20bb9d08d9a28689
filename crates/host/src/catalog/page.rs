//! One page of a server's list on its way to a worker: renamed, and without what the worker may not use.

use super::names::{Owners, is_prefixed, visible_name};
use crate::pins::{PinnedServer, Pins};
use serde_json::value::RawValue;
use std::borrow::Cow;
use toolbus_mcp::{Era, ListKind, Members, MembersError, Raw, raw};
use toolbus_policy::{Arguments, Item, PolicySet, Question};
use toolbus_upstream::PinMode;

/// Who looks at which server's list.
pub struct Viewer<'a> {
    pub role: Option<&'a str>,
    pub policy: &'a PolicySet,
    pub owners: &'a Owners,
    pub server: &'a str,
    pub index: usize,
    pub prefix: Option<&'a str>,
    pub pins: &'a Pins,
    pub pin: Option<PinMode>,
    /// In which the server gave the list, if that is known.
    pub era: Option<Era>,
}

/// The item of a list entry, for the policy.
pub fn item_of(kind: ListKind, name: &str) -> Item<'_> {
    match kind {
        ListKind::Tools => Item::Tool(name),
        ListKind::Prompts => Item::Prompt(name),
        ListKind::Resources | ListKind::ResourceTemplates => Item::Resource(name),
    }
}

impl Viewer<'_> {
    /// The result of a list request, fresh from the server, as this viewer gets it. Cursors stay as they are; a page may end up empty.
    pub fn page(&self, kind: ListKind, result: Raw) -> Result<Raw, MembersError> {
        let (mut members, items) = Members::with_items(result.get(), kind.items())?;
        let Some(items) = items else { return Ok(result) };
        if kind == ListKind::Tools {
            self.look_at(&items);
        }
        let kept: Vec<Cow<'_, RawValue>> = items.iter().filter_map(|item| self.shown(kind, item)).collect();
        let same = kept.len() == items.len() && kept.iter().all(|item| matches!(item, Cow::Borrowed(_)));
        // What one role may see must not be kept for another.
        let private = !self.policy.is_everyone() && members.contains("cacheScope");
        if same && !private {
            return Ok(result);
        }
        let kept = raw(&kept);
        members.set(kind.items(), kept);
        if private {
            members.set("cacheScope", raw("private"));
        }
        Ok(members.to_raw())
    }

    /// What the server says of its tools now counts, whoever asked and whatever they may see of it.
    fn look_at(&self, tools: &[&RawValue]) {
        for tool in tools {
            if let Some(name) = toolbus_mcp::member_text(tool, ListKind::Tools.key()) {
                self.pins.holds_back(self.pinned(), self.era, &name, tool);
            }
        }
    }

    fn pinned(&self) -> PinnedServer<'_> {
        PinnedServer { name: self.server, mode: self.pin }
    }

    /// Whether there are arguments with which it might be called.
    pub fn may_use(&self, item: Item<'_>) -> bool {
        let (role, server, arguments) = (self.role, self.server, Arguments::Unknown);
        self.policy.decide(&Question { role, server, item, arguments }).is_shown()
    }

    /// The item under its visible name, unless it is hidden from this viewer.
    pub fn shown<'a>(&self, kind: ListKind, item: &'a RawValue) -> Option<Cow<'a, RawValue>> {
        let own = toolbus_mcp::member_text(item, kind.key())?;
        let prefix = self.prefix.filter(|_| is_prefixed(kind));
        let visible = visible_name(prefix, &own);
        if self.owners.foreign_owner(kind, &visible, self.index).is_some() || !self.may_use(item_of(kind, &visible)) {
            return None;
        }
        if kind == ListKind::Tools && self.pins.hides(self.pinned(), self.era, &own, item) {
            return None;
        }
        if prefix.is_none() {
            return Some(Cow::Borrowed(item));
        }
        let mut members = Members::of(Some(item)).ok()?;
        members.set(kind.key(), raw(&visible));
        Some(Cow::Owned(members.to_raw()))
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
    fn a_page_that_needs_no_change_is_the_same_text() {
        let text = r#"{ "tools":[ {"name":"a","n":1.0} ],"nextCursor":"x"}"#;
        let page = RawValue::from_string(text.to_owned()).expect("JSON");
        let owners = Owners::default();
        assert_eq!(
            viewer(&PolicySet::everyone(), &owners, None).page(ListKind::Tools, page).expect("a page").get(),
            text
        );
    }

    #[test]
    fn a_page_loses_what_the_role_may_not_use_and_keeps_its_cursor() {
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
