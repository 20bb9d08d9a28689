//! The calls that wait, and what was decided about them: the first in memory, because they are in the mailbox, the second
//! on disk, because whoever decided is gone.

use super::PendingApproval;
use crate::host::HostLimits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use toolbus_protocol::principal_of;

const FILE: &str = "approvals.json";
/// Decisions that are remembered, for requests that come again; the oldest are forgotten first.
const MAX_DECISIONS: usize = 4096;
/// Refused decisions that are written down in a second.
const REFUSALS_TOLD: u32 = 10;
const KEPT_MS: u64 = 7 * 24 * 3600 * 1000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    pub hash: String,
    pub approve: bool,
    pub by: String,
    #[serde(default)]
    pub by_role: Option<String>,
    pub at_ms: u64,
}

/// Shared by all connections of a host to its broker.
#[derive(Default)]
pub struct Approvals {
    file: Option<PathBuf>,
    state: Arc<Mutex<State>>,
    /// Decisions are written one after the other.
    writing: tokio::sync::Mutex<()>,
    /// Since when refused decisions are counted, and how many there were.
    refusals: Mutex<Option<(Instant, u32)>>,
}

#[derive(Default)]
struct State {
    parked: BTreeMap<String, (Arc<PendingApproval>, watch::Sender<Option<Verdict>>)>,
    verdicts: BTreeMap<String, Verdict>,
}

/// Why one more can't wait.
#[derive(Debug, thiserror::Error)]
pub enum Full {
    #[error("{0} calls wait for approval already")]
    Calls(usize),
    #[error("{1} calls of agent '{0}' wait for approval already")]
    CallsOfAgent(String, usize),
    #[error("the calls that wait for approval may have {0} bytes together, and with this one they would have more")]
    Bytes(usize),
    #[error("the calls of agent '{0}' that wait for approval may have {1} bytes together, and would have more")]
    BytesOfAgent(String, usize),
}

pub enum Parking {
    Waits(Parked),
    /// Before the host was started again.
    Decided(Verdict),
}

/// A call that waits; it leaves the list when this is dropped.
pub struct Parked {
    id: String,
    verdict: watch::Receiver<Option<Verdict>>,
    state: Arc<Mutex<State>>,
}

/// Why nothing was decided.
#[derive(Debug, thiserror::Error)]
pub enum DecideError {
    #[error("no call waits under the id {0:?}: it was decided, taken back, or its time is over")]
    Unknown(String),
    #[error("the call {0:?} is another one than you have seen; list again")]
    OtherHash(String),
    #[error("you may not approve a call of your own")]
    OwnCall,
    #[error("the decision could not be written: {0}")]
    Write(io::Error),
}

