//! The registry in memory: keys by id, rebuilt from every version of the file. The [`Standing`] that connections hold
//! is carried over to the next version if its key is unchanged.

use super::file::{AgentRecord, AgentsFile, KeyRecord};
use crate::token::SecretHash;
use crate::{AgentState, Agents, EndReason, RegisteredAgent, Rights, Standing};
use bytestring::ByteString;
use hashbrown::{HashMap, HashSet};
use std::time::SystemTime;

#[derive(Default)]
pub struct Table {
    keys: HashMap<String, Key>,
    hosts: HashSet<String>,
    /// Roles of all agents by name, revoked ones included.
    names: HashMap<String, String>,
    /// All agents, as if none had a valid key.
    agents: Agents,
}

#[derive(Clone)]
pub struct Key {
    pub hash: SecretHash,
    pub holder: Holder,
    pub is_revoked: bool,
    pub expires: Option<SystemTime>,
    pub valid_until: Option<SystemTime>,
    pub standing: Standing,
}

/// The identity that a key proves. If it changes, connections that use the key are ended.
#[derive(Clone, PartialEq, Eq)]
pub struct Holder {
    pub name: ByteString,
    pub role: ByteString,
    pub rights: Rights,
    pub incarnation: u64,
}

impl Table {
    /// Builds the next version, and ends the standing of keys that were removed, changed or revoked.
    pub fn next(file: &AgentsFile, before: &Self) -> Self {
        let mut table = Self::default();
        for agent in &file.agents {
            table.names.insert(agent.name.clone(), agent.role.clone());
            if agent.host && agent.revoked.is_none() {
                table.hosts.insert(agent.name.clone());
            }
            let state = if agent.revoked.is_some() { AgentState::Revoked } else { AgentState::Expired };
            let registered = RegisteredAgent { incarnation: agent.incarnation(), state };
            table.agents.insert(agent.name.clone(), registered);
            for record in &agent.keys {
                let Some(hash) = record.hash() else { continue };
                let key = Key::new(agent, record, hash);
                table.keys.insert(record.id.clone(), key.inherit_standing(before.keys.get(&record.id)));
            }
        }
        for (id, key) in &before.keys {
            let is_unchanged = table.keys.get(id).is_some_and(|next| !next.is_revoked && next.is_same_as(key));
            if !is_unchanged {
                key.standing.end(EndReason::Revoked);
            }
        }
        table.end_expired(SystemTime::now());
        table
    }

    pub fn key(&self, id: &str) -> Option<&Key> {
        self.keys.get(id)
    }

    pub fn role_of(&self, name: &str) -> Option<&str> {
        self.names.get(name).map(String::as_str)
    }

    pub fn is_host(&self, name: &str) -> bool {
        self.hosts.contains(name)
    }

    /// Includes revoked agents, whose names stay reserved.
    pub fn knows(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// All agents and whether they can authenticate.
    pub fn agents(&self, now: SystemTime) -> Agents {
        let mut agents = self.agents.clone();
        for key in self.keys.values().filter(|key| key.end_at(now).is_none()) {
            if let Some(agent) = agents.get_mut(&*key.holder.name) {
                agent.state = AgentState::Valid;
            }
        }
        agents
    }

    /// Ends the standing of keys that have expired or been replaced. Returns whether there are new ones.
    pub fn end_expired(&self, now: SystemTime) -> bool {
        let ended = self.keys.values().filter_map(|key| Some((key, key.end_at(now)?)));
        ended.fold(false, |any, (key, reason)| key.standing.end(reason) || any)
    }
}

impl Key {
    fn new(agent: &AgentRecord, record: &KeyRecord, hash: SecretHash) -> Self {
        let rights = Rights { unrestricted: false, host: agent.host, operator: agent.operator };
        let holder = Holder {
            name: agent.name.as_str().into(),
            role: agent.role.as_str().into(),
            rights,
            incarnation: agent.incarnation(),
        };
        let expires = record.expires.map(SystemTime::from);
        Self {
            hash,
            holder,
            is_revoked: agent.revoked.is_some(),
            expires,
            valid_until: record.valid_until.map(SystemTime::from),
            standing: expires.map_or_else(Standing::forever, Standing::until),
        }
    }

    /// Keeps the standing of the same key in the previous version, with the current expiry time.
    fn inherit_standing(mut self, before: Option<&Self>) -> Self {
        if let Some(before) = before.filter(|before| before.is_same_as(&self) && before.standing.ended().is_none()) {
            self.standing = before.standing.with_expiry(self.expires);
        }
        self
    }

    fn is_same_as(&self, other: &Self) -> bool {
        self.hash == other.hash && self.holder == other.holder
    }

    /// Returns the reason if the key is invalid at that time.
    pub fn end_at(&self, now: SystemTime) -> Option<EndReason> {
        if self.is_revoked || self.valid_until.is_some_and(|end| end <= now) {
            return Some(EndReason::Revoked);
        }
        self.expires.filter(|end| *end <= now).map(|_| EndReason::Expired)
    }
}
