//! What the follower of a registry learns: which agents there are, before a new credential is accepted.

use crate::support::{authenticate, code_of, eventually};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use toolbus_identity::{AgentState, Agents, AgentsFolder, Authenticator, NewAgent, Registry};
use toolbus_protocol::ErrorCode;

struct Followed {
    _dir: TempDir,
    folder: AgentsFolder,
    registry: Registry,
    reports: Arc<Mutex<Vec<Agents>>>,
    fails: Arc<AtomicBool>,
}

impl Followed {
    fn with(names: &[&str]) -> Self {
        let dir = TempDir::new().expect("a folder");
        let folder = AgentsFolder::new(dir.path());
        names.iter().for_each(|name| drop(add(&folder, name, None)));
        let registry = Registry::open(dir.path()).expect("readable");
        let (reports, fails): (Arc<Mutex<Vec<Agents>>>, Arc<AtomicBool>) = Default::default();
        let (heard, failing) = (Arc::clone(&reports), Arc::clone(&fails));
        registry.follow_agents(Arc::new(move |agents| {
            let fails = failing.load(Ordering::Relaxed);
            if !fails {
                heard.lock().expect("unpoisoned").push(agents.clone());
            }
            !fails
        }));
        Self { _dir: dir, folder, registry, reports, fails }
    }

    fn last(&self) -> BTreeMap<String, AgentState> {
        let reports = self.reports.lock().expect("unpoisoned");
        reports.last().expect("a report").iter().map(|(name, agent)| (name.clone(), agent.state)).collect()
    }
}

fn add(folder: &AgentsFolder, name: &str, lifetime: Option<Duration>) -> String {
    let new = NewAgent { name, role: "r", lifetime, ..NewAgent::default() };
    folder.add(&new).expect("a new agent").token.expose().to_owned()
}

#[test]
fn agents_are_reported_at_once_and_when_they_are_revoked() {
    let followed = Followed::with(&["ana", "bo"]);
    let states = |ana, bo| BTreeMap::from([("ana".to_owned(), ana), ("bo".to_owned(), bo)]);
    assert_eq!(followed.last(), states(AgentState::Valid, AgentState::Valid));
    followed.folder.revoke("bo").expect("revoked");
    followed.registry.refresh();
    assert_eq!(followed.last(), states(AgentState::Valid, AgentState::Revoked));
}

#[test]
fn an_agent_that_gets_the_name_of_a_revoked_one_is_another_incarnation_and_a_rotated_one_is_not() {
    let followed = Followed::with(&["ana"]);
    let incarnation = || {
        followed.registry.refresh();
        followed.reports.lock().expect("unpoisoned").last().expect("a report")["ana"].incarnation
    };
    let first = incarnation();
    let rotated = followed.folder.rotate("ana", Duration::ZERO, None).expect("rotated").token;
    assert_eq!(incarnation(), first);
    assert_eq!(authenticate(&followed.registry, rotated.expose()).expect("accepted").incarnation, first);
    followed.folder.revoke("ana").expect("revoked");
    let token = add(&followed.folder, "ana", None);
    assert_ne!(incarnation(), first);
    assert_eq!(authenticate(&followed.registry, &token).expect("accepted").incarnation, incarnation());
}

#[test]
fn an_agent_whose_tokens_have_expired_is_reported_without_a_change_of_the_file() {
    let followed = Followed::with(&[]);
    add(&followed.folder, "ana", Some(Duration::from_millis(400)));
    followed.registry.refresh();
    assert_eq!(followed.last()["ana"], AgentState::Valid);
    eventually("the expiry", || followed.last()["ana"] == AgentState::Expired);
}

#[test]
fn while_the_follower_fails_revoked_tokens_end_and_new_ones_are_not_accepted() {
    let followed = Followed::with(&[]);
    let first = add(&followed.folder, "ana", None);
    assert!(authenticate(&followed.registry, &first).is_ok());
    followed.fails.store(true, Ordering::Relaxed);
    followed.folder.revoke("ana").expect("revoked");
    let next = add(&followed.folder, "ana", None);
    followed.registry.refresh();
    assert_eq!(code_of(authenticate(&followed.registry, &first)), Some(ErrorCode::CredentialRevoked));
    assert_eq!(code_of(authenticate(&followed.registry, &next)), Some(ErrorCode::BadCredentials));
    followed.fails.store(false, Ordering::Relaxed);
    followed.registry.refresh();
    assert!(authenticate(&followed.registry, &next).is_ok());
}
