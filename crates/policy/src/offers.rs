//! Which host may offer which name: by `[hosts.NAME]` of the broker's toolbus.toml, otherwise the first host that offered it.

use crate::set::PolicySet;
use globset::GlobSet;
use std::collections::BTreeMap;

/// What the rules say about a host that offers a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offer<'a> {
    /// No rule speaks of the name: it belongs to the host that offered it first.
    FirstCome,
    /// A rule gives the name to this host.
    Granted,
    /// The host has rules, and none of them covers the name.
    NotGranted,
    /// A rule gives the name to this other host, and the host itself has no rules.
    GrantedTo(&'a str),
}

/// The names that one host may offer.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostNames {
    pub prefix: Option<String>,
    pub offers: GlobSet,
}

pub(crate) type HostRules = BTreeMap<String, HostNames>;

impl HostNames {
    fn cover(&self, name: &str) -> bool {
        self.prefix.as_deref().is_some_and(|prefix| name.starts_with(prefix)) || self.offers.is_match(name)
    }
}

impl PolicySet {
    /// Whether the host may offer a tool, prompt or resource under this name.
    pub fn offer(&self, host: &str, name: &str) -> Offer<'_> {
        match self.hosts.get(host) {
            Some(names) if names.cover(name) => Offer::Granted,
            Some(_) => Offer::NotGranted,
            None => {
                let granted = self.hosts.iter().find(|(_, names)| names.cover(name));
                granted.map_or(Offer::FirstCome, |(other, _)| Offer::GrantedTo(other))
            }
        }
    }

    /// Whether rules restrict the names of the host.
    pub fn restricts_offers(&self, host: &str) -> bool {
        self.hosts.contains_key(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> PolicySet {
        PolicySet::read(text).expect("valid rules").0
    }

    #[test]
    fn without_rules_names_are_first_come() {
        assert_eq!(set("").offer("aaa", "echo"), Offer::FirstCome);
        assert!(!set("").restricts_offers("aaa"));
    }

    #[test]
    fn a_rule_limits_its_host_and_reserves_the_names_for_it() {
        let set = set("[hosts.bbb]\noffers = ['echo', 'git_*']\nprefix = 'b_'");
        for name in ["echo", "git_log", "b_anything"] {
            assert_eq!(set.offer("bbb", name), Offer::Granted, "{name}");
            assert_eq!(set.offer("aaa", name), Offer::GrantedTo("bbb"), "{name}");
        }
        assert_eq!(set.offer("bbb", "echo2"), Offer::NotGranted);
        assert_eq!(set.offer("aaa", "echo2"), Offer::FirstCome);
        assert!(set.restricts_offers("bbb") && !set.restricts_offers("aaa"));
    }

    #[test]
    fn an_empty_list_lets_a_host_offer_nothing() {
        assert_eq!(set("[hosts.bbb]\noffers = []").offer("bbb", "echo"), Offer::NotGranted);
    }

    #[test]
    fn rules_of_hosts_are_checked() {
        for (text, expected) in [
            ("[hosts.bbb]", "offers"),
            ("[hosts.bbb]\noffer = ['x']", "unknown key"),
            ("[hosts.bbb]\noffers = ['a[']", "pattern"),
            ("[hosts.bbb]\nprefix = ''", "empty"),
            ("hosts = 1", "table"),
        ] {
            let error = PolicySet::read(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
