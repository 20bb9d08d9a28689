//! Which host owns which name. The first host that offers a name keeps it, also while it is away, until a rule of the
//! operator gives the name to another one. The members of a pool own their names together.

use std::collections::{BTreeMap, HashSet};
use toolbus_mcp::ListKind;
use toolbus_policy::{Offer, PolicySet, confusable_key};

/// Names that one host may own. Without a limit, a host could reserve every name that others may need.
pub const MAX_NAMES_PER_HOST: usize = 10_000;

/// Names in one explanation.
const MAX_EXPLAINED: usize = 12;

/// A name that a host offers and workers don't see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBack {
    /// The list that the name belongs to.
    pub kind: ListKind,
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
    /// The rules give the name to another host.
    GrantedTo(String),
    /// The rules for this host don't cover the name.
    NotGranted,
    /// The host owns [`MAX_NAMES_PER_HOST`] names.
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
            Self::GrantedTo(owner) => format!("[hosts.{owner}] in the broker's toolbus.toml covers it"),
            Self::NotGranted => format!("[hosts.{host}] in the broker's toolbus.toml does not cover it"),
            Self::TooMany => format!("the host owns {MAX_NAMES_PER_HOST} names already"),
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

/// The owner of a pool's names. No host can have this name, because names contain no slash.
fn owner_of_pool(pool: &str) -> String {
    format!("pool/{pool}")
}

