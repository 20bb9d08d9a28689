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
}

/// Claims all names of the manifests for the host and removes those that it does not get.
pub fn claim_all(owners: &mut NameOwners, rules: &PolicySet, host: &str, announced: &[RoleManifest]) -> Offers {
    offers_of(Owners::Claim(owners), rules, host, announced)
}

/// Removes all names that the host does not own already.
pub fn view_all(owners: &NameOwners, rules: &PolicySet, host: &str, announced: &[RoleManifest]) -> Offers {
    offers_of(Owners::View(owners), rules, host, announced)
}

fn offers_of(owners: Owners<'_>, rules: &PolicySet, host: &str, announced: &[RoleManifest]) -> Offers {
    let covered = match &owners {
        Owners::Claim(owners) => Covered::by_others(owners, host),
        Owners::View(owners) => Covered::by_others(owners, host),
    };
    let mut claims = Claims { owners, rules, host, covered, decided: HashMap::new(), held_back: Vec::new() };
    let visible = |announced: &RoleManifest| {
        let (manifest, is_of_use) = claims.visible(&announced.manifest);
        (RoleManifest { role: announced.role.clone(), manifest }, is_of_use)
    };
    let (manifests, are_of_use) = announced.iter().map(visible).unzip();
    Offers { manifests, are_of_use, held_back: claims.held_back }
}

impl Offers {
    /// The manifest for a role.
    pub fn index_of(&self, role: Option<&str>) -> Option<usize> {
        let of = |wanted: Option<&str>| self.manifests.iter().position(|manifest| manifest.role.as_deref() == wanted);
        role.and_then(|role| of(Some(role))).or_else(|| of(None))
    }
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
        if held_back.is_empty() && namespaces.is_empty() && !is_limited && !manifest.granted {
            return (announced.clone(), is_of_use);
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
