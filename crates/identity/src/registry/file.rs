//! The file `agents.json`: agents and the hashes of their secrets. A file with any error is rejected as a whole.

use super::error::RegistryError;
use crate::binding::check_agent_name;
use crate::token::SecretHash;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use toolbus_base::{from_hex, read_private_text, replace_file};
use toolbus_protocol::check_name;

/// Name of the registry file in the data folder.
pub const FILE_NAME: &str = "agents.json";
const VERSION: u32 = 1;
/// Larger than any real list of agents.
const MAX_FILE_BYTES: u64 = 16 << 20;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentsFile {
    pub version: u32,
    pub agents: Vec<AgentRecord>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentRecord {
    pub name: String,
    pub role: String,
    #[serde(default, skip_serializing_if = "is_false")]
    pub host: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub operator: bool,
    pub created: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Timestamp>,
    pub keys: Vec<KeyRecord>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRecord {
    pub id: String,
    /// Hash of the secret, in hexadecimal.
    pub sha256: String,
    pub created: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// When it stops working because a newer key replaced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<Timestamp>,
}

impl Default for AgentsFile {
    fn default() -> Self {
        Self { version: VERSION, agents: Vec::new() }
    }
}

impl AgentsFile {
    /// Reads and checks the file. A missing file is an empty registry.
    pub fn read(path: &Path) -> Result<Self, RegistryError> {
        let unreadable = |source| RegistryError::Read { path: path.to_owned(), source };
        let text = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(unreadable(error)),
            Ok(metadata) if metadata.len() > MAX_FILE_BYTES => {
                let reason = format!("it is larger than {MAX_FILE_BYTES} bytes");
                return Err(RegistryError::Bad { path: path.to_owned(), reason });
            }
            Ok(_) => read_private_text(path).map_err(unreadable)?,
        };
        // The parser's message ends with line and column.
        let bad = |reason: String| RegistryError::Bad { path: path.to_owned(), reason };
        let file: Self = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        file.check().map_err(bad)?;
        Ok(file)
    }

    pub fn write(&self, path: &Path) -> Result<(), RegistryError> {
        let mut text = serde_json::to_vec_pretty(self).expect("records are plain JSON");
        text.push(b'\n');
        replace_file(path, &text).map_err(|source| RegistryError::Write { path: path.to_owned(), source })
    }

    pub fn check(&self) -> Result<(), String> {
        if self.version != VERSION {
            return Err(format!("version {} is not supported, only version {VERSION}", self.version));
        }
        let (mut names, mut ids) = (HashSet::new(), HashSet::new());
        for (at, agent) in self.agents.iter().enumerate() {
            let place = format!("agent {} ({:?})", at + 1, agent.name);
            check_agent_name(&agent.name).map_err(|error| format!("{place}: invalid name: {error}"))?;
            check_name(&agent.role).map_err(|error| format!("{place}: invalid role: {error}"))?;
            if !names.insert(&agent.name) {
                return Err(format!("{place}: an earlier agent has the same name"));
            }
            for key in &agent.keys {
                key.hash()
                    .ok_or_else(|| format!("{place}: sha256 of key {:?} is not 64 hexadecimal digits", key.id))?;
                if !ids.insert(&key.id) {
                    return Err(format!("{place}: the key id {:?} occurs twice", key.id));
                }
            }
        }
        Ok(())
    }

    pub fn agent_mut(&mut self, name: &str) -> Option<&mut AgentRecord> {
        self.agents.iter_mut().find(|agent| agent.name == name)
    }

    pub fn has_key(&self, id: &str) -> bool {
        self.agents.iter().flat_map(|agent| &agent.keys).any(|key| key.id == id)
    }
}

impl AgentRecord {
    /// The time of creation, in nanoseconds: it differs for each agent of the same name.
    pub fn incarnation(&self) -> u64 {
        u64::try_from(self.created.as_nanosecond()).unwrap_or_default()
    }
}

impl KeyRecord {
    pub fn hash(&self) -> Option<SecretHash> {
        from_hex(&self.sha256)
    }

    pub fn is_valid_at(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|end| now < end) && self.valid_until.is_none_or(|end| now < end)
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}
