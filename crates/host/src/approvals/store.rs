//! Calls that wait for approval, and the decisions. Waiting calls are in memory, because their requests stay in the
//! mailbox. Decisions are on disk, because they are made once.

use super::PendingApproval;
use crate::host::HostLimits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use toolbus_base::Share;
use toolbus_protocol::principal_of;

const FILE: &str = "approvals.json";
/// Decisions kept for redelivered requests; the oldest are dropped first.
const MAX_DECISIONS: usize = 4096;
/// Refused decisions that are audited per second.
const MAX_AUDITED_REFUSALS: u32 = 10;
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

/// The calls of a host that wait for approval, and the decisions. Shared by all connections of the host.
#[derive(Default)]
pub struct Approvals {
    file: Option<PathBuf>,
    state: Arc<Mutex<State>>,
    /// Serialises writes of the file.
    writing: tokio::sync::Mutex<()>,
    /// Start of the current second and the number of refusals in it.
    refusals: Mutex<Option<(Instant, u32)>>,
}

#[derive(Default)]
struct State {
    parked: BTreeMap<String, (Arc<PendingApproval>, watch::Sender<Option<Verdict>>)>,
    verdicts: BTreeMap<String, Verdict>,
}

/// The limit that one more call would exceed.
#[derive(Debug, thiserror::Error)]
pub enum Full {
    #[error("approval limit reached ({0} waiting calls)")]
    Calls(usize),
    #[error("approval limit reached ({1} waiting calls of agent '{0}')")]
    CallsOfAgent(String, usize),
    #[error("approval limit reached ({0} bytes of waiting calls)")]
    Bytes(usize),
    #[error("approval limit reached ({1} bytes of waiting calls of agent '{0}')")]
    BytesOfAgent(String, usize),
}

pub enum Parking {
    Waits(Parked),
    /// Decided before the host restarted.
    Decided(Verdict),
}

/// A call that waits for approval; removed from the list on drop.
pub struct Parked {
    id: String,
    verdict: watch::Receiver<Option<Verdict>>,
    state: Arc<Mutex<State>>,
}

/// Why a decision was refused.
#[derive(Debug, thiserror::Error)]
pub enum DecideError {
    #[error("no call with id {0:?} waits for approval: it was decided, withdrawn, or it expired")]
    Unknown(String),
    #[error("the call {0:?} is not the one you have seen; list the calls again")]
    OtherHash(String),
    #[error("you may not approve a call of your own")]
    OwnCall,
    #[error("cannot write the decision: {0}")]
    Write(io::Error),
}

impl Approvals {
    /// Reads the decisions. An unreadable file is an error, because the calls that it approves may wait in the mailbox.
    pub fn open(state: &Path) -> io::Result<Self> {
        let file = state.join(FILE);
        let verdicts = match toolbus_base::read_private_text(&file) {
            Ok(text) => serde_json::from_str(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        let state = State { verdicts, ..State::default() };
        Ok(Self { file: Some(file), state: Arc::new(Mutex::new(state)), ..Self::default() })
    }

    pub(super) fn park(
        &self,
        pending: Arc<PendingApproval>,
        share: Share,
        limits: &HostLimits,
    ) -> Result<Parking, Full> {
        let mut state = self.lock();
        if let Some(verdict) = state.verdicts.get(&pending.id) {
            return Ok(Parking::Decided(verdict.clone()));
        }
        state.check_limits(&pending, share, limits)?;
        let (sender, verdict) = watch::channel(None);
        let id = pending.id.clone();
        state.parked.insert(id.clone(), (pending, sender));
        Ok(Parking::Waits(Parked { id, verdict, state: Arc::clone(&self.state) }))
    }

    /// Oldest first.
    pub(super) fn list(&self) -> Vec<Arc<PendingApproval>> {
        let mut all: Vec<_> = self.lock().parked.values().map(|(pending, _)| Arc::clone(pending)).collect();
        all.sort_by_key(|pending| pending.since_ms);
        all
    }

    pub(super) fn find(&self, id: &str) -> Option<Arc<PendingApproval>> {
        self.lock().parked.get(id).map(|(pending, _)| Arc::clone(pending))
    }

    /// Makes the decision durable, and then notifies the call.
    pub(super) async fn decide(
        &self,
        id: &str,
        verdict: Verdict,
        is_own: impl Fn(&PendingApproval) -> bool,
    ) -> Result<Arc<PendingApproval>, DecideError> {
        let _guard = self.writing.lock().await;
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

    /// Whether to audit one more refused decision; limited, so that refusals can't flood the log.
    pub(super) fn may_audit_refusal(&self) -> bool {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let (since, count) = refusals.filter(|(since, _)| now - *since < Duration::from_secs(1)).unwrap_or((now, 0));
        *refusals = Some((since, count + 1));
        count < MAX_AUDITED_REFUSALS
    }

    /// Removes an approval, from disk first: each approval is good for one run, and a later repetition needs another.
    pub(super) async fn consume(&self, id: &str) -> io::Result<()> {
        let _guard = self.writing.lock().await;
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
    /// An agent may use its share of what is free, so something is left for the next agent.
    fn check_limits(&self, new: &PendingApproval, share: Share, limits: &HostLimits) -> Result<(), Full> {
        let agent = principal_of(&new.caller);
        let all = || self.parked.values().map(|(pending, _)| pending);
        let own = || all().filter(|pending| principal_of(&pending.caller) == agent);
        let free = limits.max_parked.saturating_sub(self.parked.len());
        if free == 0 {
            return Err(Full::Calls(limits.max_parked));
        }
        let calls = own().count();
        if !share.admits(calls as u64, free as u64) {
            return Err(Full::CallsOfAgent(agent.to_owned(), calls));
        }
        let size = |pending: &Arc<PendingApproval>| pending.bytes();
        let (bytes, before) = (own().map(size).sum::<usize>(), all().map(size).sum::<usize>());
        let free = limits.max_parked_bytes.saturating_sub(before);
        match new.bytes() {
            more if bytes + more > limits.max_parked_bytes_per_agent => {
                Err(Full::BytesOfAgent(agent.to_owned(), bytes))
            }
            more if more > free => Err(Full::Bytes(limits.max_parked_bytes)),
            _ if !share.admits(bytes as u64, free as u64) => Err(Full::BytesOfAgent(agent.to_owned(), bytes)),
            _ => Ok(()),
        }
    }
}

impl Parked {
    pub async fn verdict(&mut self) -> Verdict {
        loop {
            let verdict = self.verdict.borrow_and_update().clone();
            match verdict {
                Some(verdict) => return verdict,
                None if self.verdict.changed().await.is_ok() => {}
                // A call that left the list can't be decided any more.
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
    if let Some(folder) = file.parent() {
        toolbus_base::private_folder(folder)?;
    }
    toolbus_base::replace_file(file, &serde_json::to_vec(verdicts)?)
}
