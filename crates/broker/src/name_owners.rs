//! Which host owns which name. The first host that offers a name keeps it, also while it is away, until a rule of the
//! operator gives the name to another one. The members of a pool own their names together.

use crate::name_spaces::{Covered, Covering, NameKind, key, visible};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};
use toolbus_mcp::ListKind;
use toolbus_policy::{Offer, PolicySet, normal_uri};

/// Names that one host may own. Without a limit, a host could reserve every name that others may need.
pub const MAX_NAMES_PER_HOST: usize = 10_000;

/// Templates and namespaces among them. Every new name of another host is compared with them.
const MAX_COVERING_PER_HOST: usize = 1000;

/// Names in one explanation.
const MAX_EXPLAINED: usize = 12;

/// A name that a host offers and workers don't see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBack {
    /// What it is the name of.
    pub kind: NameKind,
    /// The name as the host announced it.
    pub name: String,
    /// Why it is held back.
    pub reason: HoldReason,
}

/// Why a name is held back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldReason {
    /// Another host offered the name, or one that looks alike, first.
    OwnedBy(String),
    /// A pool offered it first, and the host is no member.
    OwnedByPool(String),
    /// Another host offered a template or a namespace first that covers the name, or overlaps it.
    CoveredBy(Covering),
    /// The rules give the name to another host.
    GrantedTo(String),
    /// The rules for this host don't cover the name.
    NotGranted,
    /// The host owns [`MAX_NAMES_PER_HOST`] names, or 1,000 templates or namespaces.
    TooMany,
    /// No host owns the name yet. The next announcement of the host claims it.
    Unclaimed,
}

impl HoldReason {
    /// Why names of this host are held back, and what the operator can do.
    pub fn explain(&self, host: &str) -> String {
        match self {
            Self::OwnedBy(owner) => format!(
                "host {owner} offered it first; to decide otherwise, list it in `offers` of [hosts.{host}] in the broker's \
                 toolbus.toml"
            ),
            Self::OwnedByPool(pool) => format!(
                "pool {pool} offered it first; to let the host join, start it with `--pool {pool}` and set \
                 `pool = \"{pool}\"` in [hosts.{host}] of the broker's toolbus.toml"
            ),
            Self::CoveredBy(Covering { owner, name }) => format!(
                "{} offered {name} first, which covers or overlaps it; to decide otherwise, list it in `offers` of \
                 [hosts.{host}] in the broker's toolbus.toml",
                owner.strip_prefix(POOL).map_or_else(|| format!("host {owner}"), |pool| format!("pool {pool}"))
            ),
            Self::GrantedTo(owner) => format!("[hosts.{owner}] in the broker's toolbus.toml covers it"),
            Self::NotGranted => format!("[hosts.{host}] in the broker's toolbus.toml does not cover it"),
            Self::TooMany => format!(
                "the host owns {MAX_NAMES_PER_HOST} names already, or {MAX_COVERING_PER_HOST} templates or namespaces"
            ),
            Self::Unclaimed => format!("host {host} has not claimed it yet; its next announcement does"),
        }
    }
}

/// One sentence for each reason, with the names that it concerns.
pub fn explain_all(host: &str, held_back: &[HeldBack]) -> Vec<String> {
    let mut reasons: Vec<(&HoldReason, Vec<&str>)> = Vec::new();
    for held in held_back {
        match reasons.iter_mut().find(|(reason, _)| **reason == held.reason) {
            Some((_, names)) => names.push(&held.name),
            None => reasons.push((&held.reason, vec![&held.name])),
        }
    }
    let sentence = |(reason, names): (&HoldReason, Vec<&str>)| {
        let more = match names.len().saturating_sub(MAX_EXPLAINED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let names = names[..names.len().min(MAX_EXPLAINED)].join(", ");
        format!("held back: {names}{more} ({})", reason.explain(host))
    };
    reasons.into_iter().map(sentence).collect()
}

/// The owners of all names. Names that look alike are the same name here.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct NameOwners {
    /// In the order of their first announcement.
    hosts: Vec<String>,
    owners: BTreeMap<(String, String), String>,
    /// Number of names of each owner.
    counts: BTreeMap<String, usize>,
    /// The pools of the hosts that are members of one.
    pools: BTreeMap<String, String>,
}

/// Before the name of a pool. No host can have such a name, because names contain no slash.
const POOL: &str = "pool/";

/// The owner of a pool's names.
fn owner_of_pool(pool: &str) -> String {
    format!("{POOL}{pool}")
}