fn owned_by(owner: &str) -> HoldReason {
    match owner.strip_prefix("pool/") {
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
    fn owner_for(&self, rules: &PolicySet, host: &str) -> String {
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

    /// Gives the name to the host if the rules and its present owner allow it.
    pub fn claim(&mut self, rules: &PolicySet, host: &str, kind: ListKind, name: &str) -> Result<(), HoldReason> {
        let (key, own) = (key(kind, name), self.owner_for(rules, host));
        match rules.offer(host, name) {
            Offer::NotGranted => Err(HoldReason::NotGranted),
            Offer::GrantedTo(other) => Err(HoldReason::GrantedTo(other.to_owned())),
            Offer::Granted => self.assign(key, &own),
            Offer::FirstCome => match self.owners.get(&key) {
                Some(owner) if *owner != own => Err(owned_by(owner)),
                _ => self.assign(key, &own),
            },
        }
    }

    /// Whether the rules allow the host to offer the name and it owns it already. Unlike [`claim`](Self::claim), it gives
    /// nothing away: names that other brokers handle must not become visible before they are durably owned.
    pub fn view(&self, rules: &PolicySet, host: &str, kind: ListKind, name: &str) -> Result<(), HoldReason> {
        match rules.offer(host, name) {
            Offer::NotGranted => return Err(HoldReason::NotGranted),
            Offer::GrantedTo(other) => return Err(HoldReason::GrantedTo(other.to_owned())),
            Offer::Granted | Offer::FirstCome => {}
        }
        let own = self.owner_for(rules, host);
        match self.owners.get(&key(kind, name)) {
            Some(owner) if *owner == own => Ok(()),
            Some(owner) => Err(owned_by(owner)),
            None if self.counts.get(&own).is_some_and(|count| *count >= MAX_NAMES_PER_HOST) => Err(HoldReason::TooMany),
            None => Err(HoldReason::Unclaimed),
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

    fn assign(&mut self, key: (String, String), host: &str) -> Result<(), HoldReason> {
        if self.owners.get(&key).is_some_and(|owner| owner == host) {
            return Ok(());
        }
        let count = self.counts.entry(host.to_owned()).or_default();
        if *count >= MAX_NAMES_PER_HOST {
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
            *read.counts.entry(owner.clone()).or_default() += 1;
            read.owners.insert((kind, name), owner);
        }
        Some(read)
    }
}

fn key(kind: ListKind, name: &str) -> (String, String) {
    let visible = confusable_key(name).chars().filter(|c| !c.is_whitespace() && !c.is_control()).collect();
    (kind.method().to_owned(), visible)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> PolicySet {
        PolicySet::read(text).expect("valid rules").0
    }

    fn claim(owners: &mut NameOwners, host: &str, name: &str) -> Result<(), HoldReason> {
        owners.claim(&rules(""), host, ListKind::Tools, name)
    }

    #[test]
    fn the_first_host_keeps_a_name() {
        let mut owners = NameOwners::default();
        assert_eq!(claim(&mut owners, "bbb", "echo"), Ok(()));
        assert_eq!(claim(&mut owners, "aaa", "echo"), Err(HoldReason::OwnedBy("bbb".into())));
        assert_eq!(claim(&mut owners, "bbb", "echo"), Ok(()));
        assert_eq!(owners.claim(&rules(""), "aaa", ListKind::Prompts, "echo"), Ok(()), "another list");
    }

    #[test]
    fn names_that_look_alike_are_one_name() {
        let mut owners = NameOwners::default();
        assert_eq!(claim(&mut owners, "bbb", "echo"), Ok(()));
        for name in ["Echo", "ｅcho", " echo", "echo\u{a0}", "ec\nho"] {
            assert_eq!(claim(&mut owners, "aaa", name), Err(HoldReason::OwnedBy("bbb".into())), "{name:?}");
        }
        assert_eq!(claim(&mut owners, "aaa", "echo_2"), Ok(()));
    }

    #[test]
    fn a_rule_of_the_operator_moves_a_name() {
        let mut owners = NameOwners::default();
        assert_eq!(claim(&mut owners, "bbb", "echo"), Ok(()));
        let rules = rules("[hosts.aaa]\noffers = ['echo']");
        let tools = ListKind::Tools;
        assert_eq!(owners.claim(&rules, "aaa", tools, "echo"), Ok(()));
        assert_eq!(owners.claim(&rules, "bbb", tools, "echo"), Err(HoldReason::GrantedTo("aaa".into())));
        assert_eq!(owners.claim(&rules, "aaa", tools, "other"), Err(HoldReason::NotGranted));
        assert_eq!(claim(&mut owners, "bbb", "echo"), Err(HoldReason::OwnedBy("aaa".into())), "without the rule");
    }

    #[test]
    fn the_members_of_a_pool_own_their_names_together() {
        let mut owners = NameOwners::default();
        assert!(owners.add_host("aaa") && owners.add_host("bbb"));
        let rules = rules("[hosts.aaa]\npool = 'render'\n[hosts.bbb]\npool = 'render'");
        let claim = |owners: &mut NameOwners, host, name| owners.claim(&rules, host, ListKind::Tools, name);
        assert_eq!(claim(&mut owners, "aaa", "early"), Ok(()));
        owners.set_pool("aaa", Some("render"));
        owners.set_pool("bbb", Some("render"));
        for (host, name) in [("aaa", "echo"), ("bbb", "echo"), ("bbb", "early")] {
            assert_eq!(claim(&mut owners, host, name), Ok(()), "{host} {name}");
        }
        let outside = || Err(HoldReason::OwnedByPool("render".into()));
        assert_eq!(claim(&mut owners, "ccc", "echo"), outside());
        assert_eq!(claim(&mut owners, "ccc", "early"), outside());
        assert_eq!(NameOwners::from_text(owners.to_text().as_bytes()).as_ref(), Some(&owners));
        // A host that leaves the pool has none of its names; the last one that leaves frees them.
        let before = owners.clone();
        owners.set_pool("aaa", None);
        assert_eq!(claim(&mut owners, "aaa", "echo"), outside());
        owners.remove_host("bbb");
        assert_eq!(owners.hosts_that_differ(&before), ["aaa", "bbb", "pool/render"].into());
        assert_eq!(claim(&mut owners, "aaa", "echo"), Ok(()));
        assert_eq!(claim(&mut owners, "ccc", "echo"), Err(HoldReason::OwnedBy("aaa".into())));
    }

    #[test]
    fn the_names_of_a_host_are_limited_and_freed_with_it() {
        let mut owners = NameOwners::default();
        assert!(owners.add_host("bbb") && !owners.add_host("bbb") && owners.add_host("aaa"));
        for number in 0..MAX_NAMES_PER_HOST {
            assert_eq!(claim(&mut owners, "bbb", &format!("tool{number}")), Ok(()));
        }
        assert_eq!(claim(&mut owners, "bbb", "one more"), Err(HoldReason::TooMany));
        assert_eq!(claim(&mut owners, "bbb", "tool7"), Ok(()));
        assert_eq!(NameOwners::from_text(owners.to_text().as_bytes()).as_ref(), Some(&owners));
        assert!(owners.rank("bbb") < owners.rank("aaa"));
        owners.remove_host("bbb");
        assert_eq!(claim(&mut owners, "aaa", "tool7"), Ok(()));
        assert_eq!(owners.hosts(), ["aaa"]);
    }
}
