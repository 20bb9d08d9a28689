//! Which host may offer which name, and which pool it may join: by `[hosts.NAME]` of the broker's toolbus.toml. Without a rule a
//! name belongs to the first host that offered it, and no host may join a pool.

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

/// The names that one host may offer, and its pool.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostNames {
    pub prefix: Option<String>,
    pub offers: Option<GlobSet>,
    pub pool: Option<String>,
}

pub(crate) type HostRules = BTreeMap<String, HostNames>;

impl HostNames {
    fn cover(&self, name: &str) -> bool {
        self.prefix.as_deref().is_some_and(|prefix| name.starts_with(prefix))
            || self.offers.as_ref().is_some_and(|offers| offers.is_match(name))
    }

    /// A pool alone leaves the names as they are without a rule.
    fn restrict(&self) -> bool {
        self.prefix.is_some() || self.offers.is_some()
    }
}

impl PolicySet {
    /// Whether the host may offer a tool, prompt or resource under this name.
    pub fn offer(&self, host: &str, name: &str) -> Offer<'_> {
        let own = self.hosts.get(host);
        match own {
            Some(names) if names.cover(name) => Offer::Granted,
            Some(names) if names.restrict() => Offer::NotGranted,
            _ => match self.hosts.iter().find(|(_, names)| names.cover(name)) {
                None => Offer::FirstCome,
                // The members of a pool share their names.
                Some((_, names)) if names.pool.is_some() && names.pool == own.and_then(|own| own.pool.clone()) => {
                    Offer::Granted
                }
                Some((other, _)) => Offer::GrantedTo(other),
            },
        }
    }

    /// The only pool that the host may join.
    pub fn pool_of(&self, host: &str) -> Option<&str> {
        self.hosts.get(host)?.pool.as_deref()
    }

    /// Whether rules restrict the names of the host.
    pub fn restricts_offers(&self, host: &str) -> bool {
        self.hosts.get(host).is_some_and(HostNames::restrict)
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
    fn a_pool_has_to_be_allowed_and_its_members_share_granted_names() {
        let set = set(
            "[hosts.aaa]\npool = 'render'\noffers = ['draw']\n[hosts.bbb]\npool = 'render'\n[hosts.ccc]\noffers = []",
        );
        assert_eq!([set.pool_of("aaa"), set.pool_of("bbb")], [Some("render"); 2]);
        assert_eq!([set.pool_of("ccc"), set.pool_of("ddd")], [None; 2]);
        assert_eq!(set.offer("bbb", "draw"), Offer::Granted);
        assert_eq!(set.offer("bbb", "other"), Offer::FirstCome);
        assert_eq!(set.offer("ddd", "draw"), Offer::GrantedTo("aaa"));
        assert!(set.restricts_offers("aaa") && !set.restricts_offers("bbb"));
    }

    #[test]
    fn rules_of_hosts_are_checked() {
        for (text, expected) in [
            ("[hosts.bbb]", "offers"),
            ("[hosts.bbb]\noffer = ['x']", "unknown key"),
            ("[hosts.bbb]\noffers = ['a[']", "pattern"),
            ("[hosts.bbb]\nprefix = ''", "empty"),
            ("[hosts.bbb]\npool = ''", "pool"),
            ("[hosts.bbb]\npool = 'a/b'", "pool"),
            ("[hosts.aaa]\noffers = []\n[hosts.bbb]\npool = 'aaa'", "name of a host"),
            ("hosts = 1", "table"),
        ] {
            let error = PolicySet::read(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
