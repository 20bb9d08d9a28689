//! The generations of the registered agents: how many agents of a name have ended, and which one has the name now.
//!
//! What an agent began ends with it, also if the broker is not running when its credential is revoked: the file tells which
//! agent had each name when the broker last looked, and below which message everything of earlier generations has to be
//! removed.
//!
//! In a cluster the file moves with its partition, so it may be newer than what the broker knows of the agents. There an
//! agent ends only by evidence, which is a revocation of itself or a later agent of its name, and never because it is
//! missing.

use crate::error::{BrokerError, BrokerResult};
use crate::state_file::StateFile;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use toolbus_engine::Seq;
use toolbus_identity::{AgentState, Agents, RegisteredAgent};

/// The generation of each name, kept in a file.
pub struct Generations {
    file: Arc<dyn StateFile>,
    /// The agents are those of a cluster.
    are_shared: bool,
    state: Mutex<State>,
}

struct State {
    known: BTreeMap<String, Known>,
    /// The file lacks a change.
    is_unsaved: bool,
}

/// A name that an agent has or had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Known {
    /// The agent that has the name; `None` after it was revoked.
    pub incarnation: Option<u64>,
    /// The latest agent that had the name.
    pub latest: u64,
    /// Number of agents of that name that have ended.
    pub generation: u64,
    /// Messages of earlier generations are below it.
    pub before: Seq,
    /// Whether the agent has no valid credential. Not in the file: it is reported again after a restart.
    pub expired: bool,
}

/// A change of an agent that has consequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It was revoked or removed, and another one may have its name.
    Ended,
    /// Its last credential has expired.
    Expired,
    /// It has a valid credential again.
    Renewed,
}

impl Generations {
    /// Reads the generations. A file that can't be read is an error: without it, an agent could inherit what another one of
    /// its name began, and to remove all messages instead would lose those of all agents.
    pub fn open(file: Arc<dyn StateFile>) -> BrokerResult<Self> {
        Self::open_as(file, false)
    }

    /// Like [`open`](Self::open), for a partition of a cluster.
    pub fn open_shared(file: Arc<dyn StateFile>) -> BrokerResult<Self> {
        Self::open_as(file, true)
    }

    fn open_as(file: Arc<dyn StateFile>, are_shared: bool) -> BrokerResult<Self> {
        let read = match file.read() {
            Ok(Some(bytes)) => parse(&bytes).ok_or_else(|| "it is damaged".to_owned()),
            Ok(None) => Ok(BTreeMap::new()),
            Err(error) => Err(error.to_string()),
        };
        match read {
            Ok(known) => Ok(Self { file, are_shared, state: Mutex::new(State { known, is_unsaved: false }) }),
            Err(reason) => Err(BrokerError::Generations { file: file.name().into(), reason }),
        }
    }

    /// Whether the agents are those of a cluster.
    pub fn are_shared(&self) -> bool {
        self.are_shared
    }

    /// The names of which a generation has ended, each with its current generation and the end of earlier messages.
    pub fn ended(&self) -> Vec<(String, u64, Seq)> {
        let state = self.lock();
        let ended = state.known.iter().filter(|(_, known)| known.generation > 0);
        ended.map(|(name, known)| (name.clone(), known.generation, known.before)).collect()
    }

    /// Whether this agent still has its name. Ask it after the agent is attached to the engine: either
    /// this is false, or the end of the agent will find it there.
    pub fn is_current(&self, principal: &str, incarnation: u64) -> bool {
        let known = self.lock().known.get(principal).copied();
        incarnation == 0 || known.is_none_or(|known| known.incarnation == Some(incarnation))
    }

