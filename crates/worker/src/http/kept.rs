//! Records of legacy sessions in a folder. A client whose endpoint is restarted goes on under its session id, instead of
//! getting 404, after which few clients initialize again.

use super::Principal;
use crate::worker::lock;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use toolbus_base::{private_folder, read_private, replace_file_unsynced};
use toolbus_mcp::Raw;

/// How long a record waits before it is written. A session that ends within this time causes no access to the disk, so clients
/// that open and end sessions can't keep it busy.
const LINGER: Duration = Duration::from_millis(250);
/// Sessions with a larger record are not kept.
const MAX_RECORD_BYTES: usize = 64 << 10;

pub struct KeptSessions {
    records: Arc<Records>,
    writer: AbortHandle,
}

struct Records {
    folder: PathBuf,
    state: Mutex<State>,
    changed: Notify,
    /// Held while records are written, so that changes reach the disk in their order.
    writing: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// The ids of all records, so that unknown ids cost no access to the disk.
    known: HashSet<String>,
    /// Records to be written, at most one of each open session.
    unwritten: HashMap<String, String>,
    /// Records to be removed, at most those that were written.
    ended: Vec<String>,
}

/// What is needed to continue a session: its owner, and what `initialize` negotiated.
#[derive(Serialize, Deserialize)]
pub struct KeptSession {
    agent: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    incarnation: u64,
    /// The params of the client's `initialize`.
    pub initialize: Raw,
    /// The parts of its result that the session depends on.
    pub negotiated: Raw,
}

impl KeptSession {
    pub fn new(principal: &Principal, initialize: Raw, negotiated: Raw) -> Self {
        let Principal { name, role, incarnation } = principal.clone();
        Self { agent: name, role, incarnation, initialize, negotiated }
    }

    fn is_of(&self, principal: &Principal) -> bool {
        self.agent == principal.name && self.role == principal.role && self.incarnation == principal.incarnation
    }
}

impl KeptSessions {
    /// Opens the folder, of which the latest `max` records are kept. Requires a tokio runtime.
    pub fn open(folder: PathBuf, max: usize) -> io::Result<Self> {
        private_folder(&folder)?;
        let state = Mutex::new(State { known: latest(&folder, max)?, ..State::default() });
        let records = Arc::new(Records { folder, state, changed: Notify::new(), writing: Mutex::default() });
        let writer = tokio::spawn(write(Arc::clone(&records))).abort_handle();
        Ok(Self { records, writer })
    }

    pub fn keep(&self, id: &str, session: &KeptSession) {
        let Ok(record) = serde_json::to_string(session) else { return };
        if record.len() <= MAX_RECORD_BYTES {
            let mut state = self.records.lock();
            state.known.insert(id.to_owned());
            state.unwritten.insert(id.to_owned(), record);
            self.records.changed.notify_one();
        }
    }

    pub fn forget(&self, id: &str) {
        let mut state = self.records.lock();
        if state.known.remove(id) && state.unwritten.remove(id).is_none() {
            state.ended.push(id.to_owned());
            self.records.changed.notify_one();
        }
    }

    /// Forgets the records that are not of these sessions.
    pub fn forget_others(&self, open: &HashSet<String>) {
        let others: Vec<String> = self.records.lock().known.difference(open).cloned().collect();
        others.iter().for_each(|id| self.forget(id));
    }

    /// The record of the principal's session.
    pub async fn find(&self, principal: &Principal, id: &str) -> Option<KeptSession> {
        if !self.records.lock().known.contains(id) {
            return None;
        }
        let path = self.records.folder.join(id);
        let bytes = tokio::task::spawn_blocking(move || read_private(&path)).await.ok()?.ok()?;
        // A record that a power failure left incomplete can't be parsed.
        let kept: KeptSession = serde_json::from_slice(&bytes).ok()?;
        kept.is_of(principal).then_some(kept)
    }

    /// Writes the records that are not written yet, before the process ends. Blocks on disk I/O.
    pub fn write_now(&self) {
        self.records.write_changes();
    }
}

impl Drop for KeptSessions {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

impl Records {
    /// Nothing is synced: syncs would delay those of the message log, and after a power failure a client can initialize again.
    fn write_changes(&self) {
        let _one_at_a_time = lock(&self.writing);
        let (unwritten, ended) = {
            let mut state = self.lock();
            (std::mem::take(&mut state.unwritten), std::mem::take(&mut state.ended))
        };
        let written =
            unwritten.iter().map(|(id, record)| replace_file_unsynced(&self.folder.join(id), record.as_bytes()));
        let removed = ended.iter().map(|id| fs::remove_file(self.folder.join(id)));
        let failed =
            written.chain(removed).filter_map(Result::err).filter(|error| error.kind() != io::ErrorKind::NotFound);
        if let Some(error) = failed.last() {
            tracing::warn!(%error, "records of MCP sessions could not be written; the sessions end with this process");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

async fn write(records: Arc<Records>) {
    loop {
        records.changed.notified().await;
        tokio::time::sleep(LINGER).await;
        let records = Arc::clone(&records);
        tokio::task::spawn_blocking(move || records.write_changes()).await.ok();
    }
}

/// The ids of the latest records. Others, and leftovers of writes, are removed.
fn latest(folder: &Path, max: usize) -> io::Result<HashSet<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let id = entry.file_name().into_string().ok().filter(|name| uuid::Uuid::try_parse(name).is_ok());
        let written = entry.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        match id {
            Some(id) => found.push((written, id)),
            None => fs::remove_file(entry.path())?,
        }
    }
    found.sort_unstable_by(|one, other| other.cmp(one));
    for (_, id) in found.iter().skip(max) {
        fs::remove_file(folder.join(id))?;
    }
    Ok(found.into_iter().take(max).map(|(_, id)| id).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbus_mcp::empty_object;

    #[tokio::test]
    async fn records_outlive_the_process_and_are_bounded_in_number_and_size() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |max| KeptSessions::open(folder.path().to_owned(), max).expect("a folder");
        let id = || uuid::Uuid::new_v4().to_string();
        let ann = Principal { name: "ann".into(), role: None, incarnation: 0 };
        let (ids, sessions) = ([id(), id(), id()], open(10));
        for id in &ids {
            sessions.keep(id, &KeptSession::new(&ann, empty_object(), empty_object()));
        }
        let large = toolbus_mcp::raw(&"x".repeat(MAX_RECORD_BYTES));
        let huge = id();
        sessions.keep(&huge, &KeptSession::new(&ann, large, empty_object()));
        sessions.forget(&ids[0]);
        let count = || fs::read_dir(folder.path()).expect("a folder").count();
        let is_there = |id: &String| folder.path().join(id).exists();
        while !is_there(&ids[1]) || !is_there(&ids[2]) || count() != 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let next = open(10);
        assert!(next.find(&ann, &ids[1]).await.is_some() && next.find(&ann, &ids[2]).await.is_some());
        assert!(next.find(&ann, &ids[0]).await.is_none() && next.find(&ann, &huge).await.is_none());
        for (name, role, incarnation) in [("bob", None, 0), ("ann", Some("writer".to_owned()), 0), ("ann", None, 1)] {
            let other = Principal { name: name.into(), role, incarnation };
            assert!(next.find(&other, &ids[1]).await.is_none());
        }
        assert_eq!((open(1).records.lock().known.len(), count()), (1, 1));
    }
}
