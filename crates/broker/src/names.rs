//! The engine's lookups about mailbox names: which ones are hosts, and which senders may message them. Based on the
//! authenticator, the host directory, and send rules that can change at runtime.

use crate::directory::HostDirectory;
use hashbrown::HashMap;
use std::sync::{Arc, Mutex, RwLock};
use tokio::sync::watch;
use toolbus_engine::{Names, Sender, Share};
use toolbus_identity::{Authenticator, principal_of};

/// Rules about agents: unsolicited messages between them, and their shares. Requests to hosts, replies and messages of
/// operators need no rule.
pub trait SendRules: Send + Sync {
    /// Whether the sender may send unsolicited messages to the mailbox `to`.
    fn may_message(&self, from_role: Option<&str>, from_name: &str, to: &str) -> bool;

    /// Whether agents of the role may send unsolicited messages to any mailbox.
    fn may_message_any(&self, _role: Option<&str>) -> bool {
        true
    }

    /// How much of each resource an agent of the role may use, if that is configured.
    fn share(&self, _role: Option<&str>) -> Option<Share> {
        None
    }
}

/// The default rules: no unsolicited messages.
pub struct DenyAll;

impl SendRules for DenyAll {
    fn may_message(&self, _from_role: Option<&str>, _from_name: &str, _to: &str) -> bool {
        false
    }

    fn may_message_any(&self, _role: Option<&str>) -> bool {
        false
    }
}

/// Roles for which it is remembered whether a host offers them anything.
const MAX_REMEMBERED_ROLES: usize = 1024;

pub struct BrokerNames {
    authenticator: Arc<dyn Authenticator>,
    hosts: Arc<dyn HostDirectory>,
    rules: RwLock<Arc<dyn SendRules>>,
    offered: Mutex<Offered>,
}

/// Whether hosts offer anything to a role. Asked for every read from a connection, so the answers are kept until the
/// directory changes.
struct Offered {
    changes: watch::Receiver<u64>,
    to: HashMap<Box<str>, bool>,
    to_others: Option<bool>,
}

impl BrokerNames {
    pub fn new(authenticator: Arc<dyn Authenticator>, hosts: Arc<dyn HostDirectory>) -> Self {
        let offered = Mutex::new(Offered { changes: hosts.changes(), to: HashMap::new(), to_others: None });
        Self { authenticator, hosts, rules: RwLock::new(Arc::new(DenyAll)), offered }
    }

    pub fn set_rules(&self, rules: Arc<dyn SendRules>) {
        *self.rules.write().expect("no code panics while holding the rules lock") = rules;
    }
}

impl BrokerNames {
    fn rules(&self) -> Arc<dyn SendRules> {
        Arc::clone(&self.rules.read().expect("no code panics while holding the rules lock"))
    }

    /// Whether a host offers anything to the role, or none is known.
    fn are_offered_anything(&self, role: Option<&str>) -> bool {
        let mut offered = self.offered.lock().expect("no code panics while holding the lock");
        if offered.changes.has_changed().unwrap_or_default() || offered.to.len() > MAX_REMEMBERED_ROLES {
            offered.changes.mark_unchanged();
            offered.to.clear();
            offered.to_others = None;
        }
        let known = role.map_or(offered.to_others, |role| offered.to.get(role).copied());
        let is_offered = known.unwrap_or_else(|| self.hosts.offer_anything(role));
        match role {
            _ if known.is_some() => {}
            Some(role) => drop(offered.to.insert(role.into(), is_offered)),
            None => offered.to_others = Some(is_offered),
        }
        is_offered
    }

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

    fn is_unknown(&self, mailbox: &str) -> bool {
        self.authenticator.is_unknown(principal_of(mailbox)) && !self.hosts.is_host(mailbox)
    }

    fn may_message(&self, from: &Sender, to: &str) -> bool {
        self.rules().may_message(from.role.as_deref(), &from.name, to)
    }

    /// An agent that may do nothing needs only the least: it can learn that, and its requests are refused. Called for every
    /// read from a connection.
    fn share(&self, role: Option<&str>) -> Share {
        let rules = self.rules();
        let is_of_use = || rules.may_message_any(role) || self.are_offered_anything(role);
        rules.share(role).unwrap_or_else(|| if is_of_use() { Share::DEFAULT } else { Share::LEAST })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored_directory::StoredDirectory;
    use serde_json::json;
    use toolbus_engine::ConnId;
    use toolbus_identity::SharedToken;
    use toolbus_protocol::{Body, RoleManifest};

    /// The role "writer" may send messages, and "batch" has a share.
    struct Rules;

    impl SendRules for Rules {
        fn may_message(&self, from_role: Option<&str>, _from_name: &str, _to: &str) -> bool {
            self.may_message_any(from_role)
        }

        fn may_message_any(&self, role: Option<&str>) -> bool {
            role == Some("writer")
        }

        fn share(&self, role: Option<&str>) -> Option<Share> {
            (role == Some("batch")).then(|| Share::percent(60).expect("a share"))
        }
    }

    fn manifest(role: Option<&'static str>, servers: &[&str]) -> RoleManifest {
        let servers: Vec<_> = servers.iter().map(|name| json!({"name": name, "state": "starting"})).collect();
        let manifest = Body::of(&json!({"servers": servers})).expect("a body");
        RoleManifest { role: role.map(Into::into), manifest }
    }

    #[tokio::test]
    async fn an_agent_that_may_do_nothing_has_the_least_share() {
        let folder = tempfile::tempdir().expect("a folder");
        let hosts = Arc::new(StoredDirectory::in_folder(folder.path(), 1).expect("an empty folder"));
        let names = BrokerNames::new(Arc::new(SharedToken::new("t")), Arc::clone(&hosts) as Arc<dyn HostDirectory>);
        names.set_rules(Arc::new(Rules));
        let shares = || ["reader", "guest", "writer", "batch"].map(|role| names.share(Some(role)).to_string());
        assert_eq!(shares(), ["25%", "25%", "25%", "60%"], "no host is known");
        let announce = |manifests| hosts.announce("desktop", ConnId(1), manifests);
        announce(vec![manifest(Some("reader"), &["files"]), manifest(None, &[])]).await.expect("valid manifests");
        assert_eq!(shares(), ["25%", "1%", "25%", "60%"]);
        assert_eq!(names.share(None), Share::LEAST);
        announce(vec![manifest(Some("reader"), &[]), manifest(None, &["files"])]).await.expect("valid manifests");
        assert_eq!(shares(), ["1%", "25%", "25%", "60%"], "the host's rules have changed");
        let starting = Body::of(&json!({"servers": [], "incomplete": true})).expect("a body");
        announce(vec![RoleManifest { role: None, manifest: starting }]).await.expect("valid manifests");
        assert_eq!(shares(), ["25%", "25%", "25%", "60%"], "its servers are starting");
    }
}
