//! Pools: hosts that serve the same servers as one. The manifests of the members are merged into the one that workers show.
//!
//! An item has one definition in the pool: the one that most connected members give, or the first member of equally many.
//! Members with another definition don't serve the item, and a problem says so.

use crate::{HostManifest, ListKind, Members, Raw, ServerManifest, ServerState, SomeTools};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Names in one problem.
const MAX_NAMED: usize = 12;

/// A host of a pool.
#[derive(Debug, Clone, Copy)]
pub struct PoolMember<'a> {
    /// Name of the host.
    pub host: &'a str,
    /// Whether it is connected.
    pub online: bool,
    /// Its own manifest.
    pub manifest: &'a HostManifest,
}

/// The hosts of a pool as one.
#[derive(Debug, Default)]
pub struct MergedPool {
    /// What workers show. Its problems are the differences between the members.
    pub manifest: HostManifest,
    /// Who serves what, for each server of the manifest.
    pub serving: Vec<Serving>,
}

/// The members that serve a server, as indexes into the members of the pool.
#[derive(Debug, Default)]
pub struct Serving {
    /// The members that have the server.
    pub members: Vec<usize>,
    /// The items that not all of them serve, with the members that do.
    partial: HashMap<(ListKind, String), Vec<usize>>,
}

impl Serving {
    /// The members that serve the item, or an item that no member lists.
    pub fn of(&self, kind: ListKind, key: &str) -> &[usize] {
        // Most items are served by all members, and the key is copied only if some are not.
        if self.partial.is_empty() {
            return &self.members;
        }
        self.partial.get(&(kind, key.to_owned())).unwrap_or(&self.members)
    }

    /// Whether every member serves every item.
    pub fn is_uniform(&self) -> bool {
        self.partial.is_empty()
    }
}

/// Merges the manifests of the members, which are in the broker's order.
pub fn merge_pool(pool: &str, members: &[PoolMember<'_>]) -> MergedPool {
    let mut names: Vec<&str> = Vec::new();
    for server in members.iter().flat_map(|member| &member.manifest.servers) {
        if !names.contains(&server.name.as_str()) {
            names.push(&server.name);
        }
    }
    let mut merged = MergedPool::default();
    let mut differ = BTreeMap::new();
    for name in names {
        let (server, serving) = merge_server(name, members, &mut differ);
        merged.manifest.servers.push(server);
        merged.serving.push(serving);
    }
    let held_back: BTreeSet<&String> = members.iter().flat_map(|member| &member.manifest.held_back).collect();
    let listed = |name: &str| merged.manifest.servers.iter().any(|server| lists(server, name));
    merged.manifest.held_back = held_back.into_iter().filter(|name| !listed(name)).cloned().collect();
    merged.manifest.listed_only = members.iter().any(|member| member.manifest.listed_only);
    merged.manifest.incomplete =
        merged.manifest.servers.is_empty() && members.iter().any(|member| member.manifest.incomplete);
    merged.manifest.problems = differ.into_iter().map(|(host, names)| explain(pool, host, &names)).collect();
    merged.manifest.pool = Some(pool.to_owned());
    merged
}

fn explain(pool: &str, host: &str, names: &[String]) -> String {
    let more = match names.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = names[..names.len().min(MAX_NAMED)].join(", ");
    format!(
        "pool {pool}: host {host} defines {named}{more} differently from the other members, which serve {} alone",
        if names.len() == 1 { "it" } else { "them" }
    )
}

fn lists(server: &ServerManifest, name: &str) -> bool {
    let has = |kind: &ListKind| server.items(*kind).iter().any(|item| key_of(*kind, item).as_deref() == Some(name));
    ListKind::ALL.iter().any(has)
}

fn key_of(kind: ListKind, item: &Raw) -> Option<String> {
    Members::parse(item.text()).ok()?.text(kind.key())
}

/// A member that has the server.
#[derive(Clone, Copy)]
struct Holder<'a> {
    index: usize,
    host: &'a str,
    online: bool,
    server: &'a ServerManifest,
}