fn owned_by(owner: &str) -> HoldReason {
    match owner.strip_prefix(POOL) {
        Some(pool) => HoldReason::OwnedByPool(pool.to_owned()),
        None => HoldReason::OwnedBy(owner.to_owned()),
    }
}

impl NameOwners {
    /// The position of a host in the order of first announcements.
    pub fn rank(&self, host: &str) -> usize {
        self.hosts.iter().position(|known| known == host).unwrap_or(usize::MAX)
    }

    /// Records a host that announces. Returns whether it is new.
    pub fn add_host(&mut self, host: &str) -> bool {
        let is_new = !self.hosts.iter().any(|known| known == host);
        if is_new {
            self.hosts.push(host.to_owned());
        }
        is_new
    }

    /// Forgets a host that has withdrawn or was away for too long. Its names are free again.
    pub fn remove_host(&mut self, host: &str) {
        self.hosts.retain(|known| known != host);
        self.free_names_of(host);
        self.set_pool(host, None);
    }

    /// Records the pool of a host. Its own names become names of the pool. Those of a pool without members are free.
    pub fn set_pool(&mut self, host: &str, pool: Option<&str>) {
        let before = match pool {
            Some(pool) => self.pools.insert(host.to_owned(), pool.to_owned()),
            None => self.pools.remove(host),
        };
        if let Some(pool) = pool {
            self.give_names(host, &owner_of_pool(pool));
        }
        if let Some(before) = before.filter(|before| !self.pools.values().any(|pool| pool == before)) {
            self.free_names_of(&owner_of_pool(&before));
        }
    }

    fn give_names(&mut self, from: &str, to: &str) {
        let Some(count) = self.counts.remove(from) else { return };
        self.owners.values_mut().filter(|owner| *owner == from).for_each(|owner| to.clone_into(owner));
        *self.counts.entry(to.to_owned()).or_default() += count;
    }

    fn free_names_of(&mut self, owner: &str) {
        self.owners.retain(|_, known| known != owner);
        self.counts.remove(owner);
    }

