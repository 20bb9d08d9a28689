//! Changes to the registry, made by commands while a broker runs: a file lock serialises writers, and the file is
//! replaced atomically.

use super::error::RegistryError;
use super::file::{AgentRecord, AgentsFile, FILE_NAME, KeyRecord};
use super::local::{HOST_AGENT, LOCAL_AGENT, OPERATOR_AGENT};
use crate::Qualifier;
use crate::binding::check_agent_name;
use crate::token::Token;
use jiff::{SignedDuration, Timestamp};
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use toolbus_base::{fold_case, hex, open_private, private_folder};
use toolbus_protocol::check_name;

/// How long to wait for the lock of another writer.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of keys per agent; the oldest are removed. Replaced keys are kept so that their holders get the
/// reason of the refusal.
const MAX_KEYS: usize = 8;

/// Manages the agents of a broker's data folder.
#[derive(Debug, Clone)]
pub struct AgentsFolder {
    folder: PathBuf,
}

/// An agent to add.
#[derive(Debug, Clone, Default)]
pub struct NewAgent<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its role.
    pub role: &'a str,
    /// Whether it may act as a host.
    pub host: bool,
    /// Whether it is an operator.
    pub operator: bool,
    /// Lifetime of its token; `None` for unlimited.
    pub lifetime: Option<Duration>,
}

/// A new token. It can't be retrieved again, since only its hash is stored.
#[derive(Debug)]
pub struct Issued {
    /// The token with its secret.
    pub token: Token,
    /// The id of its key.
    pub key: String,
    /// The role of its agent.
    pub role: String,
    /// When it expires.
    pub expires: Option<Timestamp>,
    /// When the earlier keys stop working, if there are any.
    pub overlap_ends: Option<Timestamp>,
}

/// A registered agent, without secrets.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentInfo {
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: String,
    /// Whether it may act as a host.
    pub host: bool,
    /// Whether it is an operator.
    pub operator: bool,
    /// When it was added.
    pub created: Timestamp,
    /// When it was revoked.
    pub revoked: Option<Timestamp>,
    /// Its keys, oldest first.
    pub keys: Vec<KeyInfo>,
}

/// A key of an agent, without its secret.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyInfo {
    /// Its id, the public part of the token.
    pub id: String,
    /// When it was issued.
    pub created: Timestamp,
    /// When its lifetime ends.
    pub expires: Option<Timestamp>,
    /// When it stops working because a newer key replaced it.
    pub valid_until: Option<Timestamp>,
    /// Whether it works now.
    pub is_valid: bool,
}

impl AgentsFolder {
    /// The agents of this data folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The path of `agents.json`.
    pub fn file(&self) -> PathBuf {
        self.folder.join(FILE_NAME)
    }

    /// Adds a new agent, or replaces a revoked one; its earlier tokens stay invalid.
    pub fn add(&self, new: &NewAgent<'_>) -> Result<Issued, RegistryError> {
        self.change(|file| file.add(new))
    }

    /// Lists all agents, revoked ones included.
    pub fn list(&self) -> Result<Vec<AgentInfo>, RegistryError> {
        let now = Timestamp::now();
        let file = AgentsFile::read(&self.file())?;
        Ok(file.agents.into_iter().map(|agent| AgentInfo::of(agent, now)).collect())
    }

    /// Issues a new token; earlier keys stay valid for `overlap`. `lifetime` defaults to that of the previous key.
    pub fn rotate(&self, name: &str, overlap: Duration, lifetime: Option<Duration>) -> Result<Issued, RegistryError> {
        self.change(|file| file.rotate(name, overlap, lifetime))
    }

    /// Revokes an agent with all its keys. Returns `false` if it already was revoked.
    pub fn revoke(&self, name: &str) -> Result<bool, RegistryError> {
        self.change(|file| {
            let agent = file.require_agent(name)?;
            let is_new = agent.revoked.is_none();
            agent.revoked.get_or_insert_with(Timestamp::now);
            Ok(is_new)
        })
    }

    /// Reads, edits and writes the file under the lock.
    pub(super) fn change<T>(
        &self,
        edit: impl FnOnce(&mut AgentsFile) -> Result<T, RegistryError>,
    ) -> Result<T, RegistryError> {
        private_folder(&self.folder).map_err(|source| RegistryError::Write { path: self.folder.clone(), source })?;
        let _lock = lock(&self.folder.join(format!("{FILE_NAME}.lock")))?;
        let mut file = AgentsFile::read(&self.file())?;
        let before = file.clone();
        let outcome = edit(&mut file)?;
        if file != before {
            file.write(&self.file())?;
        }
        Ok(outcome)
    }
}

/// Why a new agent can't have this name, if it is reserved. Names are compared byte by byte, so a look-alike would have no
/// right of the other, but people would take it for the other.
fn reservation(name: &str) -> Option<&'static str> {
    let folded = fold_case(name);
    if folded.starts_with(Qualifier::JWT) {
        return Some("names that begin with jwt: belong to the holders of JWTs");
    }
    if folded.starts_with(Qualifier::CERTIFICATE) {
        return Some("names that begin with cert: belong to the holders of client certificates");
    }
    let own = [LOCAL_AGENT, HOST_AGENT, OPERATOR_AGENT];
    let is_look_alike = own.iter().any(|own| folded == *own && name != *own);
    is_look_alike.then_some("it differs only in case from an agent of the broker's own machine")
}