fn merge_server<'a>(
    name: &str,
    members: &[PoolMember<'a>],
    differ: &mut BTreeMap<&'a str, Vec<String>>,
) -> (ServerManifest, Serving) {
    let holder = |(index, member): (usize, &PoolMember<'a>)| {
        let server = member.manifest.servers.iter().find(|server| server.name == name)?;
        Some(Holder { index, host: member.host, online: member.online, server })
    };
    let holders: Vec<Holder<'_>> = members.iter().enumerate().filter_map(holder).collect();
    let is_up = |holder: &&Holder<'_>| holder.online && holder.server.state == ServerState::Up;
    let first = holders.iter().find(is_up).or_else(|| holders.iter().find(|holder| holder.online));
    // A server has at least the holder whose manifest named it.
    let mut merged = first.unwrap_or(&holders[0]).server.clone();
    let given = |greeting: fn(&ServerManifest) -> &Option<Raw>| {
        holders.iter().find_map(|holder| greeting(holder.server).clone())
    };
    merged.initialize = merged.initialize.or_else(|| given(|server| &server.initialize));
    merged.discover = merged.discover.or_else(|| given(|server| &server.discover));
    let mut serving = Serving { members: holders.iter().map(|holder| holder.index).collect(), ..Serving::default() };
    for kind in ListKind::ALL {
        *merged.items_mut(kind) = merge_items(kind, &holders, &mut serving, differ);
    }
    let serving_tool = |tool: &str| serving.of(ListKind::Tools, tool).to_vec();
    let tools: Vec<String> = merged.tools.iter().filter_map(|tool| key_of(ListKind::Tools, tool)).collect();
    merged.withheld.retain(|withheld| !tools.contains(withheld));
    // What one member does not allow must not be done, wherever the call runs.
    let by_all = |set: fn(&ServerManifest) -> &SomeTools| {
        let is_in = |tool: &&String| {
            let serving = serving_tool(tool);
            let mut serving = holders.iter().filter(|holder| serving.contains(&holder.index));
            serving.all(|holder| set(holder.server).contain(Some(tool)))
        };
        let all = holders.iter().all(|holder| set(holder.server).all);
        let named = tools.iter().filter(|tool| is_in(tool) != all).cloned().collect();
        SomeTools::new(all, named)
    };
    merged.shared = holders.iter().all(|holder| holder.server.shared);
    merged.replay_safe = by_all(|server| &server.replay_safe);
    merged.alone = by_all(|server| &server.alone);
    (merged, serving)
}

fn merge_items<'a>(
    kind: ListKind,
    holders: &[Holder<'a>],
    serving: &mut Serving,
    differ: &mut BTreeMap<&'a str, Vec<String>>,
) -> Vec<Raw> {
    let (mut order, mut known): (Vec<String>, HashMap<String, Vec<Definition<'a>>>) = Default::default();
    for holder in holders {
        for item in holder.server.items(kind) {
            let Some(key) = key_of(kind, item) else { continue };
            let definitions = known.entry(key.clone()).or_insert_with(|| {
                order.push(key);
                Vec::new()
            });
            match definitions.iter_mut().find(|known| is_same(known.item, item)) {
                Some(known) => known.holders.push(*holder),
                None => definitions.push(Definition { item, holders: vec![*holder] }),
            }
        }
    }
    let mut items = Vec::new();
    for key in order {
        let definitions = &known[&key];
        let Some(chosen) = definitions.iter().rev().max_by_key(|definition| definition.online()) else { continue };
        items.push(chosen.item.clone());
        if chosen.holders.len() < holders.len() {
            let serving_it = chosen.holders.iter().map(|holder| holder.index).collect();
            serving.partial.insert((kind, key.clone()), serving_it);
        }
        let others = definitions.iter().filter(|definition| !std::ptr::eq(*definition, chosen));
        for holder in others.flat_map(|definition| &definition.holders).filter(|holder| holder.online) {
            differ.entry(holder.host).or_default().push(key.clone());
        }
    }
    items
}

struct Definition<'a> {
    item: &'a Raw,
    holders: Vec<Holder<'a>>,
}

impl Definition<'_> {
    fn online(&self) -> usize {
        self.holders.iter().filter(|holder| holder.online).count()
    }
}