impl Approvals {
    /// Reads what was decided. A file that can't be read is an error: what it approves may wait in the mailbox.
    pub fn open(state: &Path) -> io::Result<Self> {
        let file = state.join(FILE);
        let verdicts = match fs::read_to_string(&file) {
            Ok(text) => serde_json::from_str(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        let state = State { verdicts, ..State::default() };
        Ok(Self { file: Some(file), state: Arc::new(Mutex::new(state)), ..Self::default() })
    }

    pub(super) fn park(&self, pending: Arc<PendingApproval>, limits: &HostLimits) -> Result<Parking, Full> {
        let mut state = self.lock();
        if let Some(verdict) = state.verdicts.get(&pending.id) {
            return Ok(Parking::Decided(verdict.clone()));
        }
        state.make_sure_of_room(&pending, limits)?;
        let (sender, verdict) = watch::channel(None);
        let id = pending.id.clone();
        state.parked.insert(id.clone(), (pending, sender));
        Ok(Parking::Waits(Parked { id, verdict, state: Arc::clone(&self.state) }))
    }

    /// The oldest first.
    pub(super) fn list(&self) -> Vec<Arc<PendingApproval>> {
        let mut all: Vec<_> = self.lock().parked.values().map(|(pending, _)| Arc::clone(pending)).collect();
        all.sort_by_key(|pending| pending.since_ms);
        all
    }

    pub(super) fn find(&self, id: &str) -> Option<Arc<PendingApproval>> {
        self.lock().parked.get(id).map(|(pending, _)| Arc::clone(pending))
    }

    /// Writes the decision, and only then lets the call know.
    pub(super) async fn decide(
        &self,
        id: &str,
        verdict: Verdict,
        is_own: impl Fn(&PendingApproval) -> bool,
    ) -> Result<Arc<PendingApproval>, DecideError> {
        let _turn = self.writing.lock().await;
        let (pending, all) = {
            let state = self.lock();
            let unknown = || DecideError::Unknown(id.to_owned());
            let (pending, _) = state.parked.get(id).ok_or_else(unknown)?;
            if state.verdicts.contains_key(id) {
                return Err(unknown());
            }
            if pending.hash != verdict.hash {
                return Err(DecideError::OtherHash(id.to_owned()));
            }
            if is_own(pending) {
                return Err(DecideError::OwnCall);
            }
            let mut all = state.verdicts.clone();
            all.insert(id.to_owned(), verdict.clone());
            (Arc::clone(pending), kept(all, verdict.at_ms))
        };
        self.write(&all).await.map_err(DecideError::Write)?;
        let mut state = self.lock();
        state.verdicts = all;
        if let Some((_, waiting)) = state.parked.get(id) {
            waiting.send_replace(Some(verdict));
        }
        Ok(pending)
    }

    /// Whether one more refused decision is worth a line: whoever likes to be refused must not fill the log.
    pub(super) fn is_refusal_told(&self) -> bool {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let (since, count) = refusals.filter(|(since, _)| now - *since < Duration::from_secs(1)).unwrap_or((now, 0));
        *refusals = Some((since, count + 1));
        count < REFUSALS_TOLD
    }

    /// Forgets an approval, on disk first: the same request, should it come again, has to be asked for again.
    pub(super) async fn use_up(&self, id: &str) -> io::Result<()> {
        let _turn = self.writing.lock().await;
        let mut all = self.lock().verdicts.clone();
        all.remove(id);
        self.write(&all).await?;
        self.lock().verdicts = all;
        Ok(())
    }

    async fn write(&self, verdicts: &BTreeMap<String, Verdict>) -> io::Result<()> {
        let Some(file) = self.file.clone() else { return Ok(()) };
        let verdicts = verdicts.clone();
        let written = tokio::task::spawn_blocking(move || write(&file, &verdicts));
        written.await.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// One agent may not keep all others from asking.
    fn make_sure_of_room(&self, new: &PendingApproval, limits: &HostLimits) -> Result<(), Full> {
        let agent = principal_of(&new.caller);
        let all = || self.parked.values().map(|(pending, _)| pending);
        let own = || all().filter(|pending| principal_of(&pending.caller) == agent);
        let bytes = |of: usize| of + new.bytes();
        if self.parked.len() >= limits.max_parked {
            return Err(Full::Calls(limits.max_parked));
        }
        if own().count() >= limits.max_parked_per_agent {
            return Err(Full::CallsOfAgent(agent.to_owned(), limits.max_parked_per_agent));
        }
        if bytes(own().map(|pending| pending.bytes()).sum()) > limits.max_parked_bytes_per_agent {
            return Err(Full::BytesOfAgent(agent.to_owned(), limits.max_parked_bytes_per_agent));
        }
        if bytes(all().map(|pending| pending.bytes()).sum()) > limits.max_parked_bytes {
            return Err(Full::Bytes(limits.max_parked_bytes));
        }
        Ok(())
    }
}

impl Parked {
    pub async fn verdict(&mut self) -> Verdict {
        loop {
            let verdict = self.verdict.borrow_and_update().clone();
            match verdict {
                Some(verdict) => return verdict,
                None if self.verdict.changed().await.is_ok() => {}
                // Nobody can decide about what is not in the list.
                None => return std::future::pending().await,
            }
        }
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).parked.remove(&self.id);
    }
}

fn kept(mut verdicts: BTreeMap<String, Verdict>, now_ms: u64) -> BTreeMap<String, Verdict> {
    verdicts.retain(|_, verdict| verdict.at_ms + KEPT_MS > now_ms);
    while verdicts.len() > MAX_DECISIONS {
        let oldest = verdicts.iter().min_by_key(|(_, verdict)| verdict.at_ms).map(|(id, _)| id.clone());
        oldest.into_iter().for_each(|id| drop(verdicts.remove(&id)));
    }
    verdicts
}

fn write(file: &Path, verdicts: &BTreeMap<String, Verdict>) -> io::Result<()> {
    let temporary = file.with_extension("new");
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut out = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&temporary)?;
    out.write_all(&serde_json::to_vec(verdicts)?)?;
    out.sync_all()?;
    fs::rename(&temporary, file)?;
    file.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
