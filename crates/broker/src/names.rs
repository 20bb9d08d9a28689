//! The engine's lookups about mailbox names: which ones are hosts, and which senders may message them. Based on the
//! authenticator, the host directory, and send rules that can change at runtime.

use crate::directory::HostDirectory;
use std::sync::{Arc, RwLock};
use toolbus_engine::{Names, Sender, Share};
use toolbus_identity::{Authenticator, principal_of};

/// Rules about agents: unsolicited messages between them, and their shares. Requests to hosts, replies and messages of
/// operators need no rule.
pub trait SendRules: Send + Sync {
    /// Whether the sender may send unsolicited messages to the mailbox `to`.
    fn may_message(&self, from_role: Option<&str>, from_name: &str, to: &str) -> bool;

    /// How much of each resource an agent of the role may use.
    fn share(&self, _role: Option<&str>) -> Share {
        Share::DEFAULT
    }
}

/// The default rules: no unsolicited messages.
pub struct DenyAll;

impl SendRules for DenyAll {
    fn may_message(&self, _from_role: Option<&str>, _from_name: &str, _to: &str) -> bool {
        false
    }
}

pub struct BrokerNames {
    authenticator: Arc<dyn Authenticator>,
    hosts: Arc<dyn HostDirectory>,
    rules: RwLock<Arc<dyn SendRules>>,
}

impl BrokerNames {
    pub fn new(authenticator: Arc<dyn Authenticator>, hosts: Arc<dyn HostDirectory>) -> Self {
        Self { authenticator, hosts, rules: RwLock::new(Arc::new(DenyAll)) }
    }

    pub fn set_rules(&self, rules: Arc<dyn SendRules>) {
        *self.rules.write().expect("no code panics while holding the rules lock") = rules;
    }
}

impl BrokerNames {
    /// Whether the manifests of that host are listed. False for an agent that the authenticator knows and that is not,
    /// or no longer, a host.
    pub fn may_offer(&self, host: &str) -> bool {
        let agent = principal_of(host);
        self.authenticator.is_host(agent) || !self.authenticator.knows(agent)
    }
}

impl Names for BrokerNames {
    /// A manifest proves a host if the authenticator does not know the agent (for example one of an external identity
    /// provider), or for a mailbox `NAME#suffix` of a known host. If any suffix counted, requests could create an
    /// unbounded number of mailboxes.
    fn is_host(&self, mailbox: &str) -> bool {
        let agent = principal_of(mailbox);
        if self.authenticator.is_host(agent) {
            return agent == mailbox || self.hosts.is_host(mailbox);
        }
        !self.authenticator.knows(agent) && self.hosts.is_host(mailbox)
    }

    fn may_message(&self, from: &Sender, to: &str) -> bool {
        let rules = Arc::clone(&self.rules.read().expect("no code panics while holding the rules lock"));
        rules.may_message(from.role.as_deref(), &from.name, to)
    }

    fn share(&self, role: Option<&str>) -> Share {
        let rules = Arc::clone(&self.rules.read().expect("no code panics while holding the rules lock"));
        rules.share(role)
    }
}