/// Compares the text first, since the members usually run the same program.
fn is_same(one: &Raw, other: &Raw) -> bool {
    let value = |raw: &Raw| serde_json::from_str::<serde_json::Value>(raw.get()).ok();
    one.get() == other.get() || value(one) == value(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn manifest(tools: &[Value], server: &Value) -> HostManifest {
        let mut whole = json!({"name": "s", "state": "up", "tools": tools});
        whole.as_object_mut().expect("an object").extend(server.as_object().cloned().unwrap_or_default());
        serde_json::from_value(json!({"servers": [whole]})).expect("a manifest")
    }

    fn tool(name: &str, description: &str) -> Value {
        json!({"name": name, "description": description})
    }

    fn merge(members: &[(&str, bool, HostManifest)]) -> MergedPool {
        let member = |(host, online, manifest)| PoolMember { host, online, manifest };
        let members: Vec<_> =
            members.iter().map(|(host, online, manifest)| member((host, *online, manifest))).collect();
        merge_pool("render", &members)
    }

    #[test]
    fn equal_members_are_one_server() {
        let tools = [tool("draw", "d"), tool("look", "l")];
        let merged = merge(&[("a", true, manifest(&tools, &json!({}))), ("b", true, manifest(&tools, &json!({})))]);
        assert_eq!((merged.manifest.servers.len(), merged.manifest.servers[0].tools.len()), (1, 2));
        assert!(merged.manifest.problems.is_empty() && merged.serving[0].is_uniform());
        assert_eq!(merged.serving[0].of(ListKind::Tools, "draw"), [0, 1]);
    }

    #[test]
    fn another_definition_is_shown_and_not_served() {
        let [old, new] = ["old", "new"].map(|text| manifest(&[tool("draw", text), tool("look", "l")], &json!({})));
        let merged = merge(&[("a", true, old.clone()), ("b", true, new.clone())]);
        assert!(merged.manifest.servers[0].tools[0].get().contains("old"), "the first of equally many");
        assert_eq!(merged.serving[0].of(ListKind::Tools, "draw"), [0]);
        assert_eq!(merged.serving[0].of(ListKind::Tools, "look"), [0, 1]);
        assert!(merged.manifest.problems[0].contains("host b defines draw differently"), "{:?}", merged.manifest);
        // The definition of most connected members counts: a restarted pool changes its tools without an interruption.
        let merged = merge(&[("a", true, old.clone()), ("b", true, new.clone()), ("c", true, new.clone())]);
        assert_eq!(merged.serving[0].of(ListKind::Tools, "draw"), [1, 2]);
        let merged = merge(&[("a", false, old), ("b", true, new)]);
        assert!(merged.manifest.servers[0].tools[0].get().contains("new") && merged.manifest.problems.is_empty());
    }

    #[test]
    fn a_tool_of_some_members_is_served_by_them_alone() {
        let [both, one] = [vec![tool("draw", "d"), tool("look", "l")], vec![tool("look", "l")]];
        let merged = merge(&[("a", true, manifest(&one, &json!({}))), ("b", true, manifest(&both, &json!({})))]);
        assert_eq!(merged.manifest.servers[0].tools.len(), 2);
        assert_eq!(merged.serving[0].of(ListKind::Tools, "draw"), [1]);
        assert!(!merged.serving[0].is_uniform() && merged.manifest.problems.is_empty());
    }

    #[test]
    fn a_tool_is_replay_safe_if_all_members_that_serve_it_say_so() {
        let tools = [tool("draw", "d"), tool("look", "l")];
        let safe = manifest(&tools, &json!({"replay_safe": {"all": true}}));
        let some = manifest(&tools, &json!({"replay_safe": {"tools": ["look"]}}));
        let contain = |merged: &MergedPool| {
            ["draw", "look", "other"].map(|tool| merged.manifest.servers[0].replay_safe.contain(Some(tool)))
        };
        assert_eq!(contain(&merge(&[("a", true, safe.clone()), ("b", true, safe.clone())])), [true; 3]);
        assert_eq!(contain(&merge(&[("a", true, safe), ("b", false, some)])), [false, true, false]);
    }

    #[test]
    fn a_server_is_up_if_a_connected_member_has_it_up() {
        let (up, down) = (json!({}), json!({"state": "down"}));
        let state = |members: &[(&str, bool, HostManifest)]| merge(members).manifest.servers[0].state;
        assert_eq!(state(&[("a", true, manifest(&[], &down)), ("b", true, manifest(&[], &up))]), ServerState::Up);
        assert_eq!(state(&[("a", true, manifest(&[], &down)), ("b", false, manifest(&[], &up))]), ServerState::Down);
    }
}
