//! Changing the registry, as the command line does while a broker runs: one writer at a time, and no reader sees half a
//! file.

use super::error::RegistryError;
use super::file::{AgentRecord, AgentsFile, FILE_NAME, KeyRecord};
use crate::binding::check_agent_name;
use crate::token::{Token, hex};
use jiff::{SignedDuration, Timestamp};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use toolbus_protocol::check_name;

/// How long another writer is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// Kept of an agent; the oldest go first. Those that were replaced are kept so that their holders are told why.
const MAX_KEYS: usize = 8;

/// The agents of a broker's data folder, for those who manage them.
#[derive(Debug, Clone)]
pub struct AgentsFolder {
    folder: PathBuf,
}

#[derive(Debug, Clone, Default)]
pub struct NewAgent<'a> {
    pub name: &'a str,
    pub role: &'a str,
    /// May act as a host.
    pub host: bool,
    pub operator: bool,
    pub lifetime: Option<Duration>,
}

/// A new token. It is told once and can't be told again.
#[derive(Debug)]
pub struct Issued {
    pub token: Token,
    pub key: String,
    pub role: String,
    pub expires: Option<Timestamp>,
    /// Until when the keys before this one still work.
    pub overlap_ends: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct AgentInfo {
    pub name: String,
    pub role: String,
    pub host: bool,
    pub operator: bool,
    pub created: Timestamp,
    pub revoked: Option<Timestamp>,
    pub keys: Vec<KeyInfo>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct KeyInfo {
    pub id: String,
    pub created: Timestamp,
    pub expires: Option<Timestamp>,
    pub valid_until: Option<Timestamp>,
    pub is_valid: bool,
}

impl AgentsFolder {
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    pub fn file(&self) -> PathBuf {
        self.folder.join(FILE_NAME)
    }

    /// Lets an agent in that is not known yet, or was revoked: then with a new token, and not with those it had.
    pub fn add(&self, new: &NewAgent<'_>) -> Result<Issued, RegistryError> {
        self.change(|file| file.add(new))
    }

    pub fn list(&self) -> Result<Vec<AgentInfo>, RegistryError> {
        let now = Timestamp::now();
        let file = AgentsFile::read(&self.file())?;
        Ok(file.agents.into_iter().map(|agent| AgentInfo::of(agent, now)).collect())
    }

    /// A new token; the keys before it work for the overlap. Without a lifetime it gets that of the key before.
    pub fn rotate(&self, name: &str, overlap: Duration, lifetime: Option<Duration>) -> Result<Issued, RegistryError> {
        self.change(|file| file.rotate(name, overlap, lifetime))
    }

    /// Shuts an agent out with all its keys. False if that was done before.
    pub fn revoke(&self, name: &str) -> Result<bool, RegistryError> {
        self.change(|file| {
            let agent = file.known(name)?;
            let is_new = agent.revoked.is_none();
            agent.revoked.get_or_insert_with(Timestamp::now);
            Ok(is_new)
        })
    }

    /// Reads, lets somebody change it, and writes, while nobody else does the same.
    pub(super) fn change<T>(
        &self,
        edit: impl FnOnce(&mut AgentsFile) -> Result<T, RegistryError>,
    ) -> Result<T, RegistryError> {
        fs::create_dir_all(&self.folder)
            .map_err(|source| RegistryError::Write { path: self.folder.clone(), source })?;
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

impl AgentsFile {
    pub(super) fn add(&mut self, new: &NewAgent<'_>) -> Result<Issued, RegistryError> {
        check_agent_name(new.name).map_err(|reason| RegistryError::BadName { name: new.name.to_owned(), reason })?;
        check_name(new.role).map_err(|reason| RegistryError::BadRole { role: new.role.to_owned(), reason })?;
        let earlier = self.agents.iter().position(|agent| agent.name == new.name);
        if let Some(at) = earlier {
            if self.agents[at].revoked.is_none() {
                return Err(RegistryError::Exists { name: new.name.to_owned() });
            }
            self.agents.remove(at);
        }
        let (key, mut issued) = self.mint(new.lifetime)?;
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
        let agent = self.known(name)?;
        if agent.revoked.is_some() {
            return Err(RegistryError::Revoked { name: name.to_owned() });
        }
        let last = agent.keys.last();
        let same = last.and_then(|key| Duration::try_from(key.expires?.duration_since(key.created)).ok());
        let (key, mut issued) = self.mint(lifetime.or(same))?;
        let ends = after(key.created, overlap)?;
        let agent = self.known(name)?;
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

    fn known(&mut self, name: &str) -> Result<&mut AgentRecord, RegistryError> {
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

/// Held until it is dropped; the system lets go of it if the process dies.
fn lock(path: &Path) -> Result<File, RegistryError> {
    let unusable = |source| RegistryError::Write { path: path.to_owned(), source };
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = open.map_err(unusable)?;
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => {
                return Err(RegistryError::Locked { path: path.to_owned() });
            }
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(10)),
        }
    }
}
