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
    /// read are left out. An agent that is missing from the file is added again: the file may be an older copy, or gone, and
    /// must not end the agents of a whole fleet.
    pub fn join(
        &self,
        records: &BTreeMap<String, SharedRecord>,
    ) -> Result<BTreeMap<String, SharedRecord>, RegistryError> {
        self.change(|file| {
            for (name, text) in records {
                let Some(theirs) = AgentRecord::parse(name, text) else {
                    tracing::error!(agent = name, "the shared record of an agent is damaged; it is ignored");
                    continue;
                };
                match file.agent_mut(name) {
                    Some(ours) => ours.join(theirs),
                    None => file.agents.push(theirs),
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
    /// of one agent, each key ends at the earlier of its ends, a revocation stays, and a right that one lacks is gone.
    fn join(&mut self, theirs: Self) {
        if theirs.identity() != self.identity() {
            if theirs.identity() > self.identity() {
                *self = theirs;
            }
            return;
        }
        self.revoked = earlier(self.revoked, theirs.revoked);
        (self.host, self.operator) = (self.host && theirs.host, self.operator && theirs.operator);
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
    fn identity(&self) -> (Timestamp, &str) {
        (self.created, &self.role)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a valid time")
    }

    fn key(id: &str, created: i64, valid_until: Option<i64>) -> KeyRecord {
        let sha256 = "ab".repeat(32);
        KeyRecord { id: id.into(), sha256, created: at(created), expires: None, valid_until: valid_until.map(at) }
    }

    fn record(created: i64, revoked: Option<i64>, keys: Vec<KeyRecord>) -> AgentRecord {
        let (name, role) = ("ana".to_owned(), "reader".to_owned());
        let revoked = revoked.map(at);
        AgentRecord { name, role, host: false, operator: false, created: at(created), revoked, keys }
    }

    fn joined(mut ours: AgentRecord, theirs: &AgentRecord) -> AgentRecord {
        ours.join(theirs.clone());
        ours
    }

    /// Records that differ in every way that brokers can cause.
    fn records() -> Vec<AgentRecord> {
        vec![
            record(1, None, vec![key("a", 1, None)]),
            record(1, None, vec![key("a", 1, Some(5)), key("b", 2, None)]),
            record(1, None, vec![key("a", 1, Some(4)), key("c", 3, None)]),
            record(1, Some(9), vec![key("a", 1, None)]),
            record(1, Some(8), Vec::new()),
            record(2, None, vec![key("d", 2, None)]),
            AgentRecord { host: true, ..record(2, None, vec![key("e", 2, None)]) },
            record(1, None, (0..80).map(|n| key(&format!("k{n}"), n, None)).collect()),
        ]
    }

    #[test]
    fn the_order_of_joins_does_not_matter() {
        let all = records();
        for a in &all {
            // What was read from a file is normal only after its first join.
            let a = &joined(a.clone(), a);
            assert_eq!(&joined(a.clone(), a), a, "idempotent");
            for b in &all {
                let b = &joined(b.clone(), b);
                let ab = joined(a.clone(), b);
                assert_eq!(ab, joined(b.clone(), a), "commutative");
                for c in &all {
                    assert_eq!(joined(ab.clone(), c), joined(a.clone(), &joined(b.clone(), c)), "associative");
                }
            }
        }
    }

    #[test]
    fn a_revocation_and_the_end_of_a_key_stay() {
        let all = records();
        let revoked = joined(all[0].clone(), &all[3]);
        assert_eq!(revoked.revoked, Some(at(9)));
        assert_eq!(joined(revoked.clone(), &all[4]).revoked, Some(at(8)));
        let rotated = joined(all[1].clone(), &all[2]);
        assert_eq!(rotated.keys[0].valid_until, Some(at(4)));
        assert_eq!(rotated.keys.len(), 3);
        assert_eq!(joined(revoked, &all[5]).revoked, None, "a later agent has the name");
        assert_eq!(joined(all[0].clone(), &all[7]).keys.len(), MAX_SHARED_KEYS);
    }

    #[test]
    fn records_that_would_damage_the_file_are_ignored() {
        let folder = tempfile::tempdir().expect("a folder");
        let agents = AgentsFolder::new(folder.path());
        let good = record(1, None, vec![key("a", 1, None)]).to_shared();
        let mut bad_name = record(1, None, Vec::new());
        bad_name.name = "../x".into();
        let bad = [("eve", good.clone()), ("ben", b"{".to_vec()), ("../x", bad_name.to_shared())];
        let mut records: BTreeMap<String, SharedRecord> =
            bad.into_iter().map(|(name, record)| (name.to_owned(), record)).collect();
        records.insert("ana".into(), good.clone());
        let joined = agents.join(&records).expect("joined");
        assert_eq!(joined, BTreeMap::from([("ana".to_owned(), good)]));
    }
}