    /// Compares the agents with the known ones. `apply` carries out the changes; for [`Change::Ended`] it returns the end of
    /// the removed messages. Returns false if the result could not be written. Blocks on the disk.
    pub fn update(
        &self,
        agents: &Agents,
        is_excepted: impl Fn(&str) -> bool,
        mut apply: impl FnMut(&str, Change) -> Seq,
    ) -> bool {
        let mut state = self.lock();
        let names: BTreeSet<String> = state.known.keys().chain(agents.keys()).cloned().collect();
        for name in names.into_iter().filter(|name| !is_excepted(name)) {
            let agent = agents.get(&name);
            let incarnation = agent.filter(|agent| agent.state != AgentState::Revoked).map(|agent| agent.incarnation);
            let earlier = state.known.get(&name).copied();
            if self.are_shared && is_old(earlier, agent) {
                continue;
            }
            let mut known = earlier.unwrap_or_default();
            known.latest = agent.map_or(known.latest, |agent| known.latest.max(agent.incarnation));
            let has_ended = match earlier {
                Some(earlier) => earlier.incarnation.is_some() && earlier.incarnation != incarnation,
                None => incarnation.is_none(),
            };
            // Set first: see `is_current`.
            known.incarnation = incarnation;
            state.known.insert(name.clone(), known);
            if has_ended {
                known = Known { generation: known.generation + 1, before: apply(&name, Change::Ended), ..known };
                known.expired = false;
            }
            let expired = agent.is_some_and(|agent| agent.state == AgentState::Expired);
            if expired != known.expired {
                apply(&name, if expired { Change::Expired } else { Change::Renewed });
                known.expired = expired;
            }
            let is_changed = earlier.is_none_or(|earlier| Known { expired, ..earlier } != known);
            state.is_unsaved |= is_changed;
            state.known.insert(name, known);
        }
        if !state.is_unsaved {
            return true;
        }
        let text = to_json(&state.known);
        // Connections ask for the state, and must not wait for the disk. Updates come one at a time.
        drop(state);
        if let Err(error) = self.file.replace(text.as_bytes()) {
            tracing::error!(file = self.file.name(), %error, "can't write the generations of agents");
            return false;
        }
        self.lock().is_unsaved = false;
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the generations")
    }
}

/// Whether this is not the latest that is known of an agent.
fn is_old(known: Option<Known>, agent: Option<&RegisteredAgent>) -> bool {
    let Some(known) = known else { return agent.is_none() };
    agent.is_none_or(|agent| {
        let is_same = agent.incarnation == known.latest;
        // A revocation is final.
        let is_undone = is_same && known.incarnation.is_none() && agent.state != AgentState::Revoked;
        agent.incarnation < known.latest || is_undone
    })
}

pub(crate) fn to_json(known: &BTreeMap<String, Known>) -> String {
    let entry = |known: &Known| {
        let Known { incarnation, latest, generation, before, .. } = known;
        json!({"incarnation": incarnation, "latest": latest, "generation": generation, "before": before})
    };
    let entries: serde_json::Map<String, Value> =
        known.iter().map(|(name, known)| (name.clone(), entry(known))).collect();
    Value::from(entries).to_string()
}