    /// The pool that the host has joined and that the rules still allow.
    pub fn pool_of<'a>(&self, rules: &'a PolicySet, host: &str) -> Option<&'a str> {
        rules.pool_of(host).filter(|pool| self.pools.get(host).is_some_and(|joined| joined == pool))
    }

    /// Under which name the names of a host are owned.
    pub(crate) fn owner_for(&self, rules: &PolicySet, host: &str) -> String {
        self.pool_of(rules, host).map_or_else(|| host.to_owned(), owner_of_pool)
    }

    /// The known hosts, in the order of their first announcement.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Number of names that have an owner.
    pub fn names(&self) -> usize {
        self.owners.len()
    }

    /// The names of one kind with their owners.
    pub(crate) fn of_kind(&self, kind: NameKind) -> impl Iterator<Item = (&str, &str)> {
        let from = (kind.label().to_owned(), String::new());
        let names = self.owners.range(from..).take_while(move |((label, _), _)| label == kind.label());
        names.map(|((_, name), owner)| (&**name, &**owner))
    }

    /// Gives the name to the host if the rules and its present owner allow it. `covered` is what other hosts own.
    pub(crate) fn claim(&mut self, rules: &PolicySet, covered: &Covered, name: &Claim<'_>) -> Result<(), HoldReason> {
        let Claim { host, kind, .. } = *name;
        let (key, own) = (key(kind, name.name), self.owner_for(rules, host));
        match name.offer(rules) {
            Offer::NotGranted => Err(HoldReason::NotGranted),
            Offer::GrantedTo(other) => Err(HoldReason::GrantedTo(other.to_owned())),
            Offer::Granted => self.assign(key, kind, &own),
            Offer::FirstCome => match (self.owners.get(&key), covered.find(kind, name.name)) {
                (Some(owner), _) if *owner != own => Err(owned_by(owner)),
                (None, Some(covering)) => Err(HoldReason::CoveredBy(covering.clone())),
                _ => self.assign(key, kind, &own),
            },
        }
    }

    /// Whether the rules allow the host to offer the name and it owns it already. Unlike [`claim`](Self::claim), it gives
    /// nothing away: names that other brokers handle must not become visible before they are durably owned.
    pub(crate) fn view(&self, rules: &PolicySet, covered: &Covered, name: &Claim<'_>) -> Result<(), HoldReason> {
        let Claim { host, kind, .. } = *name;
        let is_granted = match name.offer(rules) {
            Offer::NotGranted => return Err(HoldReason::NotGranted),
            Offer::GrantedTo(other) => return Err(HoldReason::GrantedTo(other.to_owned())),
            offer => offer == Offer::Granted,
        };
        let own = self.owner_for(rules, host);
        match (self.owners.get(&key(kind, name.name)), covered.find(kind, name.name)) {
            (Some(owner), _) if *owner == own => Ok(()),
            (Some(owner), _) => Err(owned_by(owner)),
            (None, Some(covering)) if !is_granted => Err(HoldReason::CoveredBy(covering.clone())),
            (None, _) if self.counts.get(&own).is_some_and(|count| *count >= MAX_NAMES_PER_HOST) => {
                Err(HoldReason::TooMany)
            }
            (None, _) => Err(HoldReason::Unclaimed),
        }
    }

    /// The hosts that own other names in `other` than here, alone or as members of a pool.
    pub fn hosts_that_differ<'a>(&'a self, other: &'a Self) -> HashSet<&'a str> {
        let changed = |from: &'a Self, to: &'a Self| {
            let changed = from.owners.iter().filter(|(key, owner)| to.owners.get(*key) != Some(*owner));
            changed.map(|(_, owner)| owner.as_str())
        };
        let owners: HashSet<&str> = changed(self, other).chain(changed(other, self)).collect();
        let members = self.pools.iter().chain(&other.pools);
        let members = members.filter(|(_, pool)| owners.contains(owner_of_pool(pool).as_str()));
        let members: Vec<&str> = members.map(|(host, _)| host.as_str()).collect();
        owners.into_iter().chain(members).collect()
    }

    fn assign(&mut self, key: (String, String), kind: NameKind, host: &str) -> Result<(), HoldReason> {
        if self.owners.get(&key).is_some_and(|owner| owner == host) {
            return Ok(());
        }
        let is_one_too_many =
            kind.covers() && self.of_kind(kind).filter(|(_, owner)| *owner == host).count() >= MAX_COVERING_PER_HOST;
        let count = self.counts.entry(host.to_owned()).or_default();
        if *count >= MAX_NAMES_PER_HOST || is_one_too_many {
            return Err(HoldReason::TooMany);
        }
        *count += 1;
        if let Some(before) = self.owners.insert(key, host.to_owned()) {
            self.counts.entry(before).and_modify(|count| *count -= 1);
        }
        Ok(())
    }

    /// The text of the stored form: one JSON object.
    pub fn to_text(&self) -> String {
        let owners: Vec<_> = self.owners.iter().map(|((kind, name), owner)| (kind, name, owner)).collect();
        serde_json::json!({ "hosts": self.hosts, "owners": owners, "pools": self.pools }).to_string()
    }

    /// Reads the stored form.
    pub fn from_text(text: &[u8]) -> Option<Self> {
        let stored: serde_json::Value = serde_json::from_slice(text).ok()?;
        let hosts = serde_json::from_value(stored.get("hosts")?.clone()).ok()?;
        let owners: Vec<(String, String, String)> = serde_json::from_value(stored.get("owners")?.clone()).ok()?;
        // Older brokers wrote no pools.
        let pools = stored.get("pools").map(|pools| serde_json::from_value(pools.clone())).transpose().ok()?;
        let mut read = Self { hosts, pools: pools.unwrap_or_default(), ..Self::default() };
        for (kind, name, owner) in owners {
            // An earlier version folded case differently.
            if let Entry::Vacant(free) = read.owners.entry((kind, visible(&name))) {
                *read.counts.entry(owner.clone()).or_default() += 1;
                free.insert(owner);
            }
        }
        Some(read)
    }
}

/// A name that a host announces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim<'a> {
    pub host: &'a str,
    pub kind: NameKind,
    pub name: &'a str,
}

impl Claim<'_> {
    /// What the rules say. The normal form of a URI counts too, so that no other spelling evades a rule. Rules limit the
    /// items of lists; a namespace that they don't cover is first come, first served.
    fn offer<'r>(&self, rules: &'r PolicySet) -> Offer<'r> {
        let as_announced = rules.offer(self.host, self.name);
        match (self.kind, as_announced) {
            (NameKind::Namespace, Offer::NotGranted) => Offer::FirstCome,
            (NameKind::Item(ListKind::Resources), offer @ (Offer::Granted | Offer::FirstCome)) => {
                match rules.offer(self.host, &normal_uri(self.name)) {
                    stricter @ (Offer::NotGranted | Offer::GrantedTo(_)) => stricter,
                    _ => offer,
                }
            }
            (_, offer) => offer,
        }
    }
}

#[cfg(test)]
mod tests;
