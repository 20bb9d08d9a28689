//! What the engine asks about names: who is a host, and who may write to whom. Answered from the credentials, from the
//! cards of the directory, and from rules that an operator may change while the broker runs.

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

impl Names for BrokerNames {
    fn is_host(&self, mailbox: &str) -> bool {
        self.authenticator.is_host(principal_of(mailbox)) || self.hosts.is_host(mailbox)
    }

    fn may_message(&self, from: &Sender, to: &str) -> bool {
        let rules = Arc::clone(&self.rules.read().expect("no code panics while it holds the rules"));
        rules.may_message(from.role.as_deref(), &from.name, to)
    }
}