impl AgentsFile {
    pub(super) fn add(&mut self, new: &NewAgent<'_>) -> Result<Issued, RegistryError> {
        check_agent_name(new.name).map_err(|reason| RegistryError::BadName { name: new.name.to_owned(), reason })?;
        // Earlier versions accepted such names, so that only new ones are refused.
        if new.name.contains(char::is_whitespace) {
            return Err(RegistryError::BlankInName { name: new.name.to_owned() });
        }
        if let Some(reason) = reservation(new.name) {
            return Err(RegistryError::ReservedName { name: new.name.to_owned(), reason });
        }
        check_name(new.role).map_err(|reason| RegistryError::BadRole { role: new.role.to_owned(), reason })?;
        let earlier = self.agents.iter().position(|agent| agent.name == new.name);
        let mut before = None;
        if let Some(at) = earlier {
            if self.agents[at].revoked.is_none() {
                return Err(RegistryError::Exists { name: new.name.to_owned() });
            }
            before = Some(self.agents.remove(at).created);
        }
        let (mut key, mut issued) = self.mint(new.lifetime)?;
        // Later than its predecessor, also if that was added at another broker, whose clock is ahead: the time tells them apart.
        key.created = before.map_or(key.created, |before| key.created.max(before + SignedDuration::from_nanos(1)));
        issued.role = new.role.to_owned();
        self.agents.push(AgentRecord {
            name: new.name.to_owned(),
            role: new.role.to_owned(),
            host: new.host,
            operator: new.operator,
            created: key.created,
            revoked: None,
            keys: vec![key],
        });
        Ok(issued)
    }

    pub(super) fn rotate(
        &mut self,
        name: &str,
        overlap: Duration,
        lifetime: Option<Duration>,
    ) -> Result<Issued, RegistryError> {
        let agent = self.require_agent(name)?;
        if agent.revoked.is_some() {
            return Err(RegistryError::Revoked { name: name.to_owned() });
        }
        let last = agent.keys.last();
        let same_lifetime = last.and_then(|key| Duration::try_from(key.expires?.duration_since(key.created)).ok());
        let (key, mut issued) = self.mint(lifetime.or(same_lifetime))?;
        let ends = after(key.created, overlap)?;
        let agent = self.require_agent(name)?;
        for earlier in agent.keys.iter_mut().filter(|earlier| earlier.is_valid_at(key.created)) {
            earlier.valid_until = Some(earlier.valid_until.map_or(ends, |end| end.min(ends)));
            issued.overlap_ends = Some(ends);
        }
        issued.role.clone_from(&agent.role);
        agent.keys.push(key);
        let surplus = agent.keys.len().saturating_sub(MAX_KEYS);
        agent.keys.drain(..surplus);
        Ok(issued)
    }

    /// Adds a key that ends no other one.
    pub(super) fn add_key(&mut self, name: &str) -> Result<Issued, RegistryError> {
        let (key, mut issued) = self.mint(None)?;
        let agent = self.require_agent(name)?;
        issued.role.clone_from(&agent.role);
        agent.keys.push(key);
        Ok(issued)
    }

    pub(super) fn require_agent(&mut self, name: &str) -> Result<&mut AgentRecord, RegistryError> {
        let known = || self.agents.iter().map(|agent| agent.name.clone()).collect();
        match self.agents.iter().position(|agent| agent.name == name) {
            Some(at) => Ok(&mut self.agents[at]),
            None => Err(RegistryError::Unknown { name: name.to_owned(), known: known() }),
        }
    }

    fn mint(&self, lifetime: Option<Duration>) -> Result<(KeyRecord, Issued), RegistryError> {
        let created = Timestamp::now();
        let expires = lifetime.map(|lifetime| after(created, lifetime)).transpose()?;
        let minted = loop {
            let minted = Token::mint().map_err(|error| RegistryError::Random(error.to_string()))?;
            if !self.has_key(&minted.key) {
                break minted;
            }
        };
        let sha256 = hex(&minted.hash);
        let key = KeyRecord { id: minted.key.clone(), sha256, created, expires, valid_until: None };
        let role = String::new();
        Ok((key, Issued { token: minted.token, key: minted.key, role, expires, overlap_ends: None }))
    }
}

impl AgentInfo {
    fn of(agent: AgentRecord, now: Timestamp) -> Self {
        let is_revoked = agent.revoked.is_some();
        let key = |key: KeyRecord| KeyInfo {
            is_valid: !is_revoked && key.is_valid_at(now),
            id: key.id,
            created: key.created,
            expires: key.expires,
            valid_until: key.valid_until,
        };
        let keys = agent.keys.into_iter().map(key).collect();
        let AgentRecord { name, role, host, operator, created, revoked, .. } = agent;
        Self { name, role, host, operator, created, revoked, keys }
    }
}

fn after(start: Timestamp, time: Duration) -> Result<Timestamp, RegistryError> {
    let time = SignedDuration::try_from(time).map_err(|_| RegistryError::TooFarAhead)?;
    start.checked_add(time).map_err(|_| RegistryError::TooFarAhead)
}

/// Takes the lock until the file is dropped; the system releases it if the process dies.
fn lock(path: &Path) -> Result<File, RegistryError> {
    let unusable = |source| RegistryError::Write { path: path.to_owned(), source };
    let open = open_private(path, OpenOptions::new().read(true).write(true).create(true).truncate(false));
    let file = open.map_err(unusable)?;
    let give_up_at = Instant::now() + LOCK_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
            Err(TryLockError::WouldBlock) if Instant::now() >= give_up_at => {
                return Err(RegistryError::Locked { path: path.to_owned() });
            }
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(10)),
        }
    }
}
