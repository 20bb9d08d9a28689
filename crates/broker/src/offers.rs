//! What workers see of a host's manifests: without the names that belong to other hosts.

use crate::name_owners::{self, Claim, HeldBack, HoldReason, NameOwners};
use crate::name_spaces::{Covered, NameKind, namespace};
use bytes::Bytes;
use hashbrown::HashMap;
use toolbus_mcp::{HostManifest, ListKind, Members, ServerManifest, raw};
use toolbus_policy::PolicySet;
use toolbus_protocol::{Body, RoleManifest};

/// Names in `held_back` of a manifest. Of a host with more, workers accept only the listed names.
const MAX_NAMED: usize = 1000;

/// The visible part of a host's manifests.
pub struct Offers {
    pub manifests: Vec<RoleManifest>,
    /// Whether each of them has a server, or may have one soon.
    pub are_of_use: Vec<bool>,
    /// The names that are held back, each once.
    pub held_back: Vec<HeldBack>,
    /// Why the host is not a member of the pool that it asks to join.
    pub refused_pool: Option<String>,
}

/// Claims all names of the manifests for the host and removes those that it does not get.
pub fn claim_all(owners: &mut NameOwners, rules: &PolicySet, host: &str, announced: &[RoleManifest]) -> Offers {
    join_pool(owners, rules, host, announced);
    offers_of(Owners::Claim(owners), rules, host, announced)
}

/// Removes all names that the host does not own already.
pub fn view_all(owners: &NameOwners, rules: &PolicySet, host: &str, announced: &[RoleManifest]) -> Offers {
    offers_of(Owners::View(owners), rules, host, announced)
}

/// Makes the host a member of the pool that it asks to join, if the rules allow it.
pub fn join_pool(owners: &mut NameOwners, rules: &PolicySet, host: &str, announced: &[RoleManifest]) {
    let asks = |pool: &&str| announced.iter().any(|announced| pool_of(&announced.manifest).as_deref() == Some(*pool));
    owners.set_pool(host, rules.pool_of(host).filter(asks));
}

/// The pool that the host asks to join.
fn pool_of(announced: &Body) -> Option<String> {
    serde_json::from_slice::<HostManifest>(announced.as_bytes()).ok()?.pool
}

fn offers_of(owners: Owners<'_>, rules: &PolicySet, host: &str, announced: &[RoleManifest]) -> Offers {
    let covered = match &owners {
        Owners::Claim(owners) => Covered::by_others(owners, &owners.owner_for(rules, host)),
        Owners::View(owners) => Covered::by_others(owners, &owners.owner_for(rules, host)),
    };
    let (decided, held_back) = (HashMap::new(), Vec::new());
    let mut claims = Claims { owners, rules, host, covered, decided, held_back, refused: None };
    let visible = |announced: &RoleManifest| {
        let (manifest, is_of_use) = claims.visible(&announced.manifest);
        (RoleManifest { role: announced.role.clone(), manifest }, is_of_use)
    };
    let (manifests, are_of_use) = announced.iter().map(visible).unzip();
    Offers { manifests, are_of_use, held_back: claims.held_back, refused_pool: claims.refused }
}

impl Offers {
    /// The manifest for a role.
    pub fn index_of(&self, role: Option<&str>) -> Option<usize> {
        let of = |wanted: Option<&str>| self.manifests.iter().position(|manifest| manifest.role.as_deref() == wanted);
        role.and_then(|role| of(Some(role))).or_else(|| of(None))
    }
}

fn explain_refusal(host: &str, pool: &str) -> String {
    format!(
        "the host is not a member of pool {pool}: the broker's toolbus.toml has no `pool = {pool:?}` in [hosts.{host}]"
    )
}

enum Owners<'a> {
    Claim(&'a mut NameOwners),
    View(&'a NameOwners),
}

struct Claims<'a> {
    owners: Owners<'a>,
    rules: &'a PolicySet,
    host: &'a str,
    covered: Covered,
    decided: HashMap<(NameKind, String), Option<HoldReason>>,
    held_back: Vec<HeldBack>,
    refused: Option<String>,
}

