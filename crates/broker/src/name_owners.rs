//! Which host owns which name. The first host that offers a name keeps it, also while it is away, until a rule of the
//! operator gives the name to another one.

use std::collections::btree_map::Entry;
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
        self.owners.retain(|_, owner| owner != host);
        self.counts.remove(host);
    }

    /// The known hosts, in the order of their first announcement.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Gives the name to the host if the rules and its present owner allow it.
    pub fn claim(&mut self, rules: &PolicySet, host: &str, kind: ListKind, name: &str) -> Result<(), HoldReason> {
        let key = key(kind, name);
        match rules.offer(host, name) {
            Offer::NotGranted => Err(HoldReason::NotGranted),
            Offer::GrantedTo(other) => Err(HoldReason::GrantedTo(other.to_owned())),
            Offer::Granted => self.assign(key, host),
            Offer::FirstCome => match self.owners.get(&key) {
                Some(owner) if owner != host => Err(HoldReason::OwnedBy(owner.clone())),
                _ => self.assign(key, host),
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
        match self.owners.get(&key(kind, name)) {
            Some(owner) if owner == host => Ok(()),
            Some(owner) => Err(HoldReason::OwnedBy(owner.clone())),
            None if self.counts.get(host).is_some_and(|count| *count >= MAX_NAMES_PER_HOST) => Err(HoldReason::TooMany),
            None => Err(HoldReason::Unclaimed),
        }
    }

    /// The hosts that own other names in `other` than here.
    pub fn hosts_that_differ<'a>(&'a self, other: &'a Self) -> HashSet<&'a str> {
        let changed = |from: &'a Self, to: &'a Self| {
            let changed = from.owners.iter().filter(|(key, owner)| to.owners.get(*key) != Some(*owner));
            changed.map(|(_, owner)| owner.as_str())
        };
        changed(self, other).chain(changed(other, self)).collect()
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
        serde_json::json!({ "hosts": self.hosts, "owners": owners }).to_string()
    }

    /// Reads the stored form.
    pub fn from_text(text: &[u8]) -> Option<Self> {
        let stored: serde_json::Value = serde_json::from_slice(text).ok()?;
        let hosts = serde_json::from_value(stored.get("hosts")?.clone()).ok()?;
        let owners: Vec<(String, String, String)> = serde_json::from_value(stored.get("owners")?.clone()).ok()?;
        let mut read = Self { hosts, ..Self::default() };
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

fn key(kind: ListKind, name: &str) -> (String, String) {
    (kind.method().to_owned(), visible(name))
}

fn visible(name: &str) -> String {
    confusable_key(name).chars().filter(|c| !c.is_whitespace() && !c.is_control()).collect()
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
        for (name, other) in [("straße", "STRASSE"), ("ΟΔΟΣ", "οδος"), ("ﬁle", "FILE")] {
            assert_eq!(claim(&mut owners, "bbb", name), Ok(()));
            assert_eq!(claim(&mut owners, "aaa", other), Err(HoldReason::OwnedBy("bbb".into())), "{name} {other}");
        }
        let stored = r#"{"hosts":["bbb"],"owners":[["tools/list","straße","bbb"]]}"#;
        let mut of_an_earlier_version = NameOwners::from_text(stored.as_bytes()).expect("the stored form");
        let taken = claim(&mut of_an_earlier_version, "aaa", "STRASSE");
        assert_eq!(taken, Err(HoldReason::OwnedBy("bbb".into())));
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
