//! What the engine asks about names: who is a host, and who may write to whom. Answered from the credentials, from the
//! manifests of the directory, and from rules that an operator may change while the broker runs.

use crate::directory::HostDirectory;
use std::sync::{Arc, RwLock};
use toolbus_engine::{Names, Sender};
use toolbus_identity::{Authenticator, principal_of};

/// Who may write to whom of its own accord. Requests to hosts, replies and the messages of operators need no rule.
pub trait SendRules: Send + Sync {
    fn may_message(&self, from_role: Option<&str>, from_name: &str, to: &str) -> bool;
}

/// What holds without rules.
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
        *self.rules.write().expect("no code panics while it holds the rules") = rules;
    }
}

impl BrokerNames {
    /// Whether manifests under that name are to be believed: an agent that is no host any more offers nothing.
    pub fn may_offer(&self, host: &str) -> bool {
        let agent = principal_of(host);
        self.authenticator.is_host(agent) || !self.authenticator.knows(agent)
    }
}

impl Names for BrokerNames {
    /// Manifests count for those whom only others know, and for mailboxes beside an agent's own: a name by itself must not make
    /// room for any number of mailboxes.
    fn is_host(&self, mailbox: &str) -> bool {
        let agent = principal_of(mailbox);
        if self.authenticator.is_host(agent) {
            return agent == mailbox || self.hosts.is_host(mailbox);
        }
        !self.authenticator.knows(agent) && self.hosts.is_host(mailbox)
    }

    fn may_message(&self, from: &Sender, to: &str) -> bool {
        let rules = Arc::clone(&self.rules.read().expect("no code panics while it holds the rules"));
        rules.may_message(from.role.as_deref(), &from.name, to)
    }
}