impl Claims<'_> {
    /// The manifest as workers see it, and whether it is of use. A manifest without names that are held back keeps its
    /// text. One that can't be read is left alone: workers can't read it either.
    fn visible(&mut self, announced: &Body) -> (Body, bool) {
        let Ok(mut manifest) = serde_json::from_slice::<HostManifest>(announced.as_bytes()) else {
            return (announced.clone(), false);
        };
        let is_of_use = !manifest.servers.is_empty() || manifest.incomplete;
        let mut held_back = Vec::new();
        for server in &mut manifest.servers {
            for kind in ListKind::ALL {
                server.items_mut(kind).retain(|item| {
                    let name = Members::of(Some(item)).ok().and_then(|item| item.text(kind.key()));
                    let held = name.and_then(|name| self.claim(NameKind::Item(kind), name));
                    let is_visible = held.is_none();
                    held_back.extend(held);
                    is_visible
                });
            }
        }
        let namespaces = self.claim_namespaces(&manifest, &mut held_back);
        let is_limited = self.rules.restricts_offers(self.host);
        let refused_pool = manifest.pool.take_if(|pool| self.pool() != Some(pool));
        let is_unchanged = held_back.is_empty() && namespaces.is_empty() && refused_pool.is_none();
        if is_unchanged && !is_limited && !manifest.granted {
            return (announced.clone(), is_of_use);
        }
        if let Some(pool) = refused_pool {
            let why = explain_refusal(self.host, &pool);
            self.refused = Some(why.clone());
            manifest.problems.push(why);
        }
        manifest.problems.extend(name_owners::explain_all(self.host, &held_back));
        held_back.retain(|held| held.kind != NameKind::Namespace);
        // Workers compare every item of a host's lists with these names.
        manifest.listed_only = is_limited || held_back.len() > MAX_NAMED;
        manifest.granted = is_limited;
        manifest.held_back = held_back.into_iter().take(MAX_NAMED).map(|held| held.name).collect();
        manifest.held_back_namespaces = namespaces;
        (Body::from_trusted(Bytes::from(raw(&manifest).get().to_owned())), is_of_use)
    }

    fn pool(&self) -> Option<&str> {
        match &self.owners {
            Owners::Claim(owners) => owners.pool_of(self.rules, self.host),
            Owners::View(owners) => owners.pool_of(self.rules, self.host),
        }
    }

    /// Claims the namespaces that the servers declare, and their names, which are namespaces too. Returns those that the host
    /// does not get. A server's name is not announced for its methods, so it is no collision worth reporting.
    fn claim_namespaces(&mut self, manifest: &HostManifest, held_back: &mut Vec<HeldBack>) -> Vec<String> {
        let mut refused = Vec::new();
        for methods in manifest.servers.iter().flat_map(ServerManifest::vendor_capabilities) {
            let held = self.claim(NameKind::Namespace, namespace(&methods));
            refused.extend(held.is_some().then_some(methods));
            held_back.extend(held);
        }
        let reported = self.held_back.len();
        for name in manifest.servers.iter().map(|server| &server.name) {
            let held = self.claim(NameKind::Namespace, namespace(name));
            refused.extend(held.is_some().then(|| name.clone()));
        }
        self.held_back.truncate(reported);
        refused.sort_unstable();
        refused.dedup();
        refused
    }

    fn claim(&mut self, kind: NameKind, name: String) -> Option<HeldBack> {
        let key = (kind, name);
        let (kind, name) = (key.0, key.1.clone());
        if let Some(decided) = self.decided.get(&key) {
            return decided.clone().map(|reason| HeldBack { kind, name, reason });
        }
        let claim = Claim { host: self.host, kind, name: &name };
        let held = match &mut self.owners {
            Owners::Claim(owners) => owners.claim(self.rules, &self.covered, &claim).err(),
            Owners::View(owners) => owners.view(self.rules, &self.covered, &claim).err(),
        };
        self.decided.insert(key, held.clone());
        let held = held.map(|reason| HeldBack { kind, name, reason });
        self.held_back.extend(held.clone());
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn announced(pool: Option<&str>) -> Vec<RoleManifest> {
        let server = json!({"name": "s", "state": "up", "tools": [{"name": "draw"}]});
        let manifest = raw(&json!({"servers": [server], "pool": pool}));
        vec![RoleManifest { role: None, manifest: Body::from_trusted(Bytes::from(manifest.get().to_owned())) }]
    }

    fn visible(offers: &Offers) -> (usize, Option<String>, Vec<String>) {
        let manifest: HostManifest = offers.manifests[0].manifest.to().expect("a manifest");
        (manifest.servers[0].tools.len(), manifest.pool, manifest.problems)
    }

    #[test]
    fn a_host_joins_a_pool_only_if_it_asks_and_a_rule_allows_it() {
        let rules = |text: &str| PolicySet::read(text).expect("valid rules").0;
        let allowed = rules("[hosts.one]\npool = 'render'\n[hosts.two]\npool = 'render'");
        let mut owners = NameOwners::default();
        let mut claim = |rules: &PolicySet, host: &str, pool: Option<&str>| {
            owners.add_host(host);
            visible(&claim_all(&mut owners, rules, host, &announced(pool)))
        };
        assert_eq!(claim(&allowed, "one", Some("render")), (1, Some("render".to_owned()), vec![]));
        assert_eq!(claim(&allowed, "two", Some("render")), (1, Some("render".to_owned()), vec![]));
        // Without asking, in another pool, or without a rule, the host is a stranger: it gets neither the pool nor its names.
        for (host, asked) in [("two", None), ("two", Some("other")), ("three", Some("render"))] {
            let (tools, pool, problems) = claim(&allowed, host, asked);
            assert_eq!((tools, pool), (0, None), "{host} {asked:?}: {problems:?}");
            assert!(problems.iter().any(|problem| problem.contains("pool render offered it first")), "{problems:?}");
            let is_refusal = |problem: &String| problem.contains("not a member of pool");
            assert_eq!(problems.iter().any(is_refusal), asked.is_some(), "{problems:?}");
        }
    }

    #[test]
    fn a_rule_that_is_gone_ends_the_membership_at_once() {
        let allowed = PolicySet::read("[hosts.one]\npool = 'render'").expect("valid rules").0;
        let mut owners = NameOwners::default();
        claim_all(&mut owners, &allowed, "one", &announced(Some("render")));
        let offers = view_all(&owners, &PolicySet::default(), "one", &announced(Some("render")));
        assert_eq!((visible(&offers).0, visible(&offers).1), (0, None));
        claim_all(&mut owners, &PolicySet::default(), "one", &announced(Some("render")));
        let offers = view_all(&owners, &PolicySet::default(), "one", &announced(Some("render")));
        assert_eq!((visible(&offers).0, visible(&offers).1), (1, None));
    }

    #[test]
    fn the_manifest_of_a_member_keeps_its_text() {
        let allowed = PolicySet::read("[hosts.one]\npool = 'render'").expect("valid rules").0;
        let announced = announced(Some("render"));
        let offers = claim_all(&mut NameOwners::default(), &allowed, "one", &announced);
        let text = |manifest: &Body| serde_json::from_slice::<Value>(manifest.as_bytes()).expect("JSON");
        assert_eq!(text(&offers.manifests[0].manifest), text(&announced[0].manifest));
    }
}