pub(crate) fn parse(bytes: &[u8]) -> Option<BTreeMap<String, Known>> {
    let entries: serde_json::Map<String, Value> = serde_json::from_slice(bytes).ok()?;
    let known = |entry: &Value| {
        let number = |key: &str| entry.get(key)?.as_u64();
        let (generation, before) = (number("generation")?, number("before")?);
        let incarnation = number("incarnation");
        // Absent in files of earlier versions.
        let latest = number("latest").or(incarnation).unwrap_or_default();
        Some(Known { incarnation, latest, generation, before, expired: false })
    };
    entries.iter().map(|(name, entry)| Some((name.clone(), known(entry)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_file::FolderFile;
    use std::fs;
    use std::path::Path;

    fn agents(all: &[(&str, u64, AgentState)]) -> Agents {
        let agent = |incarnation, state| RegisteredAgent { incarnation, state };
        all.iter().map(|(name, incarnation, state)| ((*name).to_owned(), agent(*incarnation, *state))).collect()
    }

    const FILE: &str = "generations.json";

    fn try_open(folder: &Path) -> BrokerResult<Generations> {
        Generations::open(Arc::new(FolderFile(folder.join(FILE))))
    }

    fn open(folder: &Path) -> Generations {
        try_open(folder).expect("readable")
    }

    /// The changes that these agents cause in a folder.
    fn changes(folder: &Path, all: &[(&str, u64, AgentState)]) -> Vec<(String, Change)> {
        let mut changes = Vec::new();
        let is_saved = open(folder).update(
            &agents(all),
            |name| name == "reserved",
            |name, change| {
                changes.push((name.to_owned(), change));
                7
            },
        );
        assert!(is_saved);
        changes
    }

    #[test]
    fn a_change_is_found_after_any_restart_and_only_once() {
        use AgentState::{Expired, Revoked, Valid};
        let folder = tempfile::tempdir().expect("a folder");
        let check = |all: &[(&str, u64, AgentState)], expected: &[(&str, Change)]| {
            let expected: Vec<_> = expected.iter().map(|(name, change)| ((*name).to_owned(), *change)).collect();
            assert_eq!(changes(folder.path(), all), expected, "{all:?}");
        };
        check(&[("ana", 1, Valid), ("bo", 2, Revoked), ("reserved", 3, Revoked)], &[("bo", Change::Ended)]);
        check(&[("ana", 1, Valid), ("bo", 2, Revoked)], &[]);
        check(&[("ana", 4, Valid), ("bo", 5, Valid)], &[("ana", Change::Ended)]);
        check(&[("bo", 5, Valid)], &[("ana", Change::Ended)]);
        check(&[("ana", 6, Expired), ("bo", 5, Revoked)], &[("ana", Change::Expired), ("bo", Change::Ended)]);
        let ended = open(folder.path()).ended();
        assert_eq!(ended, [("ana".to_owned(), 2, 7), ("bo".to_owned(), 2, 7)]);
        fs::write(folder.path().join(FILE), "{").expect("writable");
        assert!(matches!(try_open(folder.path()), Err(BrokerError::Generations { .. })));
    }

    #[test]
    fn an_agent_of_a_cluster_ends_only_by_evidence() {
        use AgentState::{Expired, Revoked, Valid};
        let folder = tempfile::tempdir().expect("a folder");
        let check = |all: &[(&str, u64, AgentState)], expected: &[Change]| {
            let file = Arc::new(FolderFile(folder.path().join(FILE)));
            let mut changes = Vec::new();
            let mut apply = |_: &str, change| {
                changes.push(change);
                7
            };
            let generations = Generations::open_shared(file).expect("readable");
            assert!(generations.update(&agents(all), |_| false, &mut apply));
            assert_eq!(changes, expected, "{all:?}");
        };
        check(&[("ana", 5, Valid)], &[]);
        check(&[], &[]);
        check(&[("ana", 4, Valid)], &[]);
        check(&[("ana", 4, Revoked)], &[]);
        check(&[("ana", 5, Expired)], &[Change::Expired]);
        check(&[("ana", 6, Valid)], &[Change::Ended]);
        check(&[("ana", 5, Valid)], &[]);
        check(&[("ana", 6, Revoked)], &[Change::Ended]);
        check(&[("ana", 6, Valid)], &[]);
        check(&[("ana", 6, Revoked), ("bo", 1, Revoked)], &[Change::Ended]);
        check(&[("ana", 7, Valid)], &[]);
    }

    #[test]
    fn an_expired_agent_is_reported_once_and_when_it_is_renewed() {
        let folder = tempfile::tempdir().expect("a folder");
        let generations = open(folder.path());
        let mut changes = Vec::new();
        for state in [AgentState::Valid, AgentState::Expired, AgentState::Expired, AgentState::Valid] {
            let mut apply = |_: &str, change| {
                changes.push(change);
                0
            };
            assert!(generations.update(&agents(&[("ana", 1, state)]), |_| false, &mut apply));
        }
        assert_eq!(changes, [Change::Expired, Change::Renewed]);
    }

    #[test]
    fn an_identity_is_current_until_its_agent_ends() {
        let folder = tempfile::tempdir().expect("a folder");
        let generations = open(folder.path());
        assert!(generations.is_current("ana", 1), "an agent that was just added");
        generations.update(&agents(&[("ana", 1, AgentState::Valid)]), |_| false, |_, _| 0);
        assert!(generations.is_current("ana", 1) && generations.is_current("ana", 0));
        generations.update(&agents(&[("ana", 2, AgentState::Valid)]), |_| false, |_, _| 0);
        assert!(!generations.is_current("ana", 1) && generations.is_current("ana", 2));
    }
}
