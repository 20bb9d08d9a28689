//! The agents of several brokers as one registry. Each broker keeps its own file, so that it needs no other broker to
//! authenticate, and commands change the file as ever. Records are joined: whatever the order in which brokers learn of
//! changes, all arrive at the same record, and a revocation wins over everything but a later agent of the same name.

use super::edit::AgentsFolder;
use super::error::RegistryError;
use super::file::{AgentRecord, AgentsFile, KeyRecord};
use crate::files::FileMark;
use jiff::Timestamp;
use std::collections::BTreeMap;

/// The record of an agent as brokers exchange it: JSON without secrets, only their hashes.
pub type SharedRecord = Vec<u8>;

/// Records of one agent keep at most so many keys, the newest: every data folder of a broker has its own of `local`, `host`
/// and `operator`.
const MAX_SHARED_KEYS: usize = 64;

/// Tells a version of the file from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentsMark(FileMark);

impl AgentsFolder {
    /// The present version of the file; `None` if there is none.
    pub fn mark(&self) -> Option<AgentsMark> {
        FileMark::of(&self.file()).map(AgentsMark)
    }

    /// Joins records of other brokers into the file. Returns the records by name as they are now; records that can't be
    /// read are left out. An agent that was in `before` and is missing from the file was removed by hand: it is revoked.
    pub fn join(
        &self,
        records: &BTreeMap<String, SharedRecord>,
        before: &BTreeMap<String, SharedRecord>,
    ) -> Result<BTreeMap<String, SharedRecord>, RegistryError> {
        self.change(|file| {
            for (name, text) in records {
                let Some(mut theirs) = AgentRecord::parse(name, text) else {
                    tracing::error!(agent = name, "the shared record of an agent is damaged; it is ignored");
                    continue;
                };
                match file.agent_mut(name) {
                    Some(ours) => ours.join(theirs),
                    None => {
                        if before.contains_key(name) {
                            theirs.revoked.get_or_insert_with(Timestamp::now);
                        }
                        file.agents.push(theirs);
                    }
                }
            }
            file.check().map_err(|reason| RegistryError::Bad { path: self.file(), reason })?;
            Ok(file.agents.iter().map(|agent| (agent.name.clone(), agent.to_shared())).collect())
        })
    }
}

impl AgentRecord {
    fn parse(name: &str, text: &[u8]) -> Option<Self> {
        let record: Self = serde_json::from_slice(text).ok().filter(|record: &Self| record.name == name)?;
        let alone = AgentsFile { agents: vec![record], ..AgentsFile::default() };
        alone.check().ok()?;
        alone.agents.into_iter().next()
    }

    fn to_shared(&self) -> SharedRecord {
        serde_json::to_vec(self).expect("records are plain JSON")
    }

    /// Joins two records of a name: commutative, associative and idempotent. The later agent has the name; of two records
    /// of one agent, each key ends at the earlier of its ends, and a revocation stays.
    fn join(&mut self, theirs: Self) {
        if theirs.identity() != self.identity() {
            if theirs.identity() > self.identity() {
                *self = theirs;
            }
            return;
        }
        self.revoked = earlier(self.revoked, theirs.revoked);
        for key in theirs.keys {
            match self.keys.iter_mut().find(|known| known.id == key.id) {
                Some(known) => known.join(&key),
                None => self.keys.push(key),
            }
        }
        self.keys.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        let surplus = self.keys.len().saturating_sub(MAX_SHARED_KEYS);
        self.keys.drain(..surplus);
    }

    /// What makes it this agent and no other: brokers could add two of one name at the same time.
    fn identity(&self) -> (Timestamp, &str, bool, bool) {
        (self.created, &self.role, self.host, self.operator)
    }
}

impl KeyRecord {
    fn join(&mut self, theirs: &Self) {
        self.expires = earlier(self.expires, theirs.expires);
        self.valid_until = earlier(self.valid_until, theirs.valid_until);
        // Two hashes under one id can't both be right; the same one is chosen everywhere.
        self.sha256 = self.sha256.clone().min(theirs.sha256.clone());
    }
}

fn earlier(ours: Option<Timestamp>, theirs: Option<Timestamp>) -> Option<Timestamp> {
    ours.into_iter().chain(theirs).min()
}
